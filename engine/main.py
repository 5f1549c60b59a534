"""The engine process from its first message to its exit status."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import signal
import socket
from collections.abc import Sequence

import structlog

from cadenza.checkpoints.errors import CheckpointError
from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.process import call_oneself
from cadenza.policies.blame import SIZE, Blame
from cadenza.policies.hook_guard import SignalGuard
from cadenza.policies.profile import ProfileError
from cadenza.wire.codec import FrameError
from cadenza.wire.heap import freeze_heap
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import EngineConfig, Failed, Progress, Shutdown, Start

_log = structlog.get_logger(__name__)

OK, FAILED, BAD_CONFIG = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the front process at the other end of the socket `--fd`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cadenza.engine")
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument("--blame-fd", type=int, help="memory that tells which hook is running")
    arguments = parser.parse_args(argv)
    channel = Channel(socket.socket(fileno=arguments.fd))
    blame = None if arguments.blame_fd is None else Blame(mmap.mmap(arguments.blame_fd, SIZE))
    # Ctrl-C is for the front process, which tells us what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _serve(channel, blame)
    except ChannelClosed:
        return OK  # the front process is gone; there is nobody to serve
    except FrameError as error:
        _log.error("the front process cannot be understood", error=str(error))
        return FAILED
    finally:
        channel.close()


def _serve(channel: Channel, blame: Blame | None) -> int:
    configure_logging()
    try:
        # Seconds, for torch, in which the front process finds out what is to be loaded
        channel.send(Progress("libraries"))
        from cadenza.engine.build import build_engine

        config = _await_start(channel)
        if config is None:
            return OK
        call_oneself("cadenza-engine")
        configure_logging(config.log_level, json=config.log_json)
        with SignalGuard() as guard:
            try:
                loop = build_engine(channel, config, guard, blame)
            except (CheckpointError, ProfileError, ValueError, MemoryError) as error:
                return _give_up(channel, str(error), BAD_CONFIG)
            freeze_heap()
            loop.run()
    except (ChannelClosed, FrameError):
        raise
    except Exception:
        _log.exception("engine failed")
        return _give_up(channel, "The engine failed; its log says why.", FAILED)
    return OK


def _await_start(channel: Channel) -> EngineConfig | None:
    while True:
        for message in channel.receive(None):
            match message:
                case Start(config):
                    return config
                case Shutdown():
                    return None


def _give_up(channel: Channel, message: str, status: int) -> int:
    with contextlib.suppress(ChannelClosed):
        channel.send(Failed(message))
        channel.drain()
    return status
