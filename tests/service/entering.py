"""An entrance without an engine: what it asks of one are counters and limits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.profile import Profile
from cadenza.service.engine_client import EngineClient
from cadenza.service.entrance import Entrance
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.limits import Limits
from cadenza.service.metrics import Metrics
from cadenza.service.queue import Entry
from cadenza.service.request import GenerationRequest
from cadenza.service.validation import check
from cadenza.wire.messages import Counters, Ready

READY = Ready(
    max_model_len=256,
    vocab_size=1000,
    eos_token_ids=(1,),
    num_blocks=64,
    num_host_blocks=0,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    device="cpu",
    dtype="float32",
    load_s=0.1,
)


def front_policies(profile: Profile, guard: HookGuard | None) -> FrontPolicies:
    """As the front has them; without a guard no call takes any time."""
    if guard is None:
        return FrontPolicies(profile)
    return FrontPolicies(profile, guard=guard, timer=time.monotonic)


class Door:
    """An `Entrance` on a clock of its own, and what calls want to bring in."""

    def __init__(
        self,
        size: int = 4,
        *,
        policies: dict[str, type] | None = None,
        options: dict[str, dict[str, Any]] | None = None,
        guard: HookGuard | None = None,
        **chosen: str | list[str],
    ) -> None:
        """`chosen` are the front's decisions of the profile."""
        self.now_s = 1000.0
        self.counters = Counters()
        self.metrics = Metrics()
        profile = Profile(chosen, {**BUILTIN, **(policies or {})}, options)
        self.policies = front_policies(profile, guard)
        engine: EngineClient = SimpleNamespace(counters=self.counters)  # type: ignore[assignment]
        self.entrance = Entrance(size, self.policies, engine, self.metrics, lambda: self.now_s)

    @property
    def queue(self):
        return self.entrance.queue

    def enter(self, *prompts: list[int] | str, **fields: Any) -> Entry:
        """One call, of one prompt unless several are given."""
        requests = [
            GenerationRequest(
                **({"text": prompt} if isinstance(prompt, str) else {"token_ids": prompt}), **fields
            )
            for prompt in prompts or ([1, 2, 3],)
        ]
        checked = [check(request, Limits(), READY) for request in requests]
        return self.entrance.enter(checked, READY)
