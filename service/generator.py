"""Takes requests in: checks them, encodes them off the loop, and sends them to the engine."""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from cadenza.service.control import Control
from cadenza.service.departures import Departures
from cadenza.service.encoder import Encoder
from cadenza.service.engine_client import EngineClient
from cadenza.service.entrance import Entrance
from cadenza.service.errors import EngineUnavailable, InvalidRequest, UnknownModel
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.generation import Generation
from cadenza.service.job import Job, max_tokens
from cadenza.service.limits import Limits
from cadenza.service.logprob_limits import refuse_costly
from cadenza.service.metrics import Metrics
from cadenza.service.prompt import token_ids
from cadenza.service.queue import Entry
from cadenza.service.recorder import Recorder
from cadenza.service.request import GenerationRequest
from cadenza.service.request_timer import RequestTimer
from cadenza.service.resumable_stream import Later
from cadenza.service.resumption import Resumption
from cadenza.service.timelines import RequestStatus, Subject, Timeline, Timelines
from cadenza.service.tokenizer import Tokenizer
from cadenza.service.tracing import Tracer
from cadenza.service.turns import Turns
from cadenza.service.validation import CheckedRequest, check, check_all
from cadenza.wire.messages import Ready

_MANY_TOKENS = 1 << 17  # to list or decode, which takes about 30 ms


