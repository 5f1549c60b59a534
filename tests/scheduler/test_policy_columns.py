"""What policies see of a request beside its tokens: whom it is for, what it wants, how it fares."""

import math

import numpy as np
import pytest

from cadenza.policies import RequestColumns
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.request import Refused
from cadenza.testing import Driver
from cadenza.testing.driver import STEP_S


def seen(driver: Driver, *requests: int) -> RequestColumns:
    table = driver.scheduler._stores.table
    rows = [table.row_of(request) for request in requests]
    return table.view(np.array(rows, dtype=np.intp))


def test_a_request_without_wishes_has_none():
    driver = Driver()
    driver.add(0, [1, 2])
    view = seen(driver, 0)

    assert view.tenant.tolist() == [0]
    assert view.predicted_tokens.tolist() == [0]
    for wish in (view.ttft_target_s, view.tpot_target_s, view.deadline_s):
        assert wish.tolist() == [math.inf]


def test_targets_tenants_and_predictions_are_seen_as_they_came():
    driver = Driver()
    for request, tenant in enumerate(("a", "", "b", "a")):
        wishes = {"ttft_target_s": 0.5, "tpot_target_s": 0.02, "predicted_tokens": 7}
        driver.add(request, [1, 2], tenant=tenant, deadline_s=9.0, **wishes)
    view = seen(driver, 0, 1, 2, 3)

    assert view.tenant.tolist() == [1, 0, 2, 1]
    assert view.ttft_target_s.tolist() == [0.5] * 4
    assert view.tpot_target_s.tolist() == [0.02] * 4
    assert view.deadline_s.tolist() == [9.0] * 4
    assert view.predicted_tokens.tolist() == [7] * 4


def test_a_step_has_the_tenants_numbers_by_name():
    driver = Driver()
    stores = driver.scheduler._stores
    assert stores.view(0.0).tenants == {}
    for request, tenant in enumerate(("acme", "", "globex")):
        driver.add(request, [1, 2], tenant=tenant)
    view = seen(driver, 0, 1, 2)
    tenants = stores.view(0.0).tenants

    assert view.tenant.tolist() == [tenants["acme"], 0, tenants["globex"]]
    with pytest.raises(TypeError):
        tenants["acme"] = 7  # type: ignore[index]
    assert hash(stores.view(0.0)) == hash(stores.view(0.0))


def test_choices_are_of_the_tenant_of_their_request_until_the_last_has_left():
    driver = Driver()
    driver.add(0, [1, 2], max_tokens=3, n=3, tenant="a", ignore_eos=True)
    driver.step()
    driver.step()
    tenants = driver.scheduler._stores.table._tenants

    assert seen(driver, 0, 1, 2).tenant.tolist() == [1, 1, 1]
    assert tenants._rows == [0, 3]
    driver.run()
    assert tenants._rows == [0, 0]


