"""An engine's death is a pause: what clients get is what they would have got without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from cadenza.service.errors import EngineUnavailable, GenerationFailed
from cadenza.service.events import Delta, Finished, Preempted, Resumed
from cadenza.service.request import GenerationRequest
from cadenza.wire.arrays import view_ids
from cadenza.wire.messages import EngineConfig, FaultCount, PolicyConfig, UseProfile, UseShadow

from .fake_engine import FakeEngine


@dataclass
class Told:
    """What a client had of one choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    finished: Finished | None = None


async def told(front, request: GenerationRequest, deaths: Sequence[int] = ()) -> dict[int, Told]:
    """By choice; an engine dies after as many steps as `deaths` says, counted over all engines."""
    front.engine.auto = False
    generation = await front.generator.submit(request)
    choices: dict[int, Told] = {}
    ended = False
    for step in range(60):
        if step in deaths:
            front.engine.die()
            await front.recover()
        await front.engine.until(lambda: bool(front.engine.received))
        await front.step()
        for event in generation.take():
            if isinstance(event, Delta):
                choice = choices.setdefault(event.choice, Told())
                choice.text += event.text
                choice.token_ids += event.token_ids
                choice.logprobs += event.logprobs
            elif isinstance(event, Finished):
                assert choices[event.choice].finished is None
                choices[event.choice].finished = event
        ended = ended or generation.is_over
        if ended:
            return choices
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="plain"),
        pytest.param({"stop": ["ger!"]}, id="text-held-for-a-stop-string"),
        pytest.param({"stop": ["r! the"], "include_stop_str_in_output": True}, id="no-match"),
        pytest.param({"max_tokens": 7}, id="length-within-a-character"),
        pytest.param({"logprobs": 2}, id="logprobs"),
        pytest.param({"n": 3, "logprobs": 0}, id="choices"),
        pytest.param({"n": 2, "prompt_logprobs": 1}, id="scored-prompt"),
    ],
)
def test_nothing_is_lost_doubled_or_changed_wherever_the_engine_dies(run, open_front, fields):
    async def main():
        async with open_front(recovers=True) as front:
            front.says("a \N{TIGER FACE} tiger! there")
            request = GenerationRequest(text="x", **{"max_tokens": 30, **fields})
            undisturbed = await told(front, request)
            num_steps = max(len(each.token_ids) for each in undisturbed.values()) + 2
            for death in range(num_steps):
                assert await told(front, request, [death]) == undisturbed, death
            assert await told(front, request, [2, 4, 6]) == undisturbed
            assert front.is_clean()

    run(main())


