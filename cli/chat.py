"""`cadenza chat`: a talk with a running service, in a terminal or a pipe."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ChatOptions, ServerOptions
from cadenza.cli.output import complain, write
from cadenza.cli.service_client import Answer, ServiceClient, StreamCut

_PATH = "/v1/chat/completions"
_PROMPT = "> "
_HELP = "/reset forgets what was said, /exit or Ctrl-D ends the talk, Ctrl-C stops an answer\n"


def run(server: ServerOptions, question: str | None, options: ChatOptions) -> int:
    """Ask once, or for as long as a person at a terminal wants to.

    Returns 0, or 1 if the one answer broke off.

    Raises:
        UsageError: the service does not answer or refuses, or there is nothing to ask.
        OutputError: the answer cannot be written.
    """
    talk = Talk(ServiceClient(server, as_administrator=False), options)
    if question is None and sys.stdin.isatty():
        return _converse(talk)
    question = sys.stdin.read() if question is None else question
    if not question.strip():
        raise UsageError("there is nothing to ask")
    try:
        talk.ask(question)
    except StreamCut as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        return 130  # as from a program that Ctrl-C ends
    return 0


@dataclass(slots=True)
class Talk:
    """What was said so far."""

    client: ServiceClient
    options: ChatOptions
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str) -> None:
        """Write the answer as it comes, and keep it with the question, unless there is none.

        Raises:
            UsageError, StreamCut, OutputError: as `ServiceClient.stream` and `write`. An event that
                is none of a chat cuts a stream too.
        """
        asked = [*self.messages, {"role": "user", "content": question}]
        answer: list[str] = []
        is_whole = False
        try:
            with closing(self.client.stream(_PATH, self._body(asked))) as events:
                for event in events:
                    self._tell(event, answer)
            is_whole = True
        finally:
            if answer or is_whole:
                self.messages = [*asked, {"role": "assistant", "content": "".join(answer)}]
            if answer and not answer[-1].endswith("\n"):
                write("\n")

    def _tell(self, event: Answer, answer: list[str]) -> None:
        for choice in _choices(event):
            if text := choice.text:
                answer.append(text)
                write(text)
            if choice.finish_reason == "length":
                sys.stderr.write("\n(the answer is cut: it has all the tokens that it may have)")
                sys.stderr.flush()

    def _body(self, messages: list[dict[str, str]]) -> bytes:
        options = asdict(self.options)
        system = options.pop("system")
        before = [] if system is None else [{"role": "system", "content": system}]
        body: dict[str, Any] = {"stream": True, "messages": [*before, *messages]}
        body |= {name: value for name, value in options.items() if value is not None}
        return json.dumps(body).encode()


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: Any = None

    @property
    def text(self) -> str | None:
        return None if self.delta is None else self.delta.content


class _Event(msgspec.Struct):
    """What of an event is read, all of which other services leave out or null at times."""

    choices: list[_Choice] | None = None


def _choices(event: Answer) -> list[_Choice]:
    try:
        return msgspec.convert(event, _Event).choices or []
    except msgspec.ValidationError as error:
        raise StreamCut(f"the service sent an event that is none of ours: {error}") from error


def _converse(talk: Talk) -> int:
    with suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited, and come again
    write(_HELP)
    while True:
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            write("\n")
            return 0
        except KeyboardInterrupt:
            write("\n(Ctrl-D ends the talk)\n")
            continue
        match line:
            case "":
                pass
            case "/exit":
                return 0
            case "/reset":
                talk.messages = []
            case _ if line.startswith("/"):
                write(_HELP)
            case _:
                _answer(talk, line)


def _answer(talk: Talk, line: str) -> None:
    """One answer; what goes wrong is told, and the talk goes on."""
    try:
        talk.ask(line)
    except (UsageError, StreamCut) as error:
        complain(error)
    except KeyboardInterrupt:
        write("\n")
