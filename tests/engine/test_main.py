"""The engine process's exit statuses and last words, in a thread of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import ModuleType

import pytest

from cadenza.checkpoints.errors import CheckpointError
from cadenza.engine import main as engine_main
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import EngineConfig, Failed, Progress, Shutdown, Start, ToEngine, ToFront


class Loop:
    """Stands for the engine's loop."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


def raises(error: Exception) -> Callable[..., Loop]:
    def raise_it(*_: object) -> Loop:
        raise error

    return raise_it


def run_engine(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Loop], *words: ToEngine):
    """Exit status, and what the front process was told."""
    module = ModuleType("cadenza.engine.build")
    module.build_engine = build  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "cadenza.engine.build", module)
    monkeypatch.setattr(engine_main.signal, "signal", lambda *_: None)  # not in a thread
    monkeypatch.setattr(engine_main, "configure_logging", lambda *_, **__: None)
    ours, theirs = socket.socketpair()
    ours.sendall(b"".join(encode(word) for word in words))
    ours.shutdown(socket.SHUT_WR)
    statuses: list[int] = []
    thread = threading.Thread(
        target=lambda: statuses.append(engine_main.main(["--fd", str(theirs.detach())]))
    )
    thread.start()
    thread.join(10)
    told: list[ToFront] = []
    reader: FrameReader[ToFront] = FrameReader(ToFront)
    while data := ours.recv(1 << 16):
        told += reader.feed(data)
    ours.close()
    return statuses[0], [word for word in told if not isinstance(word, Progress)]


START = Start(EngineConfig(model="/m.gguf"))


@pytest.mark.parametrize("error", [CheckpointError("m.gguf: broken."), ValueError("bad size.")])
def test_what_the_operator_can_mend_is_told_word_for_word(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    status, told = run_engine(monkeypatch, raises(error), START)

    assert status == engine_main.BAD_CONFIG
    assert told == [Failed(str(error))]


@pytest.mark.parametrize("error", [ValueError("operands of /secret"), RuntimeError("/secret")])
def test_a_failure_while_serving_keeps_its_details_to_the_log(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    status, told = run_engine(monkeypatch, lambda *_: Loop(raises(error)), START)

    assert status == engine_main.FAILED
    assert told == [Failed("The engine failed; its log says why.")]


@pytest.mark.parametrize("words", [[Shutdown()], []])
def test_an_engine_that_is_not_wanted_leaves_quietly(
    monkeypatch: pytest.MonkeyPatch, words: list[ToEngine]
):
    status, told = run_engine(monkeypatch, raises(AssertionError("not built")), *words)

    assert status == engine_main.OK
    assert told == []
