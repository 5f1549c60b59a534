"""The engine's loop over a real socketpair, with the fake runner in place of a model."""

import math
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.loop import EngineLoop
from cadenza.engine.patience import Patience
from cadenza.engine.policies import EnginePolicies
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.report import Statistics, StepReport, StepResult
from cadenza.scheduler.request import Arrival, Refused
from cadenza.testing import Driver, oracle
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.arrays import pack_ids, read_requests, view_ids
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Credit,
    Decision,
    Failed,
    Finish,
    Finished,
    PolicyConfig,
    Reprioritise,
    ResetPrefixCache,
    Resubmit,
    SetDeadline,
    Shutdown,
    Step,
    Submit,
    ToEngine,
    ToFront,
)
from tests.engine.conftest import make_plan


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
                read_requests(message.requests),
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

    def __init__(
        self, sock: socket.socket, driver: Driver, policies: EnginePolicies | None = None
    ) -> None:
        self.submits: dict[int, Submit] = {}
        self.error: BaseException | None = None
        self._loop = EngineLoop(
            Channel(sock),
            driver.scheduler,
            driver.runner,
            self.submits,
            policies or EnginePolicies(PolicyConfig()),
        )
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


def submit(request: int, prompt: list[int], max_tokens: int = 4, **fields: Any) -> Submit:
    return Submit(request=request, prompt=pack_ids(prompt), max_tokens=max_tokens, **fields)


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


def test_choices_share_a_submit_and_end_one_by_one(driver: Driver, pair: tuple[Front, Engine]):
    front, engine = pair
    driver.runner.choice_of = {5: 0, 6: 1, 7: 2}
    front.send(submit(5, [5, 6], max_tokens=9, n=3))

    tokens = front.until_finished(5, 6, 7)

    assert tokens == {5 + choice: oracle([5, 6], 9, choice) for choice in range(3)}
    assert len(set(map(tuple, tokens.values()))) == 3
    assert engine.submits == {}


def test_every_choice_of_a_refused_submit_fails(pair: tuple[Front, Engine]):
    front, engine = pair
    front.send(submit(5, [1] * 64, n=3))

    failed = [front.receive() for _ in range(3)]

    assert [message.request for message in failed] == [5, 6, 7]
    assert len({message.message for message in failed}) == 1
    assert "64 tokens leave no room" in failed[0].message
    assert engine.submits == {}
    step = front.receive()
    assert [decision.kind for decision in step.decisions] == ["refused"]


def test_a_reader_gets_what_it_takes_and_the_rest_when_it_takes_more(pair: tuple[Front, Engine]):
    front, _ = pair
    front.send(submit(1, [5, 6], max_tokens=9, credit=2))
    parked: list[Decision] = []
    tokens: list[int] = []
    while not parked:
        step = front.receive()
        tokens += view_ids(step.tokens).tolist()
        parked += [decision for decision in step.decisions if decision.kind == "parked"]
    assert tokens == oracle([5, 6], 9)[:2]

    front.send(Credit(1, tokens=7))

    assert front.until_finished(1)[1] == oracle([5, 6], 9)[2:]


def test_a_parked_request_ends_at_its_deadline(pair: tuple[Front, Engine]):
    """Long past when it arrives: nothing but the deadline wakes the loop."""
    front, engine = pair
    front.send(submit(1, [5, 6], credit=0))
    front.receive()
    front.send(SetDeadline(1, deadline_s=0.0))

    while not (step := front.receive()).requests:
        pass

    assert list(step.finished) == [Finished.DEADLINE]
    assert engine.submits == {}


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
    loop = EngineLoop(channel, driver.scheduler, driver.runner, {}, EnginePolicies(PolicyConfig()))
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


class FakeChannel:
    """Plays a script of inboxes, and notes how long the loop was ready to wait for each."""

    def __init__(self, *inboxes: list[ToEngine]) -> None:
        self._inboxes = list(inboxes)
        self.waits: list[float | None] = []
        self.sent: list[ToFront] = []
        self.backlog = 0
        self.at_receive: Callable[[], None] = lambda: None
        self.at_send: Callable[[], None] = lambda: None

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        self.waits.append(timeout_s)
        self.at_receive()
        return self._inboxes.pop(0) if self._inboxes else [Shutdown()]

    def send(self, message: ToFront) -> None:
        self.at_send()
        self.sent.append(message)


