"""The runner on a device whose streams are as late, as early or as mixed up as they may be.

The scheduler that serves plans the steps, rows are swapped out and in for want of blocks, decodes
are replayed from captures, and every token is compared with a plain loop. Planted faults prove that
each kind of mistake between streams, buffers and captures shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.engine import block_copies, decode_graphs, uploads
from cadenza.engine.block_copies import StreamedBlockCopier
from cadenza.engine.decode_graphs import DecodeGraphs, padded_sizes
from cadenza.engine.device import HostDevice, Stream
from cadenza.engine.kv_cache import HostCache, KVCache
from cadenza.engine.runner import ModelRunner
from cadenza.engine.sampler import Sampler
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.testing import Driver
from cadenza.testing.profiles import profile_of
from cadenza.wire.messages import Sampling
from tests.engine.conftest import Row, make_plan
from tests.engine.fake_device import FakeDevice
from tests.engine.hash_model import CUTTER, SHAPE, VOCABULARY, HashModel, oracle

CPU = torch.device("cpu")
NUM_BLOCKS, NUM_HOST_BLOCKS, MOST_ROWS, LONGEST = 16, 60, 6, 64
ORDERS = [(Stream.COMPUTE, 0), (Stream.COPY, 0), *((None, seed) for seed in range(4))]


@dataclass
class Stage:
    """A runner over the model of hashes, driven by a scheduler with too few blocks for its rows."""

    device: FakeDevice | HostDevice
    staged: int = 3  # blocks, fewer than a row has
    runner: ModelRunner = field(init=False)
    driver: Driver = field(init=False)
    told: list[tuple[str, int, int]] = field(default_factory=list)  # while capturing

    def __post_init__(self) -> None:
        model: Any = HashModel()
        # one more than the scheduler knows of, for tokens that are padding
        cache = KVCache(SHAPE, NUM_BLOCKS + 1, CPU)
        cache.blocks.fill_(torch.nan)
        host = HostCache(SHAPE, NUM_HOST_BLOCKS, CPU)
        host.blocks.fill_(torch.nan)
        graphs = DecodeGraphs(
            model, cache, self.device, CUTTER, most_rows=MOST_ROWS, longest=LONGEST
        )
        self.runner = ModelRunner(
            model,
            cache,
            StreamedBlockCopier(cache, host, self.device, self.staged),
            Sampler(MOST_ROWS, VOCABULARY, CPU),
            lambda _: (Sampling(temperature=0.0), 0),
            self.device,
            CUTTER,
            graphs,
        )
        self.runner.capture(lambda *told: self.told.append(told))
        self.driver = Driver(
            profile_of({"choose_preemption": "swap", "reserve_blocks": "none"}),
            self.runner,
            num_blocks=NUM_BLOCKS,
            num_host_blocks=NUM_HOST_BLOCKS,
            max_num_seqs=MOST_ROWS,
            eos_token_ids=frozenset(),
        )

    def serve(self) -> None:
        """Serve prompts that share a prefix, and compare each token."""
        chance = np.random.default_rng(getattr(self.device, "seed", 0))
        prefix = chance.integers(0, VOCABULARY, 9).tolist()
        prompts = {
            request: [*prefix[: 3 * request], *chance.integers(0, VOCABULARY, 5 + request).tolist()]
            for request in range(9)
        }
        for request, prompt in prompts.items():
            self.driver.add(request, prompt, max_tokens=16 + 5 * (request % 3))
            self.driver.step()
        self.driver.run()
        for request, prompt in prompts.items():
            assert self.driver.tokens[request] == oracle(prompt, 16 + 5 * (request % 3))


def serve(prefer: Stream | None, seed: int) -> Stage:
    stage = Stage(FakeDevice(prefer, seed))
    stage.serve()
    return stage


@pytest.mark.parametrize(("prefer", "seed"), ORDERS, ids=str)
def test_every_order_of_streams_gives_the_tokens_of_a_plain_loop(
    prefer: Stream | None, seed: int
) -> None:
    stage = serve(prefer, seed)

    assert stage.device.num_captures == len(padded_sizes(MOST_ROWS))
    assert stage.told == [("graphs", done, 4) for done in range(4)]
    assert stage.device.num_replays > 20
    assert stage.driver.preempted, "rows were swapped out, and came back"


def test_nothing_is_waited_for_between_launch_and_wait() -> None:
    """What the loop sends in between leaves while the device is at work."""
    stage = Stage(FakeDevice(Stream.COPY))
    stage.driver.add(1, [3, 1, 4], max_tokens=2)
    _, plan = stage.driver.scheduler.step(0.0, None)
    assert plan is not None
    ran: list[str] = []
    hidden = HashModel.hidden

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            HashModel,
            "hidden",
            lambda *args: ran.append("pass") or hidden(*args),  # type: ignore[func-returns-value]
        )
        wait = stage.runner.launch(plan)
        assert not ran, "a device that is late has not begun"
        assert wait().tokens.tolist() == oracle([3, 1, 4], 1)
    assert ran == ["pass"]


def test_passes_that_are_no_decodes_and_those_of_too_many_rows_are_not_replayed() -> None:
    stage = Stage(FakeDevice(None))
    graphs = stage.runner._graphs
    assert graphs is not None
    stage.driver.add(1, list(range(40)), max_tokens=3)

    seen = []
    for _ in range(4):
        stage.driver.step()
        plan = stage.driver.plan
        assert plan is not None
        key = graphs.key_of(plan)
        seen.append((plan.num_tokens, key and key.rows))
    assert seen == [(32, None), (8, None), (1, 1), (1, 1)]


def test_a_replayed_pass_samples_where_it_shall() -> None:
    """A row that is not done with its prompt draws nothing, one with several choices for each."""
    stage = Stage(FakeDevice(None))
    prompts = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5])
    rows = [Row(prompt[:-1], len(prompt) - 1, [place]) for place, prompt in enumerate(prompts)]
    stage.runner.logits(make_plan(*rows, block_size=4))
    samples = (0, 2, 1)
    plan = make_plan(
        *(
            Row(prompt, 1, [place, place + 5], samples=count)
            for place, (prompt, count) in enumerate(zip(prompts, samples, strict=True))
        ),
        block_size=4,
    )

    tokens = stage.runner.execute(plan).tokens.tolist()

    assert stage.device.num_replays == 1
    assert tokens == [*oracle(prompts[1], 1) * 2, *oracle(prompts[2], 1)]


def test_on_the_host_captures_are_replayed_in_any_order_of_sizes() -> None:
    """As where Triton is interpreted: nothing was run before the first of them."""
    stage = Stage(HostDevice())
    stage.driver.add(1, [3, 1, 4], max_tokens=9)
    for _ in range(4):
        stage.driver.step()
    for request in range(2, 7):
        stage.driver.add(request, [request], max_tokens=4)

    stage.driver.run()

    assert stage.driver.tokens[1] == oracle([3, 1, 4], 9)
    assert stage.driver.tokens[6] == oracle([6], 4)


def test_sizes_are_padded_to_few_and_the_largest_is_the_last() -> None:
    assert padded_sizes(1) == (1,)
    assert padded_sizes(6) == (1, 2, 4, 6)
    assert padded_sizes(8) == (1, 2, 4, 8)
    assert padded_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert padded_sizes(300)[-4:] == (256, 272, 288, 300)


Fault = Callable[[pytest.MonkeyPatch], None]


def _wait_ignored(stream: Stream) -> Fault:
    """`stream` does not wait for the other one."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        wait = FakeDevice.wait

        def ignoring(device: FakeDevice, waits: Stream, on: Stream) -> None:
            if waits is not stream:
                wait(device, waits, on)

        patch.setattr(FakeDevice, "wait", ignoring)

    return plant


