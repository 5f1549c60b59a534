"""The questions that are put to policies. This file is the contract for their authors.

Three kinds of hook. A *decision* (first result) is taken by one policy: the one that the profile
chose, or the default if that one answers None. A *union* (`guard_starvation`, `gate_arrivals`) asks
all chosen policies and the default, and any True, or any refusal, counts. An *observer* (`on_...`)
is not chosen: every policy of the profile that has it is told, and what it returns is ignored.

For all of them: called from the engine's main thread, between two forward passes, so that every
request waits while a hook runs; at most once a step, observers excepted. `gate_arrivals` and
`shed_load` are called in the front process instead, on the thread that all streams are written
from, at most once an arrival; what is said of a step holds for an arrival there. Each process has
instances of its own, which share nothing. A hook must not block, await, or keep the views; an
attempt to write to them raises. Lower scores come first; for victims, lowest is evicted first. NaN
is a fault everywhere, -inf wherever a score is wanted. Answers are proposals: allocation, reference
counts, publishing, eviction and the bound of the queue stay in the core. When a hook raises, or
answers with the wrong shape, type or values, the default decides for this step and `policy_faults`
rises.
"""

from __future__ import annotations

from collections.abc import Sequence

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.markers import hookspec
from cadenza.policies.views import (
    BoolArray,
    FloatArray,
    IntArray,
    PreemptionCosts,
    RequestColumns,
    StepBudget,
    StepView,
)


@hookspec(firstresult=True)
def predict_lengths(arrived: RequestColumns, step: StepView) -> FloatArray | None:
    """Say how many output tokens requests that have come since the last step will have in all.

    Called first in a step, with at least one request, and only under a profile that chose a policy
    other than the default. Asked of those for whom whoever sent them has not said it. In the first
    step of policies that took the place of others everybody who is here and for whom nobody has
    predicted is among them. Return one float per request, finite and none negative; 0 says nothing.
    Answers are rounded up, cut to `max_tokens`, and stay with the request as `predicted_tokens`,
    which other policies see from then on. Where that is 0, `srpt-limited`, `cheapest` and others
    that use `policies.lengths` go by what they have learned for themselves. None says nothing of
    anybody. Default: nobody predicts. Stops at the first answer.
    """


@hookspec(firstresult=True)
def plan_budget(
    running: RequestColumns, waiting: RequestColumns, step: StepView
) -> StepBudget | None:
    """Say how many tokens this step may compute, and how many of one prompt.

    Called before the decisions below, in a step in which anybody is here, once what the last one
    computed is known, and only under a profile that chose a policy other than the default.
    `running` are all requests with a seat, the parked ones among them; `waiting` are all others.
    `tokens` is a whole number of at least 1; more than is configured, which is `step.token_budget`,
    counts as that. Every running request that decodes gets its token even if there are more of them
    than `tokens`; what they leave is shared by prompts, each with `prefill_chunk` at most. A prompt
    that gets nothing waits for a later step, with all it holds; while nobody decodes one always
    moves on. For the rest of the step `step.token_budget` is what was answered. Default: what is
    configured, in every step, and no limit for a prompt. Stops at the first answer.
    """


@hookspec(firstresult=True)
def order_admissions(waiting: RequestColumns, step: StepView) -> FloatArray | None:
    """Score the waiting requests; the lowest score is admitted first.

    Called when a request waits whose reader takes tokens, the running requests have the memory
    that they need, and a seat is free or may become so: a parked request holds it, or the profile
    chose a displacement policy. Return one float per waiting request; +inf keeps a request out of
    this step, unless a guard marks it or nothing runs and everybody is kept out. Ties keep arrival
    order. The scan ends when seats or the step's tokens are used up, and at the first request that
    lacks blocks and for which nobody makes room. One whose reader has no tokens left is passed
    over; so is one that lacks some of its seats, or whose prefill is too long for what is left of
    the step's tokens, unless it is starving: then the scan ends there as well. An order that is
    fair among tenants has the class attribute `overtakes_within_tenant = True`: then only later
    arrivals of its own tenant overtake a request, or a guard would help whoever sends most.
    Default: arrival order. Stops at the first answer.
    """