class FakeScheduler:
    """Does nothing but note what it is told; a step is due when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.has_work = False
        self.next_deadline_s = math.inf
        self.plans: list[StepPlan | None] = []
        self.outcomes: list[StepOutcome | None] = []
        self.stepped_at: list[float] = []
        self.refuses = False
        self.idle = Driver().scheduler.statistics()

    def add(self, arrival: Arrival, now_s: float) -> None:
        if self.refuses:
            raise Refused("no")
        self.calls.append(("add", arrival, now_s))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))

    def step(self, now_s: float, outcome: StepOutcome | None) -> StepResult:
        self.stepped_at.append(now_s)
        self.outcomes.append(outcome)
        plan = self.plans.pop(0) if self.plans else None
        self.has_work = plan is not None or bool(self.plans)
        if self.next_deadline_s <= now_s:
            self.next_deadline_s = math.inf
        return StepResult(NO_REPORT, plan)

    def statistics(self) -> Statistics:
        return self.idle


class FakeRunner(SteppedRunner):
    def __init__(self) -> None:
        self.outcomes: list[StepOutcome] = []

    def execute(self, plan: StepPlan) -> StepOutcome:
        nothing = np.empty(0, dtype=np.int32)
        outcome = StepOutcome(step_id=plan.step_id, tokens=nothing, failed=nothing.astype(bool))
        self.outcomes.append(outcome)
        return outcome


NO_REPORT = StepReport(
    requests=np.empty(0, dtype=np.int64),
    tokens=np.empty(0, dtype=np.int32),
    finished=np.empty(0, dtype=np.uint8),
    samples=np.empty(0, dtype=np.intp),
    admitted=np.empty(0, dtype=np.int64),
    admitted_cached=np.empty(0, dtype=np.int32),
    preempted=np.empty(0, dtype=np.int64),
    decisions=(),
)


class Stage:
    """A loop between fakes, in this thread, on a clock that only the test moves."""

    def __init__(self, *inboxes: list[ToEngine]) -> None:
        self.channel = FakeChannel(*inboxes)
        self.scheduler = FakeScheduler()
        self.runner = FakeRunner()
        self.patience: Patience | None = None
        self.submits: dict[int, Submit] = {}
        self.now_s = 100.0

    def run(self) -> None:
        channel: Any = self.channel
        scheduler: Any = self.scheduler
        policies = EnginePolicies(PolicyConfig())
        EngineLoop(
            channel,
            scheduler,
            self.runner,
            self.submits,
            policies,
            lambda: self.now_s,
            self.patience,
        ).run()


def test_without_work_the_loop_waits_for_messages_and_does_not_step():
    stage = Stage([], [], [])

    stage.run()

    assert stage.channel.waits == [None] * 4
    assert stage.scheduler.stepped_at == []


@pytest.mark.parametrize(
    "message",
    [
        *(Cancel(1), Finish(1, tokens_kept=2), Credit(1, 5), SetDeadline(1, None)),
        *(ResetPrefixCache(), Submit(request=1, prompt=pack_ids([5]), max_tokens=4)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_is_answered_by_one_step_even_if_it_makes_no_work(message: ToEngine):
    """The front takes silence after a message for an engine that is stuck."""
    stage = Stage([message], [], [])
    stage.scheduler.refuses = True

    stage.run()

    assert sum(isinstance(told, Step) for told in stage.channel.sent) == 1
    assert stage.channel.waits == [None] * 4


def test_a_frame_counts_the_messages_that_were_handled_before_it():
    stage = Stage([submit(1, [5]), Cancel(7)], [Credit(1, 5)], [], [SetDeadline(1, 1.0)])

    stage.run()

    assert [step.counters.received for step in stage.channel.sent] == [2, 3, 4]


def test_a_credit_that_makes_work_is_followed_by_steps_until_there_is_none():
    """An outcome is given back although nothing else is left to do; then the loop waits again."""
    stage = Stage([Credit(1, 5)], [], [])
    stage.scheduler.plans = [make_plan(), make_plan()]
    stage.scheduler.grant = lambda *_: setattr(stage.scheduler, "has_work", True)

    stage.run()

    assert stage.channel.waits == [None, 0, 0, None]
    assert len(stage.runner.outcomes) == 2
    assert stage.scheduler.outcomes == [None, *stage.runner.outcomes]


class LateRunner(FakeRunner):
    """Tells when it is given work, and when somebody waits for it."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def launch(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        self._told.append("launched")
        wait = super().launch(plan)

        def waited() -> StepOutcome:
            self._told.append("waited for")
            return wait()

        return waited


@pytest.mark.parametrize(
    ("compiles", "order"),
    [(False, ["launched", "sent", "waited for"]), (True, ["sent", "launched", "waited for"])],
)
def test_a_frame_leaves_between_launch_and_wait_but_before_kernels_are_compiled(
    compiles: bool, order: list[str]
):
    """The device is at work by then; compiling takes longer than the front allows unasked."""
    told: list[str] = []
    stage = Stage([Credit(1, 5)], [])
    stage.runner = LateRunner(told)
    stage.patience = Patience(CostModel(), compiles=compiles)
    stage.scheduler.plans = [make_plan()]
    stage.scheduler.grant = lambda *_: setattr(stage.scheduler, "has_work", True)
    stage.channel.at_send = lambda: told.append("sent")

    stage.run()

    assert told == [*order, "sent"]
    assert stage.scheduler.outcomes == [None, *stage.runner.outcomes]


def test_the_loop_waits_no_longer_than_the_next_deadline_and_then_steps():
    stage = Stage([], [], [])
    stage.scheduler.next_deadline_s = 102.5
    moments = iter([100.0, 101.0, 102.5, 103.0])
    stage.channel.at_receive = lambda: setattr(stage, "now_s", next(moments))

    stage.run()

    assert stage.channel.waits == [2.5, 2.5, 1.5, None]
    assert stage.scheduler.stepped_at == [102.5]


