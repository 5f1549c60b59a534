"""The engine's loop over a real socketpair, with the fake runner in place of a model."""

import socket
import threading
from collections.abc import Iterator

import pytest

from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.loop import EngineLoop
from cadenza.testing import Driver, oracle
from cadenza.wire.arrays import pack_ids, view_ids, view_requests
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Failed,
    Finish,
    Finished,
    Shutdown,
    Step,
    Submit,
    ToEngine,
    ToFront,
)


class Front:
    """The other end of the channel, blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._reader: FrameReader[ToFront] = FrameReader(ToFront)
        self._received: list[ToFront] = []

    def send(self, *messages: ToEngine) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def receive(self) -> ToFront:
        while not self._received:
            data = self.socket.recv(1 << 16)
            assert data, "the engine closed the channel"
            self._received += self._reader.feed(data)
        return self._received.pop(0)

    def until_finished(self, *requests: int) -> dict[int, list[int]]:
        """Tokens by request, once all of these have ended."""
        tokens: dict[int, list[int]] = {}
        left = set(requests)
        while left:
            message = self.receive()
            assert isinstance(message, Step)
            rows = zip(
                view_requests(message.requests).tolist(),
                view_ids(message.tokens).tolist(),
                message.finished,
                strict=True,
            )
            for request, token, finished in rows:
                tokens.setdefault(request, []).append(token)
                if finished != Finished.NOT:
                    left.remove(request)
        return tokens


class Engine:
    """A loop in a thread, and what it ended with."""

    def __init__(self, sock: socket.socket, driver: Driver) -> None:
        self.submits: dict[int, Submit] = {}
        self.error: BaseException | None = None
        self._loop = EngineLoop(Channel(sock), driver.scheduler, driver.runner, self.submits)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def pair(driver: Driver) -> Iterator[tuple[Front, Engine]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    engine = Engine(theirs, driver)
    yield Front(ours), engine
    ours.close()
    engine.join()
    theirs.close()


def submit(request: int, prompt: list[int], max_tokens: int = 4) -> Submit:
    return Submit(request=request, prompt=pack_ids(prompt), max_tokens=max_tokens)


def test_requests_are_served_and_forgotten(pair: tuple[Front, Engine]):
    front, engine = pair
    front.send(submit(1, [5, 6]), submit(2, [7], max_tokens=9))

    tokens = front.until_finished(1, 2)

    assert tokens == {1: oracle([5, 6], 4), 2: oracle([7], 9)}
    assert engine.submits == {}


def test_counters_return_to_idle(pair: tuple[Front, Engine]):
    front, _ = pair
    front.send(submit(1, [5, 6], max_tokens=1))

    steps = []
    while not steps or steps[-1].counters.generated_tokens == 0:
        message = front.receive()
        assert isinstance(message, Step)
        steps.append(message)

    assert steps[0].counters.running == 1
    assert steps[-1].counters.running == steps[-1].counters.waiting == 0


def test_a_cancel_is_followed_by_a_frame_with_the_counters_at_rest(pair: tuple[Front, Engine]):
    front, engine = pair
    front.send(submit(1, [5, 6], max_tokens=60))
    front.receive()
    front.send(Cancel(1), Cancel(1), Cancel(77))

    while (message := front.receive()).counters.running:  # type: ignore[union-attr]
        assert isinstance(message, Step)

    assert engine.submits == {}


def test_a_stop_string_ends_a_request_without_a_further_word(pair: tuple[Front, Engine]):
    front, _ = pair
    front.send(submit(1, [5, 6], max_tokens=60))
    front.receive()
    front.send(Finish(1, tokens_kept=1), submit(2, [8]))

    assert front.until_finished(2)[2] == oracle([8], 4)


def test_a_request_that_never_fits_fails_alone(pair: tuple[Front, Engine]):
    front, _ = pair
    front.send(submit(1, [1] * 64), submit(2, [8]))

    failed = front.receive()

    assert isinstance(failed, Failed)
    assert failed.request == 1
    assert "64 tokens leave no room" in failed.message
    assert front.until_finished(2)[2] == oracle([8], 4)


def test_everything_a_submit_says_reaches_the_scheduler(pair: tuple[Front, Engine]):
    front, _ = pair
    tokens = oracle([5, 6], 9)
    resumed = Submit(request=1, prompt=pack_ids([5, 6]), emitted=pack_ids(tokens[:3]), max_tokens=9)
    stopped = Submit(request=2, prompt=pack_ids([5, 6]), max_tokens=9, stop_token_ids=(tokens[4],))
    front.send(resumed, stopped)

    assert front.until_finished(1, 2) == {1: tokens[3:], 2: tokens[:5]}


def test_shutdown_ends_the_loop(pair: tuple[Front, Engine]):
    front, engine = pair
    front.send(submit(1, [5, 6], max_tokens=60), Shutdown())

    engine.join()

    assert engine.error is None


def test_the_loop_ends_when_the_front_process_is_gone(pair: tuple[Front, Engine]):
    front, engine = pair
    front.send(submit(1, [5, 6], max_tokens=60))
    front.socket.close()

    engine.join()

    assert isinstance(engine.error, ChannelClosed)


def test_a_front_that_does_not_read_stops_the_planning_and_loses_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    """The backlog stays near its bound, and every token arrives once the front reads."""
    monkeypatch.setattr("cadenza.engine.loop.MAX_BACKLOG_BYTES", 2000)
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.settimeout(10)
    congested = threading.Event()
    channel = Channel(theirs)
    receive = channel.receive

    def watched(timeout_s: float | None):
        if timeout_s is None and channel.backlog:
            congested.set()
        return receive(timeout_s)

    monkeypatch.setattr(channel, "receive", watched)
    loop = EngineLoop(channel, driver.scheduler, driver.runner, {})
    thread = threading.Thread(target=loop.run)
    thread.start()
    front = Front(ours)
    prompts = {request: [request] for request in range(1, 9)}
    front.send(*(submit(request, prompt, 60) for request, prompt in prompts.items()))

    assert congested.wait(10)
    assert channel.backlog < 2000 + 4000
    tokens = front.until_finished(*prompts)
    front.send(Shutdown())
    thread.join(10)

    assert tokens == {request: oracle(prompt, 60) for request, prompt in prompts.items()}
    ours.close()
    theirs.close()