def _all_on(stream: Stream) -> Fault:
    """Blocks are gathered on the stream that copies, beside what computes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        run = FakeDevice.run

        def moved(device: FakeDevice, given: Stream, work: Callable[[], None]) -> Any:
            of = getattr(work, "func", None)
            return run(device, stream if of is block_copies.gather_blocks else given, work)

        patch.setattr(FakeDevice, "run", moved)

    return plant


def _staging_shared(patch: pytest.MonkeyPatch) -> None:
    """Every piece of a swap takes the beginning of the staging, and waits for nobody."""

    def pieces(copier: Any, pairs: np.ndarray) -> Any:
        room = len(copier._staging)
        for start in range(0, len(pairs), room):
            piece = pairs[start : start + room]
            yield piece, copier._staging[: len(piece)]

    patch.setattr(StreamedBlockCopier, "_pieces", pieces)


def _outcome_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.engine.fake_device.FakeSpan.wait", lambda _: 0.0)
    finished = ModelRunner._finished

    def at_once(of: ModelRunner, plan: StepPlan, draws: Any, span: Any, done: Any) -> StepOutcome:
        computed = list(done) or [decode_graphs.Computed(torch.zeros(0), torch.zeros(0))]
        return finished(of, plan, draws, span, computed)

    patch.setattr(ModelRunner, "_finished", at_once)


def _replayed(graphs: Any, key: Any) -> Any:
    graphs._again[key]()
    return decode_graphs.Computed(*(part[: key.rows] for part in graphs._computed))


def _stale_pointer(patch: pytest.MonkeyPatch) -> None:
    """What a capture reads is put in another place, instead of being written over."""

    def replay(graphs: Any, key: Any, places: torch.Tensor, tables: torch.Tensor) -> Any:
        graphs._places = torch.zeros_like(graphs._places)
        graphs._places[:, : key.rows].copy_(places)
        graphs._tables[: len(tables), : tables.shape[1]].copy_(tables)
        return _replayed(graphs, key)

    patch.setattr(DecodeGraphs, "replay", replay)


def _stale_result(patch: pytest.MonkeyPatch) -> None:
    """What a capture leaves is looked for where it was not captured to go."""
    replay = DecodeGraphs.replay

    def moved(graphs: Any, key: Any, places: torch.Tensor, tables: torch.Tensor) -> Any:
        graphs._computed = decode_graphs.Computed(*(part.clone() for part in graphs._computed))
        return replay(graphs, key, places, tables)

    patch.setattr(DecodeGraphs, "replay", moved)


def _stale_tables(patch: pytest.MonkeyPatch) -> None:
    def replay(graphs: Any, key: Any, places: torch.Tensor, tables: torch.Tensor) -> Any:
        graphs._places[:, : key.rows].copy_(places)
        return _replayed(graphs, key)

    patch.setattr(DecodeGraphs, "replay", replay)


def _replayed_before_its_inputs(patch: pytest.MonkeyPatch) -> None:
    replay = DecodeGraphs.replay

    def early(graphs: Any, key: Any, places: torch.Tensor, tables: torch.Tensor) -> Any:
        computed = [part.clone() for part in _replayed(graphs, key)]
        replay(graphs, key, places, tables)
        return decode_graphs.Computed(*computed)

    patch.setattr(DecodeGraphs, "replay", early)


def _packed_too_early(patch: pytest.MonkeyPatch) -> None:
    """The next step's inputs are packed over those of one that has not been sent yet."""
    pack = uploads.Uploads.pack

    def twice(of: Any, arrays: Any) -> Any:
        send = pack(of, arrays)
        pack(of, [np.zeros_like(array) for array in arrays])
        return send

    patch.setattr(uploads.Uploads, "pack", twice)