def test_a_deadline_that_has_passed_is_no_reason_to_wait():
    stage = Stage([])
    stage.scheduler.next_deadline_s = 40.0

    stage.run()

    assert stage.scheduler.stepped_at == [100.0]
    assert stage.channel.waits == [0, None]


def test_a_deadline_beyond_all_clocks_does_not_break_the_wait():
    stage = Stage()
    stage.scheduler.next_deadline_s = 1e300

    stage.run()

    ours, theirs = socket.socketpair()
    theirs.send(b"!")
    (wait_s,) = stage.channel.waits
    assert select.select([ours], [], [], wait_s)[0] == [ours]
    ours.close()
    theirs.close()


def test_a_step_that_plans_nothing_is_no_failure_while_there_is_work():
    stage = Stage([submit(1, [5])], [], [])
    stage.scheduler.plans = [None, None, make_plan()]

    stage.run()

    assert len(stage.runner.outcomes) == 1
    assert len(stage.scheduler.stepped_at) == 3


def test_messages_reach_the_scheduler_word_by_word():
    sent = submit(
        3,
        [5, 6],
        n=2,
        priority=-4,
        tenant="t",
        ttft_target_s=0.5,
        tpot_target_s=0.05,
        cache_salt="s",
        ignore_eos=True,
        credit=8,
        deadline_s=120.0,
        may_swap=False,
        may_recompute=False,
    )
    others = [Cancel(3), Finish(4, tokens_kept=1), Credit(4, 9), SetDeadline(4, 7.5)]
    others += [SetDeadline(4, None), Reprioritise(4, -2), ResetPrefixCache()]
    stage = Stage([sent, *others])

    stage.run()

    (_, arrival, now_s), *others = stage.scheduler.calls
    assert now_s == 100.0
    assert arrival.prompt.tolist() == [5, 6]
    told = {name: getattr(arrival, name) for name in ARRIVAL_FIELDS}
    assert told == {name: getattr(sent, name) for name in ARRIVAL_FIELDS}
    assert others == [
        *(("drop", 3), ("finish", 4, 1), ("grant", 4, 9)),
        *(("set_deadline", 4, 7.5), ("set_deadline", 4, math.inf), ("reprioritise", 4, -2)),
        ("reset_prefix_cache",),
    ]


ARRIVAL_FIELDS = (
    *("request", "n", "max_tokens", "priority", "tenant", "cache_salt", "ignore_eos"),
    *("credit", "deadline_s", "may_swap", "may_recompute", "ttft_target_s", "tpot_target_s"),
)


def test_each_row_is_forgotten_when_it_is_gone():
    stage = Stage([submit(3, [5], n=3), Cancel(4)])

    stage.run()

    assert sorted(stage.submits) == [3, 5]
    arrival = stage.scheduler.calls[0][1]
    assert arrival.deadline_s == arrival.ttft_target_s == arrival.tpot_target_s == math.inf


def test_what_another_engine_left_goes_on_with_one_credit(
    driver: Driver, pair: tuple[Front, Engine]
):
    """The first has ended, the others had different numbers of tokens, and 3 more are taken."""
    front, engine = pair
    driver.runner.choice_of = {6: 1, 7: 2}
    known = {request: oracle([5, 6], 9, request - 5) for request in (6, 7)}
    rows = tuple(
        Submit(
            request=request,
            choice=request - 5,
            prompt=pack_ids([5, 6]),
            emitted=pack_ids(known[request][:count]),
            max_tokens=9,
            credit=3,
        )
        for request, count in ((6, 2), (7, 4))
    )
    front.send(Resubmit(rows))
    tokens: dict[int, list[int]] = {6: [], 7: []}
    parked: set[int] = set()
    while len(parked) < 2:
        step = front.receive()
        assert isinstance(step, Step)
        told = zip(read_requests(step.requests), view_ids(step.tokens).tolist(), strict=True)
        for request, token in told:
            tokens[request].append(token)
        kinds = {"parked": parked.add, "unparked": parked.discard}
        for decision in step.decisions:
            kinds.get(decision.kind, lambda _: None)(decision.request)
        if sum(map(len, tokens.values())) == 3:
            break
    front.send(Credit(7, tokens=9))

    rest = front.until_finished(6, 7)

    assert tokens[6] + rest[6] == known[6][2:]
    assert tokens[7] + rest[7] == known[7][4:]
    assert engine.submits == {}


def test_one_row_that_cannot_go_on_does_not_keep_its_siblings_credit(pair: tuple[Front, Engine]):
    front, _ = pair
    bad = submit(1, [1] * 64, credit=4)
    good = submit(2, [8], credit=4)
    front.send(Resubmit((bad, good)))

    failed = front.receive()

    assert isinstance(failed, Failed)
    assert failed.request == 1
    assert front.until_finished(2)[2] == oracle([8], 4)
