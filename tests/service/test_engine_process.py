"""Starting and ending the engine process, with small scripts in its place."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import start_engine
from cadenza.wire.codec import encode
from cadenza.wire.messages import EngineConfig, Start

LEAVES_ON_EOF = "import socket,sys; s=socket.socket(fileno=int(sys.argv[2])); s.recv(1<<16)"
IGNORES_EVERYTHING = (
    "import signal,sys,os,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "os.write(int(sys.argv[2]), b'x'); time.sleep(60)"
)
DIES = "import os; os.abort()"
TELLS_ITS_SPIN_COUNT = (
    "import os,sys; os.write(int(sys.argv[2]), os.environ['GOMP_SPINCOUNT'].encode())"
)


def script(source: str) -> list[str]:
    return [sys.executable, "-P", "-c", source]


def test_the_engine_leaves_when_its_connection_closes(run):
    engine = start_engine(script(LEAVES_ON_EOF))
    assert engine.exit_status is None
    engine.connection.close()

    assert run(engine.stop()) == 0
    assert engine.describe_exit() == "exited with status 0"


def test_a_shutdown_message_is_enough(run):
    async def main():
        engine = start_engine(script(LEAVES_ON_EOF))
        client = await EngineClient.connect(engine.connection)
        client.close()
        await client.lost()
        return await engine.stop()

    assert run(main()) == 0


def test_a_stubborn_engine_is_killed(run):
    engine = start_engine(script(IGNORES_EVERYTHING))
    engine.connection.recv(1)  # it ignores SIGTERM by now

    assert run(engine.stop(grace_s=0.05)) == -signal.SIGKILL
    assert engine.describe_exit() == "was ended by SIGKILL"
    engine.connection.close()


def test_an_engine_that_was_started_for_nothing_is_ended_at_once():
    engine = start_engine(script(IGNORES_EVERYTHING))
    engine.connection.recv(1)  # it ignores SIGTERM by now

    engine.end()
    engine.end()

    assert engine.describe_exit() == "was ended by SIGKILL"


def test_an_engine_that_dies_is_noticed_by_its_client(run):
    async def main():
        engine = start_engine(script(DIES))
        client = await EngineClient.connect(engine.connection)
        await client.lost()
        assert client.failure is not None
        return await engine.wait()

    assert run(main()) == -signal.SIGABRT


@pytest.mark.parametrize(
    ("number", "by_others"),
    [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGSEGV, False)],
)
def test_who_ended_it_is_known(run, number: signal.Signals, by_others: bool):
    """A fault of its own is told from what the system, or an operator, does to it."""
    engine = start_engine(script(LEAVES_ON_EOF))
    assert not engine.was_ended_by_others
    os.kill(engine.pid, number)

    assert run(engine.wait()) == -number
    assert engine.was_ended_by_others == by_others
    engine.connection.close()


def test_what_we_end_no_other_has(run):
    killed, left = (start_engine(script(LEAVES_ON_EOF)) for _ in range(2))
    left.connection.close()

    assert run(killed.kill()) == -signal.SIGKILL
    assert run(left.wait()) == 0
    assert not killed.was_ended_by_others
    assert not left.was_ended_by_others
    killed.connection.close()


DIES_IN_A_HOOK = """
import os, sys, types
def build_engine(channel, config, guard, blame):
    blame.enter(blame.number_of("mine", "order_admissions"), 1.0)
    os._exit(3)
sys.modules["cadenza.engine.build"] = types.ModuleType("build")
sys.modules["cadenza.engine.build"].build_engine = build_engine
from cadenza.engine.main import main
main(sys.argv[1:])
"""


def test_the_hook_that_an_engine_died_in_has_a_name(run):
    engine = start_engine(script(DIES_IN_A_HOOK))
    assert engine.hook_under_way is None
    engine.connection.sendall(encode(Start(EngineConfig(model="/m.gguf"))))

    assert run(engine.wait()) == 3
    assert engine.hook_under_way == "hook order_admissions of policy mine"
    engine.connection.close()


@pytest.mark.parametrize("operators", [None, "77"])
def test_the_engines_threads_spin_shortly_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, run, operators: str | None
):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if operators:
        monkeypatch.setenv("GOMP_SPINCOUNT", operators)
    engine = start_engine(script(TELLS_ITS_SPIN_COUNT))

    assert engine.connection.recv(100).decode() == (operators or "1000")

    run(engine.wait())
    engine.connection.close()
