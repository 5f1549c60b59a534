"""Where calls are taken in or refused: by gates, by the queue's bound, or to make room for another.

All of it happens in one go on the loop, so that nothing changes between a question and what is
done about its answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView, table_of
from cadenza.service.engine_client import EngineClient
from cadenza.service.errors import Overloaded, QuotaExceeded, RequestError
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.metrics import QUEUE_FULL, SHED, Metrics
from cadenza.service.prompt_lengths import PromptLengths
from cadenza.service.queue import Entry, Places, Queue
from cadenza.service.validation import CheckedRequest
from cadenza.wire.messages import Ready


class Entrance:
    """Lets calls into a queue of `size` places."""

    def __init__(
        self,
        size: int,
        policies: FrontPolicies,
        engine: EngineClient,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = Queue(size, clock)
        self._lengths = PromptLengths()
        self._policies = policies
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._num_asked = 0

    def enter(self, requests: Sequence[CheckedRequest], limits: Ready) -> Entry:
        """Take places for a call's requests: for all of them, or none.

        Raises:
            Overloaded: there is no room, or a gate says that the service has no more to give.
            QuotaExceeded: a gate says that the client's tenant has had enough.
        """
        decisions, queue = self._policies.decisions, self.queue
        num_choices = sum([request.num_choices for request in requests])
        lacking = queue.num_taken + num_choices - queue.size
        if lacking > 0 and not decisions.may_shed:
            raise self._refused(QUEUE_FULL, queue.overloaded(), requests)
        entry = self._entry(requests)
        try:
            if lacking > 0 or decisions.may_refuse:
                self._shed(self._judge(entry, lacking, limits))
            queue.enter(entry)
        except BaseException:
            for tenant in entry.tenants:
                queue.tenants.leave(tenant)
            raise
        return entry

    def hold(self) -> Places:
        """A place for a call that cannot be checked before the engine serves.

        Raises:
            Overloaded: there is none.
        """
        try:
            return self.queue.hold()
        except Overloaded as error:
            raise self._refused(QUEUE_FULL, error) from None

    def learn(self, entry: Entry, index: int, prompt_tokens: int) -> None:
        """The prompt of one request of a call has so many tokens."""
        self._lengths.learn(entry.requests[index].prompt, prompt_tokens)
        entry.learn(index, prompt_tokens)

    def _shed(self, leaving: Sequence[Entry]) -> None:
        overloaded = self.queue.overloaded
        errors = [self._refused(SHED, overloaded(), each.requests) for each in leaving]
        for each, error in zip(leaving, errors, strict=True):
            each.refuse(error)

    def _entry(self, requests: Sequence[CheckedRequest]) -> Entry:
        return Entry(
            requests,
            [self._lengths.of(request.prompt) for request in requests],
            [self.queue.tenants.enter(request.tenant) for request in requests],
            self._clock(),
        )

    def _judge(self, entry: Entry, lacking: int, limits: Ready) -> Sequence[Entry]:
        """Who must leave for a newcomer. Nobody has left yet.

        Raises:
            Overloaded, QuotaExceeded: the newcomer is refused.
        """
        self._num_asked += 1
        leaving: Sequence[Entry] = ()
        if lacking > 0:
            waiting = self.queue.waiting
            service = self._view(entry.arrived_s, limits)
            leaving = _just_enough(waiting, self._scores(waiting, entry, service, limits), lacking)
            if not leaving:
                raise self._refused(QUEUE_FULL, self.queue.overloaded(), entry.requests)
        if self._policies.decisions.may_refuse:
            service = self._view(entry.arrived_s, limits, leaving)
            arrivals = self._arrivals(entry, leaving, limits)
            refused = self._policies.decisions.gate_arrivals(arrivals, service)
            if refused is not None:
                raise self._refused(refused.gate, _error(refused.refusal), entry.requests)
        return leaving

    def _arrivals(self, newcomer: Entry, leaving: Sequence[Entry], limits: Ready) -> ArrivalColumns:
        """The newcomer's requests as they are once `leaving` have left."""
        left: Counter[int] = Counter()
        for each in leaving:
            for request, tenant in zip(each.requests, each.tenants, strict=True):
                left[tenant] += request.num_choices
        return ArrivalColumns(
            table_of(
                [
                    each._replace(tenant_queued=each.tenant_queued - left[each.tenant]).packed()
                    for each in newcomer.arrivals(self.queue, limits.max_model_len)
                ]
            )
        )

    def _scores(
        self, waiting: Sequence[Entry], newcomer: Entry, service: ServiceView, limits: Ready
    ) -> list[float]:
        everybody = (*waiting, newcomer)
        table = table_of([each.packed(self.queue, limits.max_model_len) for each in everybody])
        table["tenant_queued"] = self.queue.queued_by_each(table["tenant"])
        scores = self._policies.decisions.shed_load(ArrivalColumns(table), service)
        numbers: list[float] = scores.tolist()
        return numbers

    def _view(self, now_s: float, limits: Ready, leaving: Sequence[Entry] = ()) -> ServiceView:
        """As it is once `leaving` have left."""
        counters = self._engine.counters
        queued = self.queue.num_taken - sum([each.num_choices for each in leaving])
        return ServiceView(
            step_id=self._num_asked,
            now_s=now_s,
            queued=queued,
            max_queued=self.queue.size,
            queued_tokens=self.queue.num_tokens
            - sum([sum(each.prompt_tokens) for each in leaving]),
            wait_s=self.queue.pace.wait_s(queued),
            running=counters.running,
            free_blocks=counters.free_blocks + counters.cached_blocks,
            total_blocks=limits.num_blocks,
            block_size=limits.block_size,
            tenants=self.queue.tenants.numbers,
        )

    def _refused(
        self, reason: str, error: RequestError, requests: Sequence[CheckedRequest] = ()
    ) -> RequestError:
        refused = self._metrics.refused
        refused[reason] = refused.get(reason, 0) + 1
        for tenant in {request.tenant for request in requests}:
            self._metrics.of_tenant(tenant).refused += 1
        return error


def _just_enough(
    waiting: Sequence[Entry], scores: Sequence[float], lacking: int
) -> Sequence[Entry]:
    """Those that score above the newcomer, the last, and give back as many places; or nobody.

    The highest leave first. Whoever of them need not have left in the end is spared, the lowest
    first: the highest, too, if the places of others that must leave are enough without its own.
    """
    newcomer = scores[-1]
    above = [index for index in range(len(waiting)) if scores[index] > newcomer]
    above.sort(key=lambda index: (scores[index], index))  # the first to be spared first
    spare = sum(waiting[index].num_choices for index in above) - lacking
    if spare < 0:
        return ()
    leaving = []
    for index in above:
        spare -= waiting[index].num_choices
        if spare < 0:
            spare += waiting[index].num_choices
            leaving.append(waiting[index])
    return leaving


def _error(refusal: Refusal) -> RequestError:
    if refusal.limit == "tenant":
        return QuotaExceeded(refusal.reason, refusal.retry_after_s)
    return Overloaded(refusal.reason, refusal.retry_after_s)
