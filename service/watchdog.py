"""Notices an engine that has something to do and says nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cadenza.policies.blame import Culprit
from cadenza.service.engine_client import EngineClient

HEARTBEAT_S = 5.0  # with work pending; an engine speaks every step
HOOK_S = 1.0  # in one call of a policy's hook, which is ended by itself after 10 ms if it can be
LOADING_S = 60.0  # between two words of an engine that loads, or ten times what the first took
_TICK_S = 0.1
_LOADING_MARGIN = 10.0


class Watchdog:
    """Judges one engine by what it says, tick by tick.

    Time that this process itself did not get does not count, so that neither a busy machine nor a
    stopped one makes an engine look hung.
    """

    def __init__(
        self,
        client: EngineClient,
        culprit: Callable[[], Culprit | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`culprit` is the hook call under way in the engine, which began on this `clock`."""
        self._client = client
        self._culprit = culprit
        self._clock = clock
        self._looked_s = clock()
        self._num_heard = client.num_heard
        self._silent_s = 0.0

    async def hang(self) -> str:
        """Wait until the engine hangs; returns a sentence that says so."""
        while (reason := self.look()) is None:  # noqa: ASYNC110 - silence is no event
            await asyncio.sleep(_TICK_S)
        return reason

    def look(self) -> str | None:
        """What is wrong, if anything is, after one more tick."""
        client, now_s = self._client, self._clock()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        has_spoken = client.num_heard != self._num_heard
        self._num_heard = client.num_heard
        if has_spoken or (client.is_serving and not client.is_busy):
            self._silent_s = 0.0
            return None
        self._silent_s += min(elapsed_s, 2 * _TICK_S)
        if self._silent_s > self._limit_s(now_s):
            what = "said nothing" if client.is_serving else "said nothing while it loaded"
            return f"The engine has {what} for {self._silent_s:.1f} s."
        return None

    def _limit_s(self, now_s: float) -> float:
        client = self._client
        if not client.is_serving:
            loaded_s = client.limits.load_s if client.limits else 0.0
            return max(LOADING_S, _LOADING_MARGIN * loaded_s)
        culprit = self._culprit()
        # A hook may just have been called after a long pass
        if culprit is not None and now_s - culprit.since_s > HOOK_S:
            return HOOK_S
        return max(HEARTBEAT_S, client.patience_s)
