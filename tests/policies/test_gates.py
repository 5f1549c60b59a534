"""Built-in gates and whom to shed, on a clock that the test sets."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cadenza.policies import Refusal, ServiceView
from cadenza.policies.builtin import LowestPriority, Newcomer, QueueLimit, TenantQuota, TtftTarget
from cadenza.policies.front_decisions import FrontDecisions
from cadenza.policies.profile import Profile
from cadenza.testing import arrival_columns, service_view

SERVICE = service_view()


def at(seconds: float, **values: float) -> ServiceView:
    return replace(SERVICE, now_s=SERVICE.now_s + seconds, **values)


def test_the_queue_has_no_limit_of_tokens_unless_it_is_given_one():
    service = at(0, queued_tokens=10**9)

    assert QueueLimit().gate_arrivals(arrival_columns(prompt_tokens=[10**9]), service) is None


@pytest.mark.parametrize(
    ("queued", "prompts", "passes"),
    [(90, [10], True), (90, [11], False), (90, [5, 6], False), (0, [1000], True)],
)
def test_prompts_that_wait_are_limited_but_with_an_empty_queue_any_enters(
    queued: int, prompts: list[int], passes: bool
):
    limit = QueueLimit(QueueLimit.Options(max_tokens=100))

    refusals = limit.gate_arrivals(
        arrival_columns(prompt_tokens=prompts), at(0, queued_tokens=queued)
    )

    if passes:
        assert refusals is None
    else:
        assert refusals == [
            Refusal(
                reason="The queue is full (90 prompt tokens wait). Try again later.",
                limit="service",
            )
        ] * len(prompts)


@pytest.mark.parametrize(
    ("wait_s", "target_s", "deadline_s", "late_s"),
    [
        (2.0, 2.0, float("inf"), None),
        (2.5, 2.0, float("inf"), 0.5),
        (2.5, float("inf"), 1.0, 1.5),
        (2.5, 4.0, 1.0, 1.5),
        (100.0, float("inf"), float("inf"), None),
    ],
)
def test_who_would_wait_longer_than_its_first_token_may_take_is_refused(
    wait_s: float, target_s: float, deadline_s: float, late_s: float | None
):
    arrivals = arrival_columns(
        ttft_target_s=[float("inf"), target_s],
        deadline_s=[float("inf"), deadline_s + SERVICE.now_s],
    )

    refusals = TtftTarget().gate_arrivals(arrivals, at(0, wait_s=wait_s))

    if late_s is None:
        assert refusals is None
    else:
        assert refusals is not None
        assert refusals[0] is None
        assert (refusals[1].limit, refusals[1].retry_after_s) == ("service", late_s)
        assert f"a seat takes {wait_s} s now" in refusals[1].reason


def test_who_names_no_time_for_its_first_token_gets_the_operators():
    gate = TtftTarget(TtftTarget.Options(default_s=1.0))
    arrivals = arrival_columns(ttft_target_s=[float("inf"), 5.0])

    assert gate.gate_arrivals(arrivals, at(0, wait_s=1.0)) is None
    refusals = gate.gate_arrivals(arrivals, at(0, wait_s=1.01))

    assert [each is not None for each in refusals] == [True, False]
    assert refusals[0].retry_after_s == 0.1


@pytest.mark.parametrize("default_s", [0.0, -1.0, float("inf"), float("nan")])
def test_an_operators_time_has_to_be_one(default_s: float):
    with pytest.raises(ValueError, match="default_s must be above 0"):
        TtftTarget.Options(default_s=default_s)


def quota(**options: float) -> TenantQuota:
    return TenantQuota(TenantQuota.Options(**options))


def first(refusals: Sequence[Refusal | None] | None) -> Refusal | None:
    return None if refusals is None else next(each for each in refusals if each is not None)


def cost(tokens: int, tenant: int = 1):
    """An arrival that costs so many tokens."""
    return arrival_columns(prompt_tokens=[tokens - 4], choices=[2], max_tokens=[2], tenant=[tenant])


@pytest.mark.parametrize(("queued", "choices", "passes"), [(2, 2, True), (3, 2, False)])
def test_a_tenant_may_have_so_many_choices_waiting(queued: int, choices: int, passes: bool):
    arrivals = arrival_columns(tenant=[7], tenant_queued=[queued], choices=[choices])

    refusal = first(quota(max_queued=4).gate_arrivals(arrivals, SERVICE))

    if passes:
        assert refusal is None
    else:
        assert refusal is not None
        assert (refusal.limit, refusal.retry_after_s) == ("tenant", 1.0)
        assert "limit of 4 waiting choices" in refusal.reason


def test_prompts_of_one_call_count_together_and_other_tenants_do_not():
    arrivals = arrival_columns(tenant=[1, 2, 1], tenant_queued=[3, 4, 3], choices=[1, 1, 1])

    assert quota(max_queued=5).gate_arrivals(arrivals, SERVICE) is None
    refusals = quota(max_queued=4).gate_arrivals(arrivals, SERVICE)
    assert refusals is not None
    assert [refusal is not None for refusal in refusals] == [True, True, True]
    refusals = quota(max_queued=4).gate_arrivals(
        arrival_columns(tenant=[1, 2], tenant_queued=[4, 0]), SERVICE
    )
    assert refusals is not None
    assert [refusal is not None for refusal in refusals] == [True, False]


def test_a_bucket_holds_a_burst_and_says_when_there_is_enough_again():
    bucket = quota(tokens_per_s=10, burst_s=10)

    assert bucket.gate_arrivals(cost(60), at(0)) is None
    assert bucket.gate_arrivals(cost(40), at(0)) is None
    refused = first(bucket.gate_arrivals(cost(25), at(1)))

    assert refused == Refusal(
        reason="Your limit of 10 tokens a second is reached. Try again later.",
        limit="tenant",
        retry_after_s=1.5,
    )
    assert first(bucket.gate_arrivals(cost(25), at(2.4))) is not None
    assert bucket.gate_arrivals(cost(25), at(2.5)) is None


@pytest.mark.parametrize("rate", [3, 7, 0.1, 1e6 / 3])
def test_who_comes_back_when_it_was_told_gets_in(rate: float):
    bucket = quota(tokens_per_s=rate, burst_s=10)
    now_s, passed = 0.0, 0
    for _ in range(200):
        refusal = first(bucket.gate_arrivals(cost(5), at(now_s)))
        if refusal is None:
            passed += 1
            continue
        now_s += refusal.retry_after_s
        assert bucket.gate_arrivals(cost(5), at(now_s)) is None
        passed += 1

    assert passed * 5 <= rate * (now_s + 10) + 5


def test_what_is_more_than_a_bucket_passes_when_it_is_full_and_is_paid_off():
    bucket = quota(tokens_per_s=10, burst_s=2)

    assert bucket.gate_arrivals(cost(100), at(0)) is None
    refused = first(bucket.gate_arrivals(cost(20), at(0)))
    assert refused is not None
    assert refused.retry_after_s == 10.0
    assert bucket.gate_arrivals(cost(5), at(8.4)) is not None
    assert bucket.gate_arrivals(cost(5), at(8.6)) is None


def test_tenants_have_buckets_of_their_own_and_nobody_has_one_too():
    bucket = quota(tokens_per_s=10, burst_s=2)
    for tenant in (0, 1, 5000):
        assert bucket.gate_arrivals(cost(20, tenant), at(0)) is None
        assert bucket.gate_arrivals(cost(20, tenant), at(0)) is not None


def test_who_is_refused_pays_nothing_not_even_for_its_other_prompts():
    bucket = quota(tokens_per_s=10, burst_s=2, max_queued=1)
    two = arrival_columns(
        tenant=[1, 2], tenant_queued=[0, 1], prompt_tokens=[5, 5], max_tokens=[5, 5]
    )

    assert bucket.gate_arrivals(two, at(0)) is not None
    assert bucket.gate_arrivals(cost(20), replace(at(0))) is not None  # two choices are too many
    one = arrival_columns(tenant=[1], prompt_tokens=[15], max_tokens=[5])
    assert bucket.gate_arrivals(one, at(0)) is None


def test_a_long_debt_is_told_as_an_hour():
    bucket = quota(tokens_per_s=0.001)
    assert bucket.gate_arrivals(cost(1000), at(0)) is None

    refused = first(bucket.gate_arrivals(cost(1000), at(1)))

    assert refused is not None
    assert refused.retry_after_s == 3600.0


@pytest.mark.parametrize(
    "options",
    [
        {"max_queued": 0},
        {"tokens_per_s": 0},
        {"tokens_per_s": float("inf")},
        {"tokens_per_s": float("nan")},
        {"burst_s": 0},
        {"burst_s": float("nan")},
    ],
)
def test_a_quota_must_make_sense(options: dict[str, float]):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        quota(**options)


def test_a_limit_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        QueueLimit.Options(max_tokens=0)


def test_the_default_sheds_the_newcomer_and_lowest_priority_the_least_urgent():
    waiting = arrival_columns(priority=[3, 9, 0, 5])

    assert Newcomer().shed_load(waiting, SERVICE).tolist() == [0, 0, 0, 1]
    assert LowestPriority().shed_load(waiting, SERVICE).argmax() == 1


def test_the_default_gate_stands_before_chosen_ones():
    profile = Profile({"gate_arrivals": "tenant-quota"}, options={"queue-limit": {"max_tokens": 9}})

    assert profile.gates == ("queue-limit", "tenant-quota")
    assert profile.deciding("gate_arrivals") == profile.gates


@pytest.mark.parametrize(
    ("chosen", "options", "refuses", "sheds"),
    [
        ({}, {}, False, False),
        ({}, {"queue-limit": {"max_tokens": 9}}, True, False),
        ({"gate_arrivals": "tenant-quota"}, {}, True, False),
        ({"shed_load": "lowest-priority"}, {}, False, True),
    ],
)
def test_what_nobody_has_a_say_in_need_not_be_asked(
    chosen: dict[str, str], options: dict[str, dict[str, int]], refuses: bool, sheds: bool
):
    decisions = FrontDecisions(Profile(chosen, options=options))

    assert (decisions.may_refuse, decisions.may_shed) == (refuses, sheds)
