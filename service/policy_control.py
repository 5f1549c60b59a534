"""Changes the policies of both processes while they serve, and tells what they are.

A change has two phases. This process checks the whole profile first, by building it, and then the
engine builds and tries it. Only when the engine has it in use does this process follow. So a
profile that one of them cannot use decides in neither; what stays is that plugins which were found
on the way are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from cadenza.policies.choices import Choices, choices_of
from cadenza.policies.contract import FRONT_HOOKS
from cadenza.policies.errors import ProfileError, quoted
from cadenza.policies.guesses import guess
from cadenza.policies.library import LIMIT_S, Library, prepare, too_late
from cadenza.policies.preparation import aside
from cadenza.policies.profile import Profile
from cadenza.service.engine_client import EngineClient
from cadenza.service.errors import (
    ChangeUnderWay,
    EngineUnavailable,
    InvalidRequest,
    UnknownPolicy,
)
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.policy_report import PolicyReport, report
from cadenza.wire.messages import (
    DescribePolicies,
    EngineConfig,
    PoliciesAnswer,
    PoliciesState,
    PolicyConfig,
    ReleasePolicy,
    ToEngine,
    UseProfile,
    UseShadow,
)

PATIENCE_S = 45.0  # of whoever asked for a change: both processes' limits, and some steps

MAX_PROFILE_BYTES = 64 << 10  # of a profile that comes over a network

_log = structlog.get_logger(__name__)


class PolicyControl:
    """One service's policies, as an administrator sees them. Belongs to the event loop."""

    def __init__(
        self,
        engine: EngineClient,
        policies: FrontPolicies,
        library: Library,
        config: PolicyConfig,
        *,
        preset: str | None = None,
        may_set_watermark: bool = True,
        limit_s: float = LIMIT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Control `engine` and `policies`, which both began with `config`.

        Args:
            engine: the other process.
            policies: this one's.
            library: the policies that are known here.
            config: what was chosen.
            preset: under which name.
            may_set_watermark: whether that of a preset is applied.
            limit_s: for building a profile here.
            patience_s: for a whole change, after which whoever asked is told that it goes on.
        """
        self._engine = engine
        self._policies = policies
        self._library = library
        self._config = config
        self._shadow_config: PolicyConfig | None = None
        self._limit_s = limit_s
        self._patience_s = patience_s
        self._preset = preset
        self._may_set_watermark = may_set_watermark
        self._shadow_preset: str | None = None
        self._change: asyncio.Task[None] | None = None
        library.settle(policies.profile)

    async def describe(self) -> PolicyReport:
        """Which policies there are, which of them decide, and how they fare.

        Raises:
            EngineUnavailable: the engine does not serve.
        """
        state = await self._engine.ask(DescribePolicies)
        assert isinstance(state, PoliciesState)
        present, stale = await asyncio.to_thread(
            lambda: (self._library.present, self._library.stale)
        )
        return report(
            state,
            present,
            stale,
            self._policies,
            preset=self._preset,
            shadow_preset=self._shadow_preset,
        )

    async def use(self, content: Mapping[str, Any]) -> None:
        """Let the profile decide that `content` describes as a profile file does.

        It goes on if the caller is cancelled.

        Raises:
            InvalidRequest: one of the processes cannot use it, with everything that is wrong.
            ChangeUnderWay: another change has not ended yet.
            EngineUnavailable: the engine does not serve, or has not said yet what became of it.
        """
        await self._alone(lambda: self._use(content))

    async def shadow(self, content: Mapping[str, Any] | None) -> None:
        """Ask the policies of a second profile as well, and compare; None: of none.

        Raises:
            InvalidRequest, ChangeUnderWay, EngineUnavailable: as for `use`.
        """
        await self._alone(lambda: self._shadow(content))

    async def release(self, policy: str) -> None:
        """Ask a quarantined policy again, in either process. Others are left as they are.

        Raises:
            UnknownPolicy: it is not in use.
            InvalidRequest: it cannot be built, with the process that asks it nevertheless if any.
            ChangeUnderWay, EngineUnavailable: as for `use`.
        """
        await self._alone(lambda: self._release(policy))

    def engine_config(self, first: EngineConfig) -> EngineConfig:
        """What another engine begins with, in place of one that began with `first` and is gone."""
        return msgspec.structs.replace(
            first,
            policies=self._config,
            step_log_goes_on=True,
            policy_faults=tuple(self._engine.totals.policy_faults),
            hook_uses=tuple(self._engine.totals.hook_uses),
        )

    async def restore_shadow(self) -> None:
        """Let another engine have the shadow that the one before had. What it compared is lost.

        It waits for a change that began with the engine, which would refuse both at once.
        """
        while self._change is not None and not self._change.done():
            await asyncio.wait([self._change])
        config = self._shadow_config
        if config is None:
            return
        try:
            await self._alone(lambda: self._tell(lambda number: UseShadow(number, config)))
        except (InvalidRequest, EngineUnavailable) as error:
            _log.error("shadow policies lost", error=str(error))

    async def _alone(self, change: Callable[[], Awaitable[None]]) -> None:
        if self._change is not None and not self._change.done():
            raise ChangeUnderWay("Another change of policies is under way.")

        async def run() -> None:
            await change()

        # The next change may have begun by the time that this one's end is noticed here
        under_way = self._change = asyncio.create_task(run())
        under_way.add_done_callback(_seen)
        # Whoever asked may leave in the middle; the processes must not disagree for that, nor when
        # the engine's answer comes late
        done, _ = await asyncio.wait([under_way], timeout=self._patience_s)
        if not done:
            under_way.add_done_callback(_log_late)
            raise EngineUnavailable(
                f"The engine has not said within {self._patience_s:g} s whether it can do this. "
                "The change goes on, and until it ends there is no other."
            )
        under_way.result()

    async def _use(self, content: Mapping[str, Any]) -> None:
        choices = await _read(content)
        before = self._policies.profile
        profile = await self._build(choices, before)
        config = self._with(choices, profile)
        try:
            await self._tell(lambda number: UseProfile(number, config))
        except BaseException:
            self._let_go(profile)
            raise
        self._library.settle(profile)
        try:
            self._policies.use(profile)
        except ProfileError as error:  # what it should take over was built anew meanwhile
            self._let_go(profile)
            raise InvalidRequest(
                f"The engine process uses this profile now, and the front process cannot: {error}"
            ) from error
        self._config, self._preset = config, choices.preset
        self._let_go(before)
        _log.info("policies changed", decisions=profile.names)

    async def _shadow(self, content: Mapping[str, Any] | None) -> None:
        choices = config = profile = None
        if content is not None:
            choices = await _read(content)
            profile = await self._build(choices, None)
            config = self._with(choices, profile)
        try:
            await self._tell(lambda number: UseShadow(number, config))
        except BaseException:
            self._let_go(profile)
            raise
        if profile is not None:
            self._library.settle(profile)
        self._let_go(self._policies.shadow(profile))
        self._shadow_preset = choices.preset if choices is not None else None
        self._shadow_config = config

    def _let_go(self, profile: Profile | None) -> None:
        if profile is not None:
            aside(profile.let_go, self._limit_s)

    async def _release(self, policy: str) -> None:
        """This process first: if the live profile fails here, the engine is not told."""
        try:
            faults = self._policies.release(policy)
        except KeyError as error:
            used = self._policies.in_use
            near = guess(policy, used)
            message = f"The policy {quoted(policy)} is not in use{near}; {', '.join(used)} are."
            raise UnknownPolicy(message) from error
        told = "; ".join(f"{fault} (in the {name} profile)" for name, fault in faults.items())
        if "live" in faults:
            raise InvalidRequest(f"In the front process {told}; the engine is as it was.")
        try:
            await self._tell(lambda number: ReleasePolicy(number, policy))
        except InvalidRequest as error:
            here = f"in the front process {told}" if faults else "the front process asks it"
            raise InvalidRequest(f"In the engine process {error.message}; {here}.") from error
        if faults:
            raise InvalidRequest(f"In the front process {told}; the engine process asks it.")

    async def _build(self, choices: Choices, before: Profile | None) -> Profile:
        """The profile, built and tried in a thread.

        Raises:
            InvalidRequest: everything that is wrong with it; or it takes too long.
        """

        def build() -> Profile:
            return self._library.tried(
                choices.chosen, choices.options, FRONT_HOOKS, before=before, faults=choices.faults
            )

        preparation = prepare(build)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(preparation.future)
        except TimeoutError as error:
            preparation.abandon()
            raise InvalidRequest(too_late(choices.chosen, before, self._limit_s)) from error
        except ProfileError as error:
            raise InvalidRequest(str(error)) from error

    def _with(self, choices: Choices, profile: Profile) -> PolicyConfig:
        """The same sources, with other choices."""
        return msgspec.structs.replace(
            self._config,
            chosen=dict(choices.chosen),
            options={policy: dict(options) for policy, options in choices.options.items()},
            watermark=choices.watermark if self._may_set_watermark else None,
            digests=self._library.digests(profile),
        )

    async def _tell(self, change: Callable[[int], ToEngine]) -> None:
        """Raises InvalidRequest, with the engine's words, if it cannot do this.

        It waits for as long as it takes: what the engine does late, this process must do as well.
        """
        answer = await self._engine.ask(change, limit_s=None)
        assert isinstance(answer, PoliciesAnswer)
        if answer.error is not None:
            raise InvalidRequest(answer.error)


async def _read(content: Mapping[str, Any]) -> Choices:
    """In a thread: thousands of names that are none take half a second."""
    return await asyncio.to_thread(choices_of, content)


def _log_late(change: asyncio.Task[None]) -> None:
    """Whoever asked has been told that it goes on."""
    error = None if change.cancelled() else change.exception()
    _log.warning("late change of policies ended", error=None if error is None else str(error))


def _seen(change: asyncio.Task[None]) -> None:
    """Its failure is no surprise, even if nobody waits for it any more."""
    if not change.cancelled():
        change.exception()
