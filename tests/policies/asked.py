"""Which hooks policies are asked while something runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.runner import PolicyRunner


class AskedHooks:
    """Pairs of policy and hook."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()

    def has_own(self, hook: str) -> bool:
        """Whether a policy that is not built in was asked."""
        return any(policy not in BUILTIN and asked == hook for policy, asked in self.pairs)


@contextmanager
def asked_hooks() -> Iterator[AskedHooks]:
    """All that runners ask meanwhile."""
    seen, ask = AskedHooks(), PolicyRunner.ask

    def watch(self: PolicyRunner, policy: str, hook: str, *rest: Any, **named: Any) -> Any:
        seen.pairs.add((policy, hook))
        return ask(self, policy, hook, *rest, **named)

    PolicyRunner.ask = watch  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        PolicyRunner.ask = ask  # type: ignore[method-assign]