@hookspec(firstresult=True)
def reserve_blocks(
    running: RequestColumns, candidates: RequestColumns, step: StepView
) -> IntArray | None:
    """Say how many blocks must stay free for growth if candidates enter.

    Called after `order_admissions`. `running` are all requests with a seat, the parked ones among
    them, which may go on at any time. `candidates` are in admission order, none if all were kept
    out, and some more than there are seats that are free or may become so, since some may be passed
    over. Return len(candidates) + 1 whole numbers, none negative: candidate k (from 1) enters only
    if element k, and the watermark on top of it, is still free once the first k candidates hold
    their blocks. Element 0 is what those with a seat want alone. What each element adds to the one
    before counts for that candidate, and is taken off again for those behind it if it is passed
    over. For a candidate with several choices the core keeps their first own blocks besides.
    Waived, with the watermark, for whoever enters while nothing runs or all are parked; for one
    that may displace others the answer is waived, and the watermark is not. Default: adaptive
    new-token ratio. Stops at the first answer.
    """


@hookspec(firstresult=True)
def select_victims(running: RequestColumns, step: StepView) -> FloatArray | None:
    """Score all requests with a seat; the lowest score is preempted first.

    Called when the running requests lack blocks for the tokens they are about to write, or when a
    waiting one may have what parked or displaced ones hold. Just enough of them are preempted,
    judged by what they would free together; a score of +inf is a preference like any other, not a
    refusal. Whatever their scores, parked requests are taken first, those that the core protects
    last, and the oldest that runs after all others. Default: newest admission first. Stops at the
    first answer.
    """


@hookspec(firstresult=True)
def allow_displacement(
    candidate: RequestColumns, running: RequestColumns, step: StepView
) -> FloatArray | None:
    """Say which running requests a waiting one may push out: margins above 0 allow it.

    Called for the first waiting request, in admission order, that lacks a seat or blocks and would
    not get them from parked ones alone, with the running requests that may be pushed out (none
    that was admitted in this step, is pinned or was preempted too often), and only under a profile
    that chose a policy other than the default.
    `candidate` has one element. Return one float per running request; +inf allows, -inf does not.
    Just enough of those allowed are preempted, the lowest `select_victims` score first, or none if
    all of them together would not make room, or if the candidate lacks only what `reserve_blocks`
    keeps: then it enters beside them. Ties in a policy's own key must get no margin, or two equals
    push each other out for ever. Default: nobody. Stops at the first answer.
    """


@hookspec(firstresult=True)
def choose_preemption(
    victims: RequestColumns, costs: PreemptionCosts, step: StepView
) -> BoolArray | None:
    """Choose per victim: True swaps its blocks to the host, False drops them for recompute.

    Called once a step at most, before the first victim leaves, for all who may have to. A victim
    that cannot be swapped, because the host has no room or its client forbids it, is recomputed
    whatever the answer, and the other way round. `costs` has one element a victim, in the same
    order. Default: cost model. Stops at the first answer.
    """


@hookspec(firstresult=True)
def rank_cached_blocks(blocks: CachedBlocks, step: StepView) -> FloatArray | None:
    """Score the cached blocks that no request holds; the lowest is evicted first.

    Called once a step at most, when the first block has to be evicted in it, and only under a
    profile that chose a policy other than the default. Return one float per block; +inf goes last,
    and goes if it must. Ties go by `last_use`. Just as many are evicted as the default would evict,
    and with each, whatever its score, all cached blocks that continue its prefix, as nobody could
    find them: score a block above what continues it. What is let go of later in the step is evicted
    after all that were scored. Default: least recently used. Stops at the first answer.
    """


@hookspec
def guard_starvation(waiting: RequestColumns, step: StepView) -> BoolArray | None:
    """Mark waiting requests that are starving; they take every fourth admission, by arrival.

    They take more only where the order itself puts one of them first. Called before
    `order_admissions`, with the same requests. Several policies may be chosen; they and the
    default, which they do not replace, are all asked, and any True counts. None marks nobody.
    Under an order with `overtakes_within_tenant` starving requests take every fourth
    admission of their own tenant, at nobody else's cost. Default: bounded overtake.
    """