def _padding_written_to_the_first_block(patch: pytest.MonkeyPatch) -> None:
    inputs = DecodeGraphs.inputs

    def padded(plan: StepPlan, key: Any) -> Any:
        found = inputs(plan, key)
        found.places[2, plan.num_rows :] = 0
        return found

    patch.setattr(DecodeGraphs, "inputs", staticmethod(padded))


def _captured_for_other_rows(patch: pytest.MonkeyPatch) -> None:
    """Whatever the number of rows, the smallest capture is taken."""
    key_of = DecodeGraphs.key_of

    def smallest(graphs: Any, plan: StepPlan) -> Any:
        key = key_of(graphs, plan)
        return min(graphs._again, key=lambda each: each.rows) if key else None

    patch.setattr(DecodeGraphs, "key_of", smallest)


def _captured_for_prefills(patch: pytest.MonkeyPatch) -> None:
    def always(graphs: Any, plan: StepPlan) -> Any:
        fitting = [key for key in graphs._again if key.rows >= plan.num_rows]
        return min(fitting, key=lambda each: each.rows, default=None)

    patch.setattr(DecodeGraphs, "key_of", always)


FAULTS: dict[str, Fault] = {
    "the pass does not wait for blocks that come in": _wait_ignored(Stream.COMPUTE),
    "copies to the host do not wait for the gather": _wait_ignored(Stream.COPY),
    "blocks are gathered beside the pass that overwrites them": _all_on(Stream.COPY),
    "pieces of a swap share staging": _staging_shared,
    "an outcome is read before it is there": _outcome_not_waited_for,
    "a captured buffer is replaced": _stale_pointer,
    "a result is looked for elsewhere": _stale_result,
    "block tables stay those of the capture": _stale_tables,
    "a graph is replayed before its inputs are there": _replayed_before_its_inputs,
    "inputs are packed over those not sent yet": _packed_too_early,
    "padding is written into a block": _padding_written_to_the_first_block,
    "a graph is not keyed by its rows": _captured_for_other_rows,
    "a prefill is replayed as a decode": _captured_for_prefills,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[name](patch)
        assert any(_shows(*order) for order in ORDERS), f"nobody noticed that {name}"


def _shows(prefer: Stream | None, seed: int) -> bool:
    try:
        serve(prefer, seed)
    except (TypeError, AttributeError, NameError):
        raise  # a fault that was not planted well
    except Exception:  # whatever else it leads to
        return True
    return False


def test_the_host_may_not_ask_for_a_value_under_capture() -> None:
    device, value = FakeDevice(None), torch.tensor(3)

    with pytest.raises(AssertionError, match="under capture"):
        device.capture(lambda: print(value.item()), device.graph_pool())  # noqa: T201


def test_deterministic_decodes_are_captured_for_each_power_of_two_of_splits() -> None:
    """Up to those of a row of 8,192 tokens; longer ones are not replayed."""
    model: Any = HashModel()
    cache = KVCache(SHAPE, 2, CPU)
    cutter = replace(CUTTER, invariant=True)
    graphs = DecodeGraphs(model, cache, FakeDevice(None), cutter, most_rows=2, longest=5000)
    longer = DecodeGraphs(model, cache, FakeDevice(None), cutter, most_rows=1, longest=100_000)

    graphs.capture(lambda *_: None)
    longer.capture(lambda *_: None)

    assert [(key.rows, key.splits) for key in graphs._again] == [
        (rows, (number, 512)) for rows in (2, 1) for number in (16, 8, 4, 2, 1)
    ]
    assert [key.splits.number for key in longer._again] == [16, 8, 4, 2, 1]
    for num_keys, number in ((512, 1), (513, 2), (1025, 4), (8192, 16)):
        key = longer.key_of(make_plan(Row([0] * num_keys, 1, [0] * 3000), block_size=4))
        assert key == (1, (number, 512))
    assert longer.key_of(make_plan(Row([0] * 8193, 1, [0] * 3000), block_size=4)) is None
