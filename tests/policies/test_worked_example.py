"""The numbers of docs/reservations.md, computed with the policies."""

from pathlib import Path

import numpy as np
import pytest

from cadenza.policies import StepView
from cadenza.policies.builtin import NewTokenRatio, NoEvict, NoReservation, PastFuture
from cadenza.policies.builtin.new_token_ratio import DECAY_STEPS
from cadenza.policies.builtin.past_future import SHORTEST_HISTORY
from tests.policies.views import NOBODY, columns, requests

PAGE = (Path(__file__).parents[2] / "docs" / "reservations.md").read_text()
BLOCKS, SIZE, PROMPT, MOST, WAITING = 12, 4, 8, 8, 6
ENTRY = PROMPT // SIZE
CANDIDATES = requests([PROMPT] * WAITING, max_tokens=[MOST] * WAITING)
ABOUT_TO_END = requests([PROMPT], [MOST], max_tokens=[MOST], blocks_held=[4])


def view(step_id: int = 0) -> StepView:
    return StepView(
        step_id=step_id,
        now_s=0.0,
        free_blocks=BLOCKS,
        total_blocks=BLOCKS,
        block_size=SIZE,
        free_seats=WAITING,
        token_budget=64,
        free_host_blocks=0,
        preemptions=0,
    )


def none() -> np.ndarray:
    return NoReservation().reserve_blocks(NOBODY, CANDIDATES, view())


def no_evict() -> np.ndarray:
    return NoEvict().reserve_blocks(NOBODY, CANDIDATES, view())


def ratio_at_first() -> np.ndarray:
    return NewTokenRatio().reserve_blocks(NOBODY, CANDIDATES, view())


def ratio_at_its_floor() -> np.ndarray:
    return NewTokenRatio().reserve_blocks(ABOUT_TO_END, CANDIDATES, view(2 * DECAY_STEPS))


def nothing_learned() -> np.ndarray:
    return PastFuture().reserve_blocks(NOBODY, CANDIDATES, view())


def outputs_of_four() -> np.ndarray:
    policy = PastFuture()
    policy.on_finished(columns(generated_tokens=[4] * SHORTEST_HISTORY), view())
    return policy.reserve_blocks(NOBODY, CANDIDATES, view())


POLICIES = {
    "`none`": none,
    "`no-evict`": no_evict,
    "`new-token-ratio`, at first": ratio_at_first,
    "`new-token-ratio`, at its floor": ratio_at_its_floor,
    "`past-future`, nothing learned yet": nothing_learned,
    "`past-future`, past outputs of 4 tokens": outputs_of_four,
}


def admitted(kept: np.ndarray, watermark: int = 0) -> int:
    """How many of the candidates enter an empty pool; the first one always does."""
    for k in range(2, WAITING + 1):
        if BLOCKS - k * ENTRY < kept[k] + watermark:
            return k - 1
    return WAITING


def run(rows: int, output: int) -> list[tuple[int, ...]]:
    """A line a step: step, rows, tokens, blocks needed, blocks there, missing, preempted."""
    lines = []
    held = ENTRY
    for step in range(1, output + 1):
        tokens = PROMPT + step - 1
        needs = -(-tokens // SIZE)
        missing = max(rows * needs - BLOCKS, 0)
        gain = held + (needs - held)  # what it holds, and its own growth
        victims = -(-missing // gain)
        lines.append((step, rows, tokens, rows * needs, BLOCKS, missing, victims))
        rows, held = rows - victims, needs
    return lines


def preempted(rows: int, output: int) -> int:
    return sum(line[-1] for line in run(rows, output))


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def test_the_page_shows_every_step_without_look_ahead():
    rows = admitted(none())
    shown = "".join(line(*step) for step in run(rows, MOST))

    assert rows * ENTRY == BLOCKS
    assert shown in PAGE
    assert shown.count("\n") == MOST


@pytest.mark.parametrize("name", POLICIES)
def test_the_page_says_what_each_policy_keeps(name: str):
    kept = POLICIES[name]()
    rows = admitted(kept)

    shown = line(
        name,
        " ".join(map(str, kept[1:].tolist())),
        rows,
        preempted(rows, MOST),
        preempted(rows, 4),
    )

    assert shown in PAGE


def test_the_page_is_right_about_the_watermark():
    watermark = int(np.ceil(0.01 * BLOCKS))
    rows = admitted(none(), watermark)

    assert watermark == 1
    assert f"`none` then admits {rows}, " in PAGE
    assert f"by {run(rows, MOST)[1][5]} blocks instead of {run(WAITING, MOST)[1][5]}" in PAGE
    assert f"`no-evict` admits {admitted(no_evict(), watermark)} under it" in PAGE
    assert f"where {admitted(no_evict())} would have been safe" in PAGE