@hookspec
def gate_arrivals(
    arrivals: ArrivalColumns, service: ServiceView
) -> Sequence[Refusal | None] | None:
    """Refuse requests before they enter, each with a reason and when to come back.

    Called in the front process, once a call of a client, when all fields are known to be right and
    the queue has room, or whoever makes room has been found, whom `arrivals` and `service` do not
    count any more; before the prompt is encoded.
    `arrivals` has several elements where a call has several prompts; they enter all together or not
    at all. Return a list with a `Refusal` or None for each, or None, which refuses nobody. Several
    policies may be chosen. The default is asked first, which they do not replace, then they in the
    order in which they were chosen, and nobody is asked after the first refusal, which the client
    is told: HTTP status 429 for the tenant's limit, 503 for the service's, over gRPC
    RESOURCE_EXHAUSTED. What a policy that lets requests pass has counted stays counted if a later
    one refuses them, so that one that counts is best chosen last. The bound on choices that wait
    (`ServiceView.max_queued`) holds whatever policies answer. Default: queue limit, which adds no
    limit of its own unless it is given one.
    """


@hookspec(firstresult=True)
def shed_load(waiting: ArrivalColumns, service: ServiceView) -> FloatArray | None:
    """Score the requests that wait for a first seat and the newcomer; the highest is refused.

    Called in the front process when a call arrives for whose choices the queue has no room, only
    under a profile that chose a policy other than the default, and before `gate_arrivals`. The
    newcomer is the last element, the others are in the order of arrival; a call with several
    prompts is one element, with the choices and prompt tokens of all. Return one float per element;
    equals go latest first. Of those that score above the newcomer just enough are refused to make
    room for all its choices, and whoever need not go in the end is spared, the lowest first; if all
    of them would not do, the newcomer is refused, and nobody else suffers. Who is refused gets the
    error that a refused newcomer gets; nothing had been streamed to it. Default: newcomer. Stops at
    the first answer.
    """


@hookspec
def on_arrived(arrived: RequestColumns, step: StepView) -> None:
    """Learn which requests have come since the last step.

    Called once a step, before all other hooks, with at least one request, if somebody listens.
    `generated_tokens` are those that a request had before it came, as after a restart of the
    engine; then `resumed` is True. In the first step of policies that took the place of others,
    everybody who is here is told of, waiting, running or parked, with `resumed` True. A request
    may end without another word if its client leaves. Several choices that share a prompt are one
    request. Every policy of the profile that has this hook is told. A fault counts, and costs the
    other policies nothing. Default: nobody listens.
    """


@hookspec
def on_admitted(admitted: RequestColumns, step: StepView) -> None:
    """Learn which requests got a seat in this step, and what is left of their prefill.

    Called once a step, after the admissions, with at least one request, if somebody listens. Those
    that come back from a preemption are among them: `preemptions` tells, and `on_resumed` after
    this. Several choices that share a prompt are one request, with its first seat. Every policy of
    the profile that has this hook is told. A fault counts, and costs the other policies nothing.
    Default: nobody listens.
    """


@hookspec
def on_preempted(preempted: RequestColumns, step: StepView) -> None:
    """Learn which requests lost their seat in this step, and wait again.

    Called once a step, after the last of them has left and before `on_admitted`, with at least one
    request, if somebody listens. Parked ones are among them. They hold nothing on the device any
    more; `remaining_prefill` is what neither the prefix cache nor a copy on the host saves them,
    and `preemptions` counts this one. Several choices that share a prompt are one request. Every
    policy of the profile that has this hook is told. A fault counts, and costs the other policies
    nothing. Default: nobody listens.
    """


@hookspec
def on_resumed(resumed: RequestColumns, step: StepView) -> None:
    """Learn which preempted requests got a seat again in this step.

    Called once a step, after `on_admitted`, which tells of them as well, with at least one request,
    if somebody listens. It has nothing to do with the column `resumed`, which is about requests
    that policies have not seen come. Every policy of the profile that has this hook is told. A
    fault counts, and costs the other policies nothing. Default: nobody listens.
    """


@hookspec
def on_generated(generated: RequestColumns, step: StepView) -> None:
    """Learn which requests got a token in this step: one each, counted in `generated_tokens`.

    Called once a step, in the reap, with at least one request, if somebody listens, and before
    `on_finished` tells of those for whom it was the last. Every policy of the profile that has this
    hook is told. A fault counts, and costs the other policies nothing. Default: nobody listens.
    """


@hookspec
def on_finished(finished: RequestColumns, step: StepView) -> None:
    """Learn which requests ended, with all that they generated.

    Called in the reap, with at least one request that ended otherwise than by the client's leaving,
    if somebody listens; again in the same step for those that ended in another way. Requests that
    ended while they waited are among them, perhaps with nothing generated. Every policy of the
    profile that has this hook is told, a default that stands behind a chosen policy included. A
    fault counts, and costs the other policies nothing. Default: nobody listens.
    """