class Generator:
    """One served model. Belongs to the event loop that made it; `close` when that ends."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        *,
        model_names: Sequence[str],
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        policies: FrontPolicies | None = None,
        tracer: Tracer | None = None,
        recorder: Recorder | None = None,
        later: Later | None = None,
    ) -> None:
        """Serve `engine` under `model_names`, of which the first is told to clients.

        `later` ends the grace of streams that nobody reads; None: the running loop does.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self.model_names = tuple(model_names)
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.policies = policies or FrontPolicies()
        self.created = int(time.time())
        self._entrance = Entrance(self.limits.max_queued, self.policies, engine, self.metrics)
        self._open: set[Generation] = set()  # launched, and their answers not yet delivered
        self._num_entering = 0  # requests between their arrival and their launch
        self._draining = False
        self.is_paused = False  # takes no requests until it is resumed
        self._departures = Departures()
        self.resumption = Resumption(
            self.limits.resumption, self.metrics, later, on_left=self._departures.note
        )
        self._timelines = Timelines()
        engine.watch_decisions(self._timelines.add)
        engine.watch_decisions(self.metrics.count_decisions)
        engine.watch_counters(self.metrics.count_step)
        self._encoder = Encoder(tokenizer)
        self._turns = Turns()
        self._tracer = tracer
        self._recorder = recorder

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    @property
    def is_ready(self) -> bool:
        """Whether a request sent now would be served now."""
        return self.engine.is_serving and not (self._draining or self.is_paused)

    @property
    def num_queued(self) -> int:
        """Choices accepted here that have had no seat yet."""
        return self._entrance.queue.num_taken

    @property
    def num_in_flight(self) -> int:
        """Requests between their arrival and the delivery of their answer, over all protocols."""
        return self._num_entering + len(self._open) + self.resumption.num_undelivered

    @property
    def num_records_dropped(self) -> int:
        """Decisions that are missing in the timelines of generations that are known."""
        return self._timelines.num_dropped

    def timeline(self, generation_id: str) -> Timeline | None:
        """What was decided about a generation, running or ended; None if it is not known."""
        return self._timelines.get(generation_id)

    def status(self, generation_id: str) -> RequestStatus | None:
        """How far a generation is, running or ended; None if it is not known."""
        return self._timelines.status(generation_id)

    def check_model(self, name: object) -> None:
        """Accept a served name, or none at all.

        Raises:
            UnknownModel: another name.
        """
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise UnknownModel(f"The model does not exist here; served: {served}.")

    async def submit(
        self, request: GenerationRequest, control: Control | None = None
    ) -> Generation:
        """Start a request. Waits while the engine loads and while the prompt is encoded.

        What its client wants otherwise meanwhile, and later, comes through `control`.

        Cancelling the call leaves nothing behind. The caller must iterate the generation to its
        end, or cancel it.

        Raises:
            InvalidRequest: a field is wrong, prompt and max_tokens exceed the model's context, or
                too many log-probabilities are asked for.
            UnknownModel: the request names a model that is not served.
            Overloaded: too many choices wait already, or a policy refuses; later, perhaps, from
                the generation as well, if it makes room for another before it has begun.
            QuotaExceeded: a policy refuses what the request's tenant may not have now.
            EngineUnavailable: the engine is dead.
        """
        [generation] = await self._submit([request], control)
        return generation

    async def submit_all(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Start several requests as one: each as `submit` does, and all of them or none.

        None reaches the engine before every one is known to be right, and a service that begins
        to drain meanwhile serves them all.

        Raises:
            RequestError: as `submit`, for the first that cannot be served.
        """
        return await self._submit(requests, None)

    async def _submit(
        self, requests: Sequence[GenerationRequest], control: Control | None
    ) -> list[Generation]:
        """`control` is of the first."""
        if self._draining:
            raise EngineUnavailable("The service is shutting down.")
        if self.is_paused:
            raise EngineUnavailable("The service takes no further requests for now.")
        self._num_entering += len(requests)
        try:
            return await self._enter(requests, control or Control())
        finally:
            self._num_entering -= len(requests)
            self._departures.note()

    async def caught_up(self) -> None:
        """Wait until the engine has handled what was sent so far, or is dead. Never raises.

        For whoever tells it much about requests that run already: nothing else holds them back.
        """
        await self.engine.caught_up()

    async def encode(self, request: GenerationRequest) -> Sequence[int]:
        """The token ids of a request's prompt, as `submit` would send them, if it has room or not.

        Waits while the engine loads, and takes a place in the queue.

        Raises:
            InvalidRequest: a field is wrong, or so many characters cannot fit the context.
            UnknownModel: the request names a model that is not served.
            Overloaded: too many choices wait already.
            EngineUnavailable: the engine is dead.
        """
        self.check_model(request.model)
        with self._place():
            ready = await self.engine.ready()
            checked = check(request, self.limits, ready)
            ids = await self._encoder.prompt(checked, ready)
        most = _most_told(ready)
        if len(ids) > most:
            field = checked.prompt.field
            raise InvalidRequest(f"{field} has {len(ids)} tokens; at most {most} are told.", field)
        return ids

    async def decode(self, model: object, tokens: Any) -> str:
        """The text of token ids, control tokens as they are written. Takes a place in the queue.

        Raises:
            InvalidRequest: they are no ids of the vocabulary, or too many.
            UnknownModel, Overloaded, EngineUnavailable: as `encode`.
        """
        self.check_model(model)
        with self._place():
            ready = await self.engine.ready()
            ids = token_ids(tokens, "tokens", _most_told(ready), ready.vocab_size)
            return await self._encoder.text(ids)

    async def token_names(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it, for ids that `encode` returned."""
        return await self._encoder.names(ids)

    async def _enter(
        self, requests: Sequence[GenerationRequest], control: Control
    ) -> list[Generation]:
        timers = [RequestTimer(self.metrics) for _ in requests]
        for request in requests:
            self.check_model(request.model)
        ready = await self._ready()
        checked = check_all(requests, self.limits, ready)
        refuse_costly(checked, ready.max_model_len)
        entry = self._entrance.enter(checked, ready)
        control.entered(entry.places[0])
        try:
            with entry.preparing():
                jobs = [
                    await self._prepare(entry, index, timer, ready)
                    for index, timer in enumerate(timers)
                ]
            entry.generations = generations = self._launch_all(jobs, ready.max_num_seqs)
            control.launched(generations[0])
            return generations
        except BaseException:
            entry.leave()
            raise

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests from now on, and wait for the running ones to end.

        Returns whether they have. Closing the engine client fails those that have not.
        """
        self._draining = True
        return await self._departures.until(lambda: self.is_idle, timeout_s)

    def pause(self) -> None:
        """Refuse new requests until `resume`. Those that are here go on."""
        self.is_paused = True

    def resume(self) -> None:
        """Take requests again, unless it drains for good."""
        self.is_paused = False
        self._departures.note()

    async def wait_while_paused(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, or until requests are taken again."""
        await self._departures.until(lambda: not (self.num_in_flight and self.is_paused), timeout_s)

    def open_statuses(self) -> list[tuple[str, RequestStatus]]:
        """How far each generation is that is open, the oldest first, with its id."""
        known = [(each.id, self._timelines.status(each.id)) for each in self._open]
        told = [(name, status) for name, status in known if status is not None]
        return sorted(told, key=lambda each: each[1].subject.began_s)

    @property
    def is_idle(self) -> bool:
        """Whether no request is anywhere between its arrival and the delivery of its answer."""
        running = self._open or len(self.engine.work) or self.num_queued
        return not (running or self.resumption.num_undelivered)

    def close(self) -> None:
        """Let go of streams that may be resumed, and of the encoder threads.

        Running encodes finish on their own.
        """
        self.resumption.close()
        self._encoder.close()

    async def _ready(self) -> Ready:
        """The engine's limits; waiting for them takes a place in the queue."""
        if self.engine.limits is not None and self.engine.is_serving:
            return self.engine.limits
        with self._place():
            return await self.engine.ready()

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        place = self._entrance.hold()
        try:
            yield
        finally:
            place.leave_all()
            self._departures.note()

    async def _prepare(self, entry: Entry, index: int, timer: RequestTimer, ready: Ready) -> Job:
        checked = entry.requests[index]
        prompt = await self._encoder.prompt(checked, ready)
        self._entrance.learn(entry, index, len(prompt))
        sampling = await self._encoder.sampling(checked, ready)
        options = await self._encoder.options(checked, prompt)
        return Job(
            checked=entry.requests[index],  # as its client wants it by now
            prompt=prompt,
            sampling=sampling,
            options=options,
            max_tokens=max_tokens(checked, len(prompt), ready.max_model_len),
            places=entry.places[index],
            timer=timer,
        )

    def _launch_all(self, jobs: Sequence[Job], max_rows: int) -> list[Generation]:
        launched: list[Generation] = []
        with contextlib.ExitStack() as undo:
            position = self.num_queued - sum([job.places.num_held for job in jobs])
            for name, job in zip(_names(len(jobs)), jobs, strict=True):
                generation = self._launch(name, job, max_rows, position)
                position += job.places.num_held
                undo.callback(generation.cancel)
                launched.append(generation)
            undo.pop_all()
        for job in jobs:
            job.timer.accepted()
        return launched

    def _launch(self, name: str, job: Job, max_rows: int, position: int) -> Generation:
        """`position`: how many choices wait that were there before, or are of earlier prompts."""
        generation = Generation(
            id=name,
            model=self.model_name,
            prompt=job.prompt,
            deadline_s=job.checked.deadline_s,
            work=self.engine.work,
            timer=job.timer,
            places=job.places,
            queue_position=position,
            turns=self._turns,
            on_closed=self._close,
        )
        job.timer.launched(
            tenant=job.checked.tenant,
            prompt_tokens=len(job.prompt),
            n=job.checked.num_choices,
            max_tokens=job.max_tokens if job.options.generates else 0,
        )
        if self._tracer is not None:
            job.timer.watch(partial(self._tracer.end, job.traced(generation)))
        if self._recorder is not None:
            job.timer.watch(self._recorder.watching(job))
        checked = job.checked
        first = self.engine.take_numbers(checked.num_choices)
        submits = job.submits(first, max_rows, self._salt(checked))
        generation.launch(submits, self.tokenizer, job.options)
        subject = Subject(
            model=generation.model,
            tenant=checked.tenant,
            prompt_tokens=generation.prompt_tokens,
            created=generation.created,
        )
        self._timelines.begin(generation.id, submits, subject)
        self._open.add(generation)
        return generation

    def _salt(self, checked: CheckedRequest) -> str:
        """Under a salt of its own a prompt finds nothing in the cache, and all of it is scored."""
        if checked.sampling.prompt_logprobs is None:
            return checked.cache_salt
        return secrets.token_hex(self.limits.max_salt_chars)  # longer than any client's

    def _close(self, generation: Generation) -> None:
        self._open.discard(generation)
        self._timelines.end(generation.id)
        self._departures.note()


def _most_told(ready: Ready) -> int:
    """Tokens that are encoded or decoded for somebody to look at."""
    return max(_MANY_TOKENS, ready.max_model_len)


def _names(count: int) -> list[str]:
    """Ids for the generations of one call: its own, or that and a number where there are several.

    Nobody can guess them: they are what lets a client look at its request.
    """
    call = uuid.uuid4().hex
    return [call] if count == 1 else [f"{call}-{index}" for index in range(count)]
