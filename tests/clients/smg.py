"""The gateway `smg`, which knows the service as a vLLM over gRPC, and nothing else of it.

It fetches the tokenizer, writes the prompts and decodes the answers itself.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.clients.case import LIMIT_S, Faulty, Result, Setting, expect, judged
from tests.clients.venvs import pinned, venv

START_S = 60.0  # until it has found the worker and loaded its tokenizer
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LENGTH = 12  # tokens


@dataclass(frozen=True, slots=True)
class Server:
    """Somebody who answers as OpenAI does."""

    url: str
    model: str

    def ask(self, path: str, **fields: Any) -> Any:
        """The answer, or the events of one that is streamed. Raises HTTPError for an error."""
        with self._open(path, fields) as response:
            text = response.read().decode()
        if not fields.get("stream"):
            return json.loads(text)
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        expect(events.pop(), "[DONE]", "the last event")
        return [json.loads(event) for event in events]

    def leave(self, path: str, **fields: Any) -> None:
        """Go after the first line of the answer."""
        with self._open(path, fields) as response:
            response.readline()

    def _open(self, path: str, fields: dict[str, Any]) -> Any:
        body = json.dumps({"model": self.model, "temperature": 0, **fields}).encode()
        request = Request(f"{self.url}{path}", body, {"content-type": "application/json"})
        return urlopen(request, timeout=LIMIT_S)


def cases(setting: Setting) -> Iterator[Result]:
    """What is asked through the gateway, and of the service itself beside it."""
    direct = Server(setting.url, setting.model)
    try:
        with _gateway(setting) as url:
            through = Server(url, setting.model)
            for name, check in CHECKS.items():
                yield judged(f"smg: {name}", lambda check=check: check(through, direct))
    except Faulty as error:
        yield Result("smg: starts", str(error))


def _check_chat(through: Server, direct: Server) -> None:
    fields = {"messages": _QUESTION, "max_tokens": LENGTH, "logprobs": True, "top_logprobs": 2}
    told, wanted = through.ask(CHAT, **fields), direct.ask(CHAT, **fields)
    expect(_prompt_tokens(told), _prompt_tokens(wanted), "tokens of the prompt")
    expect(_message(told), _message(wanted), "answer")
    expect(_tokens(told), _tokens(wanted)[:-1], "tokens")  # the gateway does not tell the last
    expect("".join(token for token, _ in _tokens(told)), _message(told), "tokens' text")


def _check_stream(through: Server, direct: Server) -> None:
    fields = {"messages": _QUESTION, "max_tokens": LENGTH}
    usage = {"include_usage": True}
    events = through.ask(CHAT, **fields, stream=True, stream_options=usage)
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    whole = direct.ask(CHAT, **fields)
    expect(text, _message(whole), "answer")
    expect(choices[-1]["finish_reason"], "stop", "end")
    expect(_prompt_tokens(events[-1]), _prompt_tokens(whole), "tokens of the prompt")


def _check_completion(through: Server, direct: Server) -> None:
    fields = {"prompt": "The sky is", "max_tokens": LENGTH, "ignore_eos": True}
    told, wanted = (server.ask(COMPLETIONS, **fields) for server in (through, direct))
    for part in ("text", "finish_reason"):
        expect(told["choices"][0][part], wanted["choices"][0][part], part)
    expect(told["usage"]["completion_tokens"], LENGTH, "tokens")


def _check_choices(through: Server, direct: Server) -> None:
    fields = {"messages": _QUESTION, "n": 2, "max_tokens": LENGTH, "temperature": 1, "seed": 1}
    told, wanted = (server.ask(CHAT, **fields)["choices"] for server in (through, direct))
    expect([choice["index"] for choice in told], [0, 1], "choices")
    texts = [choice["message"]["content"] for choice in told]
    expect(texts, [choice["message"]["content"] for choice in wanted], "answers")
    expect(len(set(texts)), 2, "different answers")


def _check_stop(through: Server, direct: Server) -> None:
    whole = _message(direct.ask(CHAT, messages=_QUESTION, max_tokens=LENGTH))
    before, stop, _ = whole.partition("France")
    expect(stop, "France", "the stop string in an answer without one")
    told = through.ask(CHAT, messages=_QUESTION, max_tokens=LENGTH, stop=[stop])
    expect(told["choices"][0]["finish_reason"], "stop", "end")
    expect(_message(told), before, "answer")


def _check_refusal(through: Server, _: Server) -> None:
    try:
        through.ask(CHAT, messages=_QUESTION, response_format={"type": "json_object"})
    except HTTPError as error:
        expect(error.code, 400, "status")
        expect("json_schema is not supported" in error.read().decode(), True, "a reason is told")
    else:
        raise Faulty("it was not refused")


def _check_leaving(through: Server, direct: Server) -> None:
    """That nothing is left is looked at when all clients are done."""
    for _ in range(4):
        through.leave(COMPLETIONS, prompt="One,", max_tokens=4000, ignore_eos=True, stream=True)


_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHECKS = {
    "a chat": _check_chat,
    "a streamed chat": _check_stream,
    "a completion": _check_completion,
    "choices": _check_choices,
    "a stop string": _check_stop,
    "what is not served": _check_refusal,
    "leaving": _check_leaving,
}


def _message(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def _prompt_tokens(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens"])


def _tokens(answer: Any) -> list[tuple[str, list[str]]]:
    """Each token with the best ones beside it."""
    return [
        (each["token"], [top["token"] for top in each["top_logprobs"]])
        for each in answer["choices"][0]["logprobs"]["content"]
    ]


@contextmanager
def _gateway(setting: Setting) -> Iterator[str]:
    """The URL of a gateway before the service. Raises Faulty if it does not come to serve it."""
    port, metrics_port = _free_port(), _free_port()
    command = [venv("smg", [pinned("smg")]) / "smg", "launch", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(metrics_port)]
    command += ["--worker-urls", f"grpc://{setting.grpc}"]
    with (setting.scratch / "smg.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                _await(Server(url, setting.model), process)
            except Faulty as error:
                end = (setting.scratch / "smg.log").read_text()[-2000:]
                raise Faulty(f"{error}\n{end}") from error
            yield url
        finally:
            process.kill()
            process.wait()


def _await(gateway: Server, process: subprocess.Popen[bytes]) -> None:
    """Raises Faulty if it ends instead, or takes too long."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if (status := process.poll()) is not None:
            raise Faulty(f"it ended with status {status}")
        try:
            gateway.ask(COMPLETIONS, prompt="a", max_tokens=1)
        except OSError:  # nobody listens, or an answer that is none
            time.sleep(0.2)
        else:
            return
    raise Faulty(f"it did not serve the model within {START_S:.0f} s")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
