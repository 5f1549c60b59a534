"""A run recorded, read again, and asked of other policies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cadenza.policies import CachedBlocks, RequestColumns, hookimpl
from cadenza.policies.builtin import BUILTIN, Fcfs, Newest, ShortestPrefill
from cadenza.policies.contract import ENGINE_HOOKS, hooks_of
from cadenza.policies.profile import Profile
from cadenza.testing import (
    Driver,
    Failure,
    RecordingDecisions,
    read_recording,
    replay,
    write_recording,
)
from cadenza.testing.tables import COLUMNS

BLOCK_COLUMNS = ("block", "last_use", "published", "continued")
EVERYTHING = {
    "rank_cached_blocks": "leaves-first",
    "predict_lengths": "observed-lengths",
    "plan_budget": "tpot-target",
    "reserve_blocks": "none",
    "order_admissions": "priority",
    "allow_displacement": "strict-priority",
}


def recorded(chosen: dict[str, str] | None = None, num: int = 12) -> RecordingDecisions:
    """A run whose memory is short, so that every hook is asked."""
    decisions = RecordingDecisions(Profile(chosen or EVERYTHING))
    driver = Driver(decisions=decisions, num_blocks=12, num_host_blocks=4, max_model_len=32)
    for request in range(num):
        prompt = [request + 1] * (1 + 5 * request % 13)
        driver.add(request, prompt, 10, priority=-request, tenant="a", ttft_target_s=5.0)
        driver.step()
    driver.run()
    return decisions


def test_every_hook_is_recorded_with_what_was_decided():
    asked = recorded().asked

    assert {each.hook for each in asked} == {*ENGINE_HOOKS}
    orders = [each for each in asked if each.hook == "order_admissions"]
    assert {each.policy for each in orders} == {"priority"}
    assert all(len(each.answer) == len(each.arguments["waiting"]) for each in orders)
    assert {each.policy for each in asked if each.hook == "on_finished"} == {""}


def test_recording_changes_nothing():
    driver = Driver(Profile(EVERYTHING), num_blocks=12, num_host_blocks=4, max_model_len=32)
    for request in range(12):
        prompt = [request + 1] * (1 + 5 * request % 13)
        driver.add(request, prompt, 10, priority=-request, tenant="a", ttft_target_s=5.0)
        driver.step()
    driver.run()
    finished = [each for each in recorded().asked if each.hook == "on_finished"]

    told = [request for each in finished for request in each.arguments["finished"].request.tolist()]
    assert told == list(driver.ends)


def test_a_file_holds_all_of_it(tmp_path: Path):
    asked = recorded().asked
    file = tmp_path / "run.jsonl"
    write_recording(file, asked)

    for was, now in zip(asked, read_recording(file), strict=True):
        assert (was.hook, was.policy, was.step_id) == (now.hook, now.policy, now.step_id)
        assert np.array_equal(was.answer, now.answer)
        for name, argument in was.arguments.items():
            if isinstance(argument, (RequestColumns, CachedBlocks)):
                of_blocks = isinstance(argument, CachedBlocks)
                for column in BLOCK_COLUMNS if of_blocks else COLUMNS:
                    here, there = getattr(argument, column), getattr(now.arguments[name], column)
                    assert here.dtype == there.dtype, column
                    assert np.array_equal(here, there), column
            else:
                assert str(argument) == str(now.arguments[name])
    assert any(each.arguments["step"].tenants == {"a": 1} for each in read_recording(file))
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["format"] == "cadenza-decisions"
    assert "Infinity" not in lines[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no recording of format cadenza-decisions 1"),
        ("[]\n", "is no recording"),
        ("nonsense\n", "is no recording"),
        ('{"format": "cadenza-decisions", "version": 2}\n', "is no recording"),
        ('{"format": "cadenza-decisions", "version": 1}\n{}\n', "line 2: KeyError"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, message: str):
    file = tmp_path / "run.jsonl"
    file.write_text(text)

    with pytest.raises(ValueError, match=message):
        list(read_recording(file))


@pytest.mark.parametrize("name", ["priority", "strict-priority", "fair-share", "past-future"])
def test_the_policy_that_decided_would_decide_the_same(name: str):
    chosen = {hook: name for hook in hooks_of(BUILTIN[name]) if not hook.startswith("on_")}
    replayed = replay(recorded({**EVERYTHING, **chosen}).asked, BUILTIN[name])

    assert replayed.answered
    assert replayed.differing == []
    assert "0 of" in str(replayed)


def test_another_policy_differs_where_it_would_have_admitted_others():
    replayed = replay(recorded().asked, Fcfs)

    differing = replayed.differing
    assert differing
    for each in replayed.answered:
        waiting = each.asked.arguments["waiting"]
        was = np.lexsort((waiting.arrival, each.asked.answer))
        now = np.lexsort((waiting.arrival, each.answer))
        assert each.difference.differs == (was.tolist() != now.tolist())
    first = differing[0].asked.step_id
    assert f"first in step {first}, priority [" in str(replayed)


def test_equal_orders_by_other_figures_do_not_differ():
    class Halves:
        name = "halves"

        @hookimpl
        def order_admissions(self, waiting: RequestColumns) -> np.ndarray:
            return waiting.remaining_prefill / 2

    replayed = replay(recorded({"order_admissions": "shortest-prefill"}).asked, Halves)

    assert replayed.differing == []
    assert replay(recorded({"order_admissions": "shortest-prefill"}).asked, ShortestPrefill)


def test_only_what_a_policy_has_is_asked_of_it():
    replayed = replay(recorded().asked, Newest)

    assert {each.asked.hook for each in replayed.answered} == {"select_victims"}


def test_a_policy_that_fails_in_the_replay_is_told_by_hook():
    class Raises:
        name = "raises"

        @hookimpl
        def order_admissions(self, waiting: RequestColumns) -> np.ndarray:
            raise ArithmeticError("lost count")

    with pytest.raises(Failure, match=r"order_admissions\(\d+ waiting\): ArithmeticError"):
        replay(recorded().asked, Raises)
