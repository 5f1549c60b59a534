"""The cost model, on steps whose times follow a known rule."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
import pytest

from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import Copies, StepPlan, StepTimes

FIXED_S, TOKEN_S, CONTEXT_S, WORK_S = 0.011, 35e-6, 90e-9, 1.4e-9  # a large GPU, an 8B model
ROW = np.array([1_000]), np.array([500])  # tokens to compute again, cached ones before them


def copies(out: int = 0, back: int = 0) -> Copies:
    def pairs(count: int) -> np.ndarray:
        return np.zeros((count, 2), dtype=np.int32)

    return Copies(swap_out=pairs(out), on_write=pairs(0), swap_in=pairs(back))


def plan(new: list[int], context: list[int], copied: Copies | None = None) -> StepPlan:
    none = np.empty(0, dtype=np.int32)
    return StepPlan(
        step_id=1,
        block_size=16,
        requests=np.arange(len(new)),
        seats=np.arange(len(new), dtype=np.int32),
        num_context=np.array(context, dtype=np.int32),
        num_new=np.array(new, dtype=np.int32),
        num_tokens=sum(new),
        histories=np.zeros((0, 0), dtype=np.int32),
        tables=np.zeros((0, 0), dtype=np.int32),
        samples=none,
        sample_requests=np.empty(0, dtype=np.int64),
        sample_seats=none,
        seated=(),
        copies=copied or copies(),
    )


def forward_s(step: StepPlan, *, slower: float = 1.0) -> float:
    """The rule, row by row."""
    seconds = FIXED_S
    for p, k in zip(step.num_new.tolist(), step.num_context.tolist(), strict=True):
        seconds += TOKEN_S * p + (CONTEXT_S * k if p == 1 else WORK_S * p * (k + p / 2))
    return slower * seconds


def decoding(rng: np.random.Generator) -> StepPlan:
    rows = int(rng.integers(50, 200))
    return plan([1] * rows, rng.integers(100, 4_000, rows).tolist())


def mixed(rng: np.random.Generator) -> StepPlan:
    rows, chunks = int(rng.integers(0, 100)), int(rng.integers(1, 5))
    new = [1] * rows + rng.integers(2, 600, chunks).tolist()
    return plan(new, rng.integers(0, 4_000, rows + chunks).tolist())


def learn(
    model: CostModel,
    make: Callable[[np.random.Generator], StepPlan],
    steps: int,
    *,
    seed: int = 0,
    slower: float = 1.0,
    noise: float = 0.0,
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        step = make(rng)
        seconds = forward_s(step, slower=slower) * float(1 + noise * rng.standard_normal())
        model.observe(step, StepTimes(forward_s=seconds))


def true_recompute_s(tokens: np.ndarray, cached: np.ndarray) -> np.ndarray:
    return TOKEN_S * tokens + WORK_S * (tokens * cached + tokens**2 / 2)


def test_known_coefficients_are_recovered():
    model = CostModel()
    for seed in range(20):
        learn(model, mixed, 5, seed=seed)
        learn(model, decoding, 5, seed=seed)
    tokens, cached = np.array([1, 100, 4_000, 4_000]), np.array([0, 0, 0, 4_000])

    estimated = model.recompute_s(tokens, cached)

    assert estimated.dtype == np.float64
    assert estimated == pytest.approx(true_recompute_s(tokens, cached), rel=0.03)


def test_the_work_of_a_prompt_grows_with_its_square():
    """Whole prompts, where half of p * p is all there is."""
    model = CostModel()
    learn(model, lambda rng: plan([int(rng.integers(500, 16_000))], [0]), 200)
    tokens, cached = np.array([2_000, 16_000]), np.array([0, 16_000])

    estimated = model.recompute_s(tokens, cached)

    assert estimated == pytest.approx(true_recompute_s(tokens, cached), rel=0.03)


def test_the_context_of_a_chunk_is_no_decodes_context():
    def chunks(rng: np.random.Generator) -> StepPlan:
        sizes = rng.integers(2, 50, 4).tolist()
        decodes, contexts = rng.integers(0, 9_000, 20).tolist(), rng.integers(0, 90_000, 4).tolist()
        return plan([1] * 20 + sizes, decodes + contexts)

    model = CostModel()
    learn(model, chunks, 200)
    decoded = model.recompute_s(np.array([50]), np.array([90_000]))

    assert decoded == pytest.approx(true_recompute_s(np.array([50]), np.array([90_000])), rel=0.03)


def test_noise_of_a_tenth_moves_the_estimate_by_less_than_a_quarter():
    model = CostModel()
    learn(model, mixed, 200, noise=0.1)

    assert model.recompute_s(*ROW) == pytest.approx(true_recompute_s(*ROW), rel=0.25)


def test_the_estimate_follows_a_machine_that_becomes_slower():
    model = CostModel()
    learn(model, mixed, 200)
    before = model.recompute_s(*ROW)

    learn(model, mixed, 200, slower=3.0)

    assert model.recompute_s(*ROW) == pytest.approx(3 * before, rel=0.1)


def test_one_step_that_stalls_does_not_ruin_the_estimate_for_long():
    model = CostModel()
    learn(model, mixed, 200)
    step = mixed(np.random.default_rng(9))
    model.observe(step, StepTimes(forward_s=100 * forward_s(step)))
    learn(model, mixed, 200, seed=1)

    assert model.recompute_s(*ROW) == pytest.approx(true_recompute_s(*ROW), rel=0.2)


def test_an_hour_of_decoding_does_not_wash_out_what_prefills_have_shown():
    model = CostModel()
    learn(model, mixed, 200)
    learn(model, decoding, 3_000)

    assert model.recompute_s(*ROW) == pytest.approx(true_recompute_s(*ROW), rel=0.1)


def test_decodes_that_all_look_alike_leave_the_guess_alone():
    model = CostModel(token_s=TOKEN_S)
    learn(model, lambda rng: plan([1] * 100, [1_000] * 100), 500)

    assert model.recompute_s(*ROW) == pytest.approx(TOKEN_S * ROW[0], rel=0.01)


def test_decodes_alone_bound_a_guess_that_is_too_high():
    """A token cannot take longer than a hundredth of a step that computed a hundred."""
    model = CostModel(token_s=1e-3)
    step = plan([1] * 100, [1_000] * 100)
    learn(model, lambda rng: step, 50)

    assert model.recompute_s(*ROW)[0] <= 1.01 * forward_s(step) / 100 * ROW[0][0]


def test_decodes_alone_teach_nothing_about_a_token_that_was_never_guessed():
    model = CostModel()
    learn(model, lambda rng: plan([1] * 100, [1_000] * 100), 500)

    assert model.recompute_s(*ROW) == pytest.approx(0.0, abs=0.01 * true_recompute_s(*ROW)[0])


def test_with_nothing_measured_the_guesses_decide():
    tokens = np.array([0, 10])

    assert CostModel().recompute_s(tokens, tokens).tolist() == [0.0, 0.0]
    assert CostModel(token_s=0.5).recompute_s(tokens, tokens).tolist() == [0.0, 5.0]
    assert CostModel(copy_block_s=0.5).swap_s(tokens).tolist() == [0.0, 10.0]


@pytest.mark.parametrize("seed", range(30))
def test_estimates_are_never_negative_nor_nan(seed: int):
    """Whatever is measured: nonsense times, single rows, steps that are all alike."""
    rng = np.random.default_rng(seed)
    model = CostModel(token_s=float(rng.choice([0.0, 1e-5])))
    alike = mixed(rng)
    for _ in range(30):
        kind = rng.integers(4)
        step = (alike, plan([1], [0]), mixed(rng), decoding(rng))[kind]
        seconds = rng.choice([rng.exponential(0.05), 1e-9, 0.0, -1.0, np.nan, np.inf])
        model.observe(step, StepTimes(forward_s=float(seconds)))
        estimated = model.recompute_s(np.array([0, 1, 10_000]), np.array([0, 0, 90_000]))
        assert np.isfinite(estimated).all()
        assert (estimated >= 0).all()


def test_a_plan_without_rows_teaches_nothing_about_tokens():
    model = CostModel(token_s=1e-5)
    model.observe(plan([], [], copies(out=2)), StepTimes(forward_s=7.0, swap_out_s=0.5))

    assert model.recompute_s(*ROW).tolist() == [1e-5 * 1_000]


def test_plans_without_rows_do_not_colour_those_with_rows():
    model = CostModel()
    for _ in range(100):
        model.observe(plan([], [], copies(out=2)), StepTimes(forward_s=7.0))
    learn(model, mixed, 100)

    assert model.recompute_s(*ROW) == pytest.approx(true_recompute_s(*ROW), rel=0.03)


def test_while_no_copy_was_seen_a_swap_costs_infinitely_much():
    model = CostModel()
    learn(model, mixed, 5)

    assert model.swap_s(np.array([0, 3])).tolist() == [np.inf, np.inf]


def test_a_swap_costs_both_ways_each_at_its_own_speed():
    model = CostModel()
    model.observe(plan([], [], copies(out=4)), StepTimes(swap_out_s=0.4))
    assert model.swap_s(np.array([3])) == pytest.approx([0.6])  # the way back taken to be alike

    model.observe(plan([], [], copies(back=2)), StepTimes(swap_in_s=0.6))
    assert model.swap_s(np.array([3])) == pytest.approx([3 * (0.1 + 0.3)])


def test_the_mean_of_copies_follows_the_newest():
    model = CostModel(copy_block_s=0.1)
    for _ in range(60):
        model.observe(plan([], [], copies(out=10, back=5)), StepTimes(0.0, 2.0, 2.0))

    assert model.swap_s(np.array([1])) == pytest.approx([0.2 + 0.4], rel=1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, np.nan, np.inf])
def test_copies_that_were_not_timed_do_not_count(seconds: float):
    model = CostModel(copy_block_s=0.1)
    model.observe(plan([], [], copies(out=10, back=5)), StepTimes(0.0, seconds, seconds))

    assert model.swap_s(np.array([1])) == pytest.approx([0.2])


@pytest.mark.parametrize("guess", [-1e-9, np.nan, np.inf])
@pytest.mark.parametrize("name", ["token_s", "copy_block_s"])
def test_a_guess_that_is_no_time_is_refused(name: str, guess: float):
    with pytest.raises(ValueError, match=name):
        CostModel(**{name: guess})


def test_sums_do_not_overflow_with_long_contexts():
    model = CostModel(token_s=1e-5)
    step = plan([4_096] * 8 + [1] * 1_000, [2**20] * 1_008)
    for _ in range(3):
        model.observe(step, StepTimes(forward_s=forward_s(step)))

    assert (model.recompute_s(*ROW) >= 0).all()


@pytest.mark.parametrize("new", [[1] * 1_024, [1] * 1_000 + [64] * 24], ids=["decodes", "mixed"])
def test_to_observe_a_step_takes_microseconds(new: list[int]):
    """The best of several, as the machine is shared; a loop over 1,024 rows would take ten times
    the bound."""
    model, step = CostModel(), plan(new, list(range(len(new))))
    times = StepTimes(forward_s=0.01)

    def once() -> float:
        started = perf_counter()
        for _ in range(100):
            model.observe(step, times)
        return (perf_counter() - started) / 100

    best = min(once() for _ in range(7))
    assert best < 50e-6


def test_the_cost_of_a_token_and_the_mean_step_are_known_without_being_asked_for():
    costs, rng = CostModel(), np.random.default_rng(1)
    assert (costs.token_s, costs.context_s, costs.fixed_s, costs.step_s) == (0.0, 0.0, 0.0, 0.0)

    steps = [decoding(rng) if i % 2 else mixed(rng) for i in range(600)]
    for step in steps:
        costs.observe(step, StepTimes(forward_s=forward_s(step)))

    assert costs.token_s == pytest.approx(TOKEN_S, rel=0.05)
    assert costs.context_s == pytest.approx(CONTEXT_S, rel=0.05)
    assert costs.fixed_s == pytest.approx(FIXED_S, rel=0.05)
    assert costs.step_s == pytest.approx(np.mean([forward_s(s) for s in steps[-20:]]), rel=0.5)


def test_steps_without_a_measured_time_say_nothing_of_the_mean():
    costs = CostModel(token_s=0.5)

    costs.observe(plan([1], [5]), StepTimes())

    assert (costs.token_s, costs.step_s) == (0.5, 0.0)


def test_how_long_a_pass_may_take_is_known_once_some_have_been_measured():
    costs, rng = CostModel(), np.random.default_rng(1)
    assert costs.pass_s(plan([300], [50])) == 0.0
    for i in range(600):
        step = decoding(rng) if i % 2 else mixed(rng)
        costs.observe(step, StepTimes(forward_s=forward_s(step)))

    for step in (decoding(rng), mixed(rng)):
        assert costs.pass_s(step) == pytest.approx(forward_s(step), rel=0.05)
    assert costs.pass_s(plan([], [])) == 0.0
    before_s = costs.pass_s(step)
    costs.observe(step, StepTimes(forward_s=100.0))
    assert costs.pass_s(step) == before_s  # asked in every step, it does not fit all anew
