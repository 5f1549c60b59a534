"""`cadenza chat`, with a server that says what the test wants."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cadenza.cli import chat, service_client
from cadenza.cli.main import main


def event(content: str | None = None, finish_reason: str | None = None) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
WHOLE = (event(""), event("It is "), event("Paris."), event(None, "stop"), DONE)


class Service:
    """Answers with `parts`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.parts = 200, list(WHOLE)
        self.asked: list[Any] = []
        self.headers: list[Any] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                service.asked.append((self.path, json.loads(body)))
                service.headers.append(self.headers)
                self.send_response(service.status)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # some clients have heard enough
                    for part in service.parts:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def said(self) -> list[list[tuple[str, str]]]:
        """The messages of each request."""
        return [
            [(message["role"], message["content"]) for message in body["messages"]]
            for _, body in self.asked
        ]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def talk(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """What `cadenza chat` writes to standard output and error, when it ends with `status`."""
    with pytest.raises(SystemExit) as left:
        main(("chat", *arguments))
    said = capsys.readouterr()
    assert left.value.code == status, said
    return said.out, said.err


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str | BaseException]:
    """What a person at a terminal types; then Ctrl-D."""
    typed: list[str | BaseException] = []

    def read(prompt: str) -> str:
        line = typed.pop(0) if typed else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(sys, "stdin", Terminal())
    return typed


def test_one_question_has_one_answer(capsys, service: Service, monkeypatch):
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", "s3cret")

    out, error = talk(capsys, "Which capital?", "--server", f"{service.url}/v1")

    assert (out, error) == ("It is Paris.\n", "")
    [(path, body)] = service.asked
    assert path == "/v1/chat/completions"
    assert body == {"stream": True, "messages": [{"role": "user", "content": "Which capital?"}]}
    assert service.headers[0]["authorization"] is None, "who chats need not administer"


def test_options_reach_the_service(capsys, service: Service):
    flags = ("--model", "m", "--system", "Be brief.", "--max-tokens", "9", "--temperature", "0")
    talk(capsys, "x", "--seed", "7", *flags, "--server", service.url)

    [(_, body)] = service.asked
    assert service.said == [[("system", "Be brief."), ("user", "x")]]
    del body["messages"]
    expected = {"stream": True, "model": "m", "max_tokens": 9, "temperature": 0.0, "seed": 7}
    assert body == expected


def test_a_pipe_is_one_question(capsys, service: Service, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    assert talk(capsys, "--server", service.url)[0] == "It is Paris.\n"
    assert service.said == [[("user", "two\nlines\n")]]

    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert "nothing to ask" in talk(capsys, "--server", service.url, status=2)[1]


def test_a_talk_remembers_until_it_is_told_to_forget(capsys, service: Service, lines):
    lines += ["one", "", " two ", "/reset", "three", "/bogus"]

    out, _ = talk(capsys, "--server", service.url)

    answer = ("assistant", "It is Paris.")
    assert service.said == [
        [("user", "one")],
        [("user", "one"), answer, ("user", "two")],
        [("user", "three")],
    ]
    assert out.count("It is Paris.\n") == 3
    assert out.count("/reset forgets") == 2, "at the beginning, and for what is no command"


def test_exit_ends_the_talk(capsys, service: Service, lines):
    lines += ["/exit", "never"]
    talk(capsys, "--server", service.url)
    assert service.asked == []


def test_ctrl_c_at_the_prompt_does_not_leave(capsys, service: Service, lines):
    lines += [KeyboardInterrupt(), "one"]
    assert "Ctrl-D ends the talk" in talk(capsys, "--server", service.url)[0]
    assert len(service.asked) == 1


def test_ctrl_c_stops_an_answer_and_keeps_what_was_told(
    capsys, service: Service, lines, monkeypatch
):
    lines += ["one", "two"]
    original = chat.write
    monkeypatch.setattr(chat, "write", lambda text: interrupted(text))

    def interrupted(text: str) -> None:
        original(text)
        if text == "It is ":
            monkeypatch.setattr(chat, "write", original)
            raise KeyboardInterrupt

    talk(capsys, "--server", service.url)

    assert service.said[1] == [("user", "one"), ("assistant", "It is "), ("user", "two")]


def test_ctrl_c_of_a_single_question_is_status_130(capsys, service: Service, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.Talk, "ask", interrupted)
    talk(capsys, "x", "--server", service.url, status=130)


REFUSED = b'{"error": {"message": "temperature must be between 0 and 100."}}'


def test_a_refusal_is_told_and_the_talk_goes_on(capsys, service: Service, lines):
    service.status, service.parts = 400, [REFUSED]
    lines += ["one", "two"]

    _, error = talk(capsys, "--server", service.url)

    assert error == "cadenza: temperature must be between 0 and 100.\n" * 2
    assert service.said == [[("user", "one")], [("user", "two")]], "what was refused is forgotten"


def test_a_refusal_of_a_single_question_is_status_2(capsys, service: Service):
    service.status, service.parts = 400, [REFUSED]
    assert "temperature" in talk(capsys, "x", "--server", service.url, status=2)[1]


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ([b'data: {"error": {"message": "The engine is gone."}}\n\n'], "The engine is gone."),
        ([b'data: {"error": 7}\n\n'], "the service failed"),
        ([], "the service broke off"),
        ([b"data: [1]\n\n"], "the service sent an event that is none of ours"),
        ([b"data: {\n\n"], "the service sent an event that is none of ours"),
        ([b"data: " + b"[" * 5000 + b"\n\n"], "the service sent an event that is none of ours"),
    ],
)
def test_a_stream_that_is_cut_is_status_1(capsys, service: Service, rest: Any, message: str):
    service.parts = [event("It "), *rest]

    out, error = talk(capsys, "x", "--server", service.url, status=1)

    assert out == "It \n"
    assert error == f"cadenza: {message}\n"