def test_rows_that_ended_are_not_resubmitted_and_the_others_with_what_they_had(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.engine.auto = False
            front.says_tokens(*range(10, 30))
            first = await front.generator.submit(GenerationRequest(text="x", max_tokens=2))
            second = await front.generator.submit(GenerationRequest(text="y", n=2, credit=9))
            waiting = await front.generator.submit(GenerationRequest(text="z", n=2))
            front.engine.seats = 3
            await front.engine.until(lambda: len(front.engine.waiting) == 5)
            await front.step(2)
            stopped, running = second._choices
            front.client.work.finish(stopped.number, 2)
            front.engine.die()
            second.reprioritise(-5)
            front.client.work.grant(running.number, 4)
            waiting.set_deadline(12345.0)
            await front.recover()
            await front.engine.until(lambda: len(front.engine.waiting) == 3)

            [[resumed]] = [each.rows for each in front.engine.resubmits()]
            assert view_ids(resumed.emitted).tolist() == [10, 11]
            assert (resumed.choice, resumed.n, resumed.priority) == (1, 1, -5)
            assert resumed.credit == 9 + 4 - 4
            [whole] = front.engine.submits()
            assert (whole.n, whole.emitted, whole.deadline_s) == (2, b"", 12345.0)
            for generation in (first, second, waiting):
                generation.cancel()

    run(main())


def test_a_reader_gets_no_more_than_it_takes_from_both_engines_together(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.says_tokens(*range(10, 40))
            front.engine.auto = False
            request = GenerationRequest(text="x", n=2, credit=8, max_tokens=20)
            generation = await front.generator.submit(request)
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            await front.step(2)
            front.engine.die()
            await front.recover()
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            await front.step(9)
            assert [choice.num_tokens for choice in generation._choices] == [4, 4]
            generation.grant(2)
            await front.engine.until(
                lambda: front.engine.credits[generation._choices[1].number].left
            )
            await front.step(2)
            assert [choice.num_tokens for choice in generation._choices] == [5, 5]
            generation.cancel()

    run(main())


def test_clients_learn_that_a_seat_was_lost_and_who_waits_meanwhile_is_served(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            serving = []
            front.client.watch_serving(serving.append)
            front.says_tokens(11, 12, 13)
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            await front.engine.until(lambda: bool(front.engine.waiting))
            await front.step()
            front.engine.die()
            assert "gone" in await front.client.loss()
            assert not front.generator.is_ready
            with pytest.raises(EngineUnavailable):
                front.client.reset_prefix_cache()
            cancelled = await _submitted_in_the_pause(front)
            cancelled.cancel()
            served = await _submitted_in_the_pause(front)
            front.engine.auto = True
            await front.recover()

            assert [d.token_ids async for each in served for d in each if isinstance(d, Delta)]
            events = [event async for batch in generation for event in batch]
            kinds = [type(event) for event in events]
            assert kinds.index(Preempted) < kinds.index(Resumed)
            records = front.generator.timeline(generation.id).records
            [record] = [each for each in records if each.kind == "interrupted"]
            assert record.facts == {
                "reason": "The engine process is gone.",
                "generated_tokens": 1,
            }
            assert front.generator.metrics.decisions["interrupted"] == 1
            assert serving == [False, True]
            assert front.is_clean()

    run(main())


def test_that_a_request_ended_is_known_though_its_engine_could_not_tell(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.engine.auto = False
            front.says_tokens(*range(10, 30))
            early, late = [
                await front.generator.submit(GenerationRequest(text="x")) for _ in range(2)
            ]
            told = await front.generator.submit(GenerationRequest(text="x"))
            await front.engine.until(lambda: len(front.engine.waiting) == 3)
            await front.step(2)
            told.cancel()
            await front.told()
            front.engine.die()  # before it hears of the next
            early.cancel()
            await front.client.loss()
            late.cancel()
            await front.recover()

            assert front.generator.metrics.decisions["finished"] == 3
            for generation in (told, early, late):
                [choice] = front.generator.status(generation.id).choices
                assert (choice.state, choice.reason) == ("finished", "aborted")
            for generation in (early, late):
                [choice] = front.generator.status(generation.id).choices
                assert choice.generated_tokens == 2

    run(main())


async def _submitted_in_the_pause(front):
    """As a request that was being encoded when the engine died."""
    ready = front.client.limits
    [job] = [
        await front.generator._prepare(entry, 0, timer, ready)
        for entry, timer in [_entered(front, GenerationRequest(text="late", max_tokens=3))]
    ]
    [generation] = front.generator._launch_all([job], ready.max_num_seqs)
    return generation


def _entered(front, request):
    from cadenza.service.request_timer import RequestTimer
    from cadenza.service.validation import check_all

    ready = front.client.limits
    checked = check_all([request], front.generator.limits, ready)
    timer = RequestTimer(front.generator.metrics)
    return front.generator._entrance.enter(checked, ready), timer


def test_totals_go_on_and_states_do_not(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.engine.told_counters = {"steps": 7, "computed_tokens": 70, "preemptions": 2}
            await front.told()
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=1))
            async for _ in generation:
                pass
            front.engine.die()
            await front.client.loss()
            assert front.client.counters.free_blocks == front.client.counters.running == 0
            await front.recover()
            front.engine.told_counters = {"steps": 1, "computed_tokens": 5}
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=1))
            async for _ in generation:
                pass
            counters = front.client.counters
            assert (counters.steps, counters.computed_tokens, counters.preemptions) == (8, 75, 2)
            assert counters.generated_tokens == 2

    run(main())


def test_another_engine_begins_with_the_policies_that_the_last_one_had(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            await front.control.use({"decisions": {"order_admissions": "edf"}})
            await front.control.shadow({"decisions": {"order_admissions": "hrrn"}})
            front.engine.told_policy_faults = (FaultCount("edf", "order_admissions", 2, False),)
            front.engine.tell_decisions()
            front.engine.step()
            await front.told()
            front.engine.die()
            await front.client.loss()
            front.client.blame("edf", "order_admissions")
            first = EngineConfig(model="m", policies=PolicyConfig(trace=True))
            config = front.control.engine_config(first)
            await front.recover()
            await front.control.restore_shadow()

            assert config.policies.chosen == {"order_admissions": ("edf",)}
            assert config.step_log_goes_on
            assert config.policy_faults == (FaultCount("edf", "order_admissions", 3, True),)
            assert front.engine.shadow.chosen == {"order_admissions": ("hrrn",)}

    run(main())


def test_a_shadow_comes_back_though_another_change_began_first(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            await front.control.shadow({"decisions": {"order_admissions": "hrrn"}})
            front.engine.die()
            await front.recover()
            engine = front.engine
            engine.answers_changes = False
            profile = {"decisions": {"order_admissions": "edf"}}
            changing = asyncio.ensure_future(front.control.use(profile))
            await engine.until(lambda: isinstance(engine.received[-1], UseProfile))
            asked = engine.received[-1]
            restoring = asyncio.ensure_future(front.control.restore_shadow())
            await front.told()
            assert not any(isinstance(each, UseShadow) for each in engine.received)

            engine.answers_changes = True
            engine.answer_change(asked)
            await asyncio.gather(changing, restoring)
            assert engine.policies.chosen == {"order_admissions": ("edf",)}
            assert engine.shadow.chosen == {"order_admissions": ("hrrn",)}

    run(main())


class Poisoned:
    """Engines that die when they work at some requests, with so many of their tokens out."""

    def __init__(self, front, poison: dict[int, int]) -> None:
        self.front = front
        self.poison = poison  # first token of the prompt -> number of tokens
        self.num_deaths = 0
        self.at_work: list[set[int]] = []  # by death

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            engine: FakeEngine = self.front.engine
            rows = [*engine.running.values(), *engine.waiting.values()]
            if any(self._kills(row) for row in rows):
                await self._die(engine, rows)
            else:
                await self.front.step()

    def _kills(self, row) -> bool:
        prompt = view_ids(row.submit.prompt).tolist()
        return self.poison.get(prompt[0]) == len(row.emitted)

    async def _die(self, engine, rows) -> None:
        """In the forward pass after the frame that tells of the last admissions."""
        self.num_deaths += 1
        self.at_work.append({row.submit.request for row in rows})
        engine.tell_admissions()
        engine.die()
        await self.front.recover()
        await self.front.told()


@pytest.mark.parametrize("place", [0, 3])
def test_what_engines_die_of_is_found_and_fails_alone(run, open_front, place):
    async def main():
        async with open_front(recovers=True) as front:
            front.says_tokens(*range(10, 20))
            front.engine.auto = False
            requests = [
                await front.generator.submit(GenerationRequest(text=text, max_tokens=8))
                for text in "abXcd"
            ]
            await front.engine.until(lambda: len(front.engine.waiting) == 5)
            bad = requests[2]
            poisoned = Poisoned(front, {view_ids_of(front, "X"): place})
            await poisoned.run(40)

            assert poisoned.num_deaths == 3
            # Two had got past their places, and those behind it were not let in
            assert poisoned.at_work == [{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, {1, 2, 3}]
            with pytest.raises(GenerationFailed, match="three times at the same place") as caught:
                [batch async for batch in bad]
            assert not caught.value.retryable
            [choice] = front.generator.status(bad.id).choices
            assert (choice.state, choice.reason) == ("finished", "failed")
            for good in requests:
                if good is not bad:
                    events = [event async for batch in good for event in batch]
                    tokens = [t for e in events if isinstance(e, Delta) for t in e.token_ids]
                    assert tokens == [*range(10, 18)]
            late = await front.generator.submit(GenerationRequest(text="e", max_tokens=1))
            await front.step(3)
            assert [batch async for batch in late]
            assert front.is_clean()

    run(main())


def view_ids_of(front, text: str) -> int:
    return front.tokenizer.encode_text(text)[0]


def test_requests_that_get_on_between_deaths_are_no_suspects(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.says_tokens(*range(10, 60))
            front.engine.auto = False
            generations = [
                await front.generator.submit(GenerationRequest(text=text, max_tokens=40))
                for text in "ab"
            ]
            for _ in range(8):
                await front.engine.until(lambda: len(front.engine.waiting) == 2)
                await front.step(2)
                front.engine.die()
                await front.recover()
            await front.engine.until(lambda: len(front.engine.waiting) == 2)
            for generation in generations:
                generation.cancel()

    run(main())


def test_when_there_is_to_be_no_other_engine_everybody_may_try_again_elsewhere(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            front.engine.die()
            await front.client.loss()
            front.client.fail("too many deaths")
            with pytest.raises(GenerationFailed, match="too many deaths") as caught:
                [batch async for batch in generation]
            assert caught.value.retryable
            with pytest.raises(EngineUnavailable):
                await front.generator.submit(GenerationRequest(text="x"))
            await front.client.lost()

    run(main())


def test_a_service_that_closes_in_a_pause_says_so(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            front.engine.die()
            await front.client.loss()
            front.client.close()
            with pytest.raises(GenerationFailed, match="shutting down"):
                [batch async for batch in generation]

    run(main())