@pytest.mark.parametrize(
    ("wish", "value"),
    [
        ("ttft_target_s", 0.0),
        ("ttft_target_s", math.nan),
        ("tpot_target_s", -1.0),
        ("predicted_tokens", -1),
        ("predicted_tokens", 1 << 70),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wish: str, value: float):
    with pytest.raises(Refused):
        Driver().add(0, [1], **{wish: value})


def test_remaining_prefill_falls_as_tokens_are_computed_and_is_one_in_decode():
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(0, list(range(1, 21)), max_tokens=8, ignore_eos=True)
    remaining = [int(seen(driver, 0).remaining_prefill[0])]
    for _ in range(5):
        driver.step()
        remaining.append(int(seen(driver, 0).remaining_prefill[0]))

    assert remaining == [20, 20, 12, 4, 1, 1]  # a step's tokens count once it is reaped


def test_remaining_prefill_leaves_out_what_the_prefix_cache_holds():
    driver = Driver()
    prompt = list(range(1, 13))
    driver.add(0, prompt, max_tokens=1)
    driver.run()
    driver.add(1, [*prompt, 50, 51])

    assert seen(driver, 1).cached_tokens.tolist() == [12]
    assert seen(driver, 1).remaining_prefill.tolist() == [2]


@pytest.mark.parametrize("swap", [True, False])
def test_remaining_prefill_of_a_victim_is_what_no_copy_holds(swap: bool):
    driver = Driver(num_host_blocks=8, enable_prefix_caching=False)
    driver.add(0, list(range(1, 11)), max_tokens=20, ignore_eos=True)
    for _ in range(3):
        driver.step()
    driver.scheduler.preempt(0, swap=swap)
    driver.add(1, [1] * 60, max_tokens=1)  # keeps the pool from taking the victim back at once
    table = driver.scheduler._stores.table
    row = table.row_of(0)
    known = 12
    remaining: list[int] = []
    unseat = table.unseat_row

    def watched(row: int, to: object) -> None:
        unseat(row, to)
        remaining.append(int(seen(driver, 0).remaining_prefill[0]))

    table.unseat_row = watched
    driver.step()

    assert row is not None
    assert remaining == [1 if swap else known + 1]
    table.unseat_row = unseat
    driver.run()


def test_who_lost_the_seat_waits_since_then_and_last_ran_in_the_step_before():
    driver = Driver()
    driver.add(0, [1, 2, 3], max_tokens=20, ignore_eos=True)

    assert seen(driver, 0).waits_since_s.tolist() == [0.0]
    assert seen(driver, 0).last_run_s.tolist() == [0.0]
    for _ in range(3):
        driver.step()
    assert seen(driver, 0).waits_since_s.tolist() == [0.0]
    assert seen(driver, 0).last_run_s.tolist() == [driver.now_s]
    driver.scheduler.preempt(0, swap=False)
    driver.step()
    assert seen(driver, 0).waits_since_s.tolist() == [driver.now_s]


def test_a_request_that_waits_keeps_its_last_run():
    driver = Driver(max_num_seqs=1)
    driver.add(0, [1, 2, 3], max_tokens=4, ignore_eos=True)
    driver.add(1, [1, 2, 3], max_tokens=4, ignore_eos=True)
    driver.step()
    driver.step()

    assert seen(driver, 0, 1).last_run_s.tolist() == [2 * STEP_S, 0.0]


def test_derived_columns_cannot_be_written_either():
    driver = Driver()
    driver.add(0, [1, 2])
    remaining = seen(driver, 0).remaining_prefill

    with pytest.raises(ValueError, match="read-only"):
        remaining[0] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        remaining.flags.writeable = True


def test_a_step_sees_cached_blocks_and_what_steps_cost():
    costs = CostModel(token_s=0.001)
    driver = Driver(costs=costs)
    driver.add(0, list(range(1, 13)), max_tokens=1)
    driver.run()
    view = driver.scheduler._stores.view(1.0)

    assert view.cached_blocks == 3
    assert view.free_blocks == view.total_blocks
    assert view.token_s == 0.001  # the fake runner measures nothing
    assert view.step_s == 0.0


def test_blocks_alone_are_those_that_nobody_else_holds():
    driver = Driver(max_num_seqs=3)
    driver.add(0, [1] * 9, max_tokens=9, ignore_eos=True)
    for _ in range(2):
        driver.step()
    driver.add(1, [1] * 9, max_tokens=9, ignore_eos=True)
    driver.add(2, [2] * 9, max_tokens=9, ignore_eos=True)
    for request in range(3, 80):  # so many that the columns had to grow
        driver.add(request, [3])
    driver.step()
    view = seen(driver, 3, 0, 2, 1)

    assert view.blocks_held.tolist() == [0, 3, 3, 3]
    assert view.blocks_alone.tolist() == [0, 1, 3, 1]
    assert not view.blocks_alone.flags.writeable
    assert seen(driver).blocks_alone.tolist() == []

    driver.scheduler.drop(1)
    driver.step()
    assert seen(driver, 0).blocks_alone.tolist() == [3]


def test_choices_hold_nothing_alone_until_they_write():
    driver = Driver()
    driver.add(0, [1] * 5, n=2, max_tokens=9, ignore_eos=True)
    driver.step()
    assert seen(driver, 0).blocks_alone.tolist() == [2]
    driver.step()
    assert seen(driver, 0, 1).blocks_alone.tolist() == [1, 1]  # each its own tail