def test_comments_and_other_fields_are_no_events(capsys, service: Service):
    service.parts = [b": keep-alive\n\n", b"event: x\n", *WHOLE]
    assert talk(capsys, "x", "--server", service.url)[0] == "It is Paris.\n"


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": None, "usage": {"total_tokens": 3}, "error": None},
        {"choices": [{}]},
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"reasoning": "hm", "tool_calls": None}}]},
    ],
    ids=json.dumps,
)
def test_other_services_leave_out_what_has_no_text(capsys, service: Service, part: Any):
    service.parts = [b"data: " + json.dumps(part).encode() + b"\n\n", *WHOLE]
    assert talk(capsys, "x", "--server", service.url) == ("It is Paris.\n", "")


@pytest.mark.parametrize(
    "part",
    [
        {"choices": 1},
        {"choices": {"delta": {"content": "x"}}},
        {"choices": ["x"]},
        {"choices": [None]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": [1]}]},
        {"choices": [{"delta": {"content": 1}}]},
        {"choices": [{"delta": {"content": ["x"]}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": "x"}]}}]},
    ],
    ids=json.dumps,
)
def test_an_event_of_another_form_cuts_the_stream(capsys, service: Service, part: Any):
    service.parts = [event("It "), b"data: " + json.dumps(part).encode() + b"\n\n", *WHOLE]

    out, error = talk(capsys, "x", "--server", service.url, status=1)

    assert out == "It \n"
    assert error.startswith("cadenza: the service sent an event that is none of ours: ")
    assert error.count("\n") == 1


def test_text_that_no_output_can_hold_is_written_as_far_as_it_can(
    capsys, service: Service, monkeypatch
):
    service.parts = [event("a\ud83d"), event("ü"), DONE]
    for encoding, written in (("utf-8", "a?ü\n"), ("ascii", "a??\n")):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            with pytest.raises(SystemExit) as left:
                main(("chat", "x", "--server", service.url))
        assert left.value.code == 0
        assert out.buffer.getvalue().decode(encoding) == written


def test_an_answer_that_is_cut_for_its_length_says_so(capsys, service: Service):
    service.parts = [event("It is"), event(None, "length"), DONE]
    out, error = talk(capsys, "x", "--server", service.url)
    assert out == "It is\n"
    assert "all the tokens" in error


def test_an_empty_answer_is_an_answer(capsys, service: Service, lines):
    lines += ["one", "two"]
    service.parts = [event(None, "stop"), DONE]
    talk(capsys, "--server", service.url)
    assert service.said[1] == [("user", "one"), ("assistant", ""), ("user", "two")]


def test_what_a_model_says_does_not_steer_a_terminal(capsys, service: Service, lines, monkeypatch):
    service.parts = [event("a\x1b[2J\tb\x9b\r\n"), DONE]
    lines += ["one"]
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit):
            main(("chat", "--server", service.url))
    assert "a[2J\tb\n" in terminal.getvalue()

    assert talk(capsys, "x", "--server", service.url)[0] == "a\x1b[2J\tb\x9b\r\n"


STEERS = "no\x1b[2J\x9b\x07 more"


@pytest.mark.parametrize("is_stream", [True, False])
def test_neither_does_what_a_service_refuses_with(
    capsys, service: Service, monkeypatch, is_stream: bool
):
    told = json.dumps({"error": {"message": STEERS}}).encode()
    service.status, service.parts = 400, [told]
    if is_stream:
        service.status, service.parts = 200, [b"data: " + told + b"\n\n"]
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit):
            main(("chat", "x", "--server", service.url))
    assert terminal.getvalue() == "cadenza: no[2J more\n"

    error = talk(capsys, "x", "--server", service.url, status=1 if is_stream else 2)[1]
    assert error == f"cadenza: {STEERS}\n", "a file is none"


@pytest.mark.parametrize(
    "body", [b"[" * 5000, b'{"error": null}', b'{"error": ["x"]}', b"\xff", b""]
)
def test_a_refusal_in_other_words_is_told(capsys, service: Service, body: bytes):
    service.status, service.parts = 500, [body] if body else []
    error = talk(capsys, "x", "--server", service.url, status=2)[1]
    assert error == (
        f"cadenza: {service.url} answers with HTTP status 500, and not as Cadenza does\n"
    )


def test_who_does_not_answer_is_told_the_time_that_it_had(capsys, monkeypatch):
    monkeypatch.setattr(service_client, "_STREAM_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = talk(capsys, "x", "--server", url, status=2)[1]
    assert error == f"cadenza: {url} does not answer within 0.05 s\n"


def test_nobody_who_answers(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = talk(capsys, "x", "--server", f"http://127.0.0.1:{port}", status=2)[1]
    assert f"nothing answers at http://127.0.0.1:{port}" in error
