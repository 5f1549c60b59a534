"""The runner of `make clients` counts truly, and its strict models refuse what is wrong."""

from __future__ import annotations

import json
import subprocess

import httpx2
import pydantic
import pytest
import tokenizers

from tests.clients import smg
from tests.clients.__main__ import main, report
from tests.clients.case import ROOT, Faulty, Result, expect, judged, run
from tests.clients.strict_models import WHOLE, validated_client
from tests.clients.tokenizer_folder import write_tokenizer
from tests.clients.venvs import pinned


@pytest.mark.parametrize(
    ("results", "counts", "status"),
    [
        ([Result("a"), Result("b")], "2 passed, 0 failed, 0 skipped", 0),
        ([Result("a"), Result("b", "not here", is_skip=True)], "1 passed, 0 failed, 1 skipped", 0),
        ([Result("a"), Result("b", "wrong")], "1 passed, 1 failed, 0 skipped", 1),
        ([Result("b", "not here", is_skip=True)], "0 passed, 0 failed, 1 skipped", 1),
    ],
)
def test_the_last_line_counts(capsys, results: list[Result], counts: str, status: int):
    assert report(results) == status
    assert capsys.readouterr().out.splitlines()[-1] == f"clients: {counts}"


def test_whatever_a_judge_raises_is_a_failure():
    assert judged("a", lambda: None).outcome == "passed"
    assert judged("a", lambda: expect(1, 2, "tokens")).why == "Faulty: tokens: 1 and not 2"
    assert judged("a", lambda: {}["x"]).outcome == "failed"


def test_a_command_that_fails_says_how():
    assert run(["sh", "-c", "echo $WORD"], WORD="well") == "well\n"
    with pytest.raises(Faulty, match=r"exit status 3\n.*oh"):
        run(["sh", "-c", "echo oh >&2; exit 3"])


def test_a_gateway_that_ends_is_not_waited_for():
    with subprocess.Popen(["sh", "-c", "exit 3"]) as process:
        process.wait()
        with pytest.raises(Faulty, match="it ended with status 3"):
            smg._await(smg.Server("http://127.0.0.1:9", "m"), process)


def test_an_unknown_client_is_refused(capsys):
    assert main(["curl"]) == 2
    assert "There is no client curl" in capsys.readouterr().out


def test_versions_are_those_of_the_constraints_and_of_the_page():
    page = (ROOT / "docs" / "clients.md").read_text()
    for distribution, shown in {
        "openai": "openai-python",
        "prometheus-client": "prometheus_client",
        "guidellm": "guidellm",
        "aiperf": "aiperf",
        "smg": "smg",
    }.items():
        version = pinned(distribution).removeprefix(f"{distribution}==")
        assert f"\n| {shown} | {version} |" in page


CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "x", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
}
CHUNK = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "text": "x", "logprobs": None, "finish_reason": None}],
}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}
CHAT_PATH, COMPLETIONS_PATH = WHOLE


def answer(path: str, status: int, content: str, kind: str = "application/json") -> None:
    """Let a validated client read this."""
    client = validated_client()
    client._transport = httpx2.MockTransport(
        lambda _: httpx2.Response(status, text=content, headers={"content-type": kind})
    )
    client.post(f"http://server{path}")


def stream(*events: str) -> None:
    told = "".join(f"data: {event}\n\n" for event in events)
    answer(COMPLETIONS_PATH, 200, told, "text/event-stream; charset=utf-8")


def test_right_answers_are_taken():
    answer(CHAT_PATH, 200, json.dumps(CHAT))
    answer(CHAT_PATH, 400, json.dumps(ERROR))
    stream(json.dumps(CHUNK), "[DONE]")


def test_wrong_answers_are_refused():
    wrong = (pydantic.ValidationError, AssertionError)
    for told in (
        {**CHAT, "created": "1"},
        {**CHAT, "choices": [{**CHAT["choices"][0], "finish_reason": "ended"}]},
        {**CHAT, "choices": [{**CHAT["choices"][0], "further": 1}]},
        {name: value for name, value in CHAT.items() if name != "model"},
    ):
        with pytest.raises(wrong):
            answer(CHAT_PATH, 200, json.dumps(told))
    with pytest.raises(wrong):
        answer(CHAT_PATH, 400, json.dumps({"error": {"message": "m"}}))
    with pytest.raises(wrong):
        stream(json.dumps({**CHUNK, "object": "text"}), "[DONE]")
    with pytest.raises(wrong):
        stream(json.dumps(CHUNK))


def test_the_tokenizer_is_written_as_a_folder(tmp_path):
    write_tokenizer(tmp_path)
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert written.encode("<|im_start|>Hello").ids == [1, 19556]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in config["chat_template"]
