"""The policies that come with Cadenza keep what is asked of those of others."""

from __future__ import annotations

import pytest

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.contract import hooks_of
from cadenza.testing import PolicyConformance

HASHES = "test_answers_do_not_depend_on_the_hash_seed"  # a process for each policy
STARVES = "test_nobody_starves"
CHECKS = [name for name in vars(PolicyConformance) if name.startswith("test_") and name != HASHES]
CASES = [
    (check, name)
    for name, policy in BUILTIN.items()
    for check in CHECKS
    if check != STARVES or "order_admissions" in hooks_of(policy)
]


def conform(name: str, check: str) -> None:
    conformance = type("Conformance", (PolicyConformance,), {"policy": BUILTIN[name]})()
    getattr(conformance, check)()


@pytest.mark.parametrize(("check", "name"), CASES)
def test_a_built_in_policy_conforms(check: str, name: str):
    conform(name, check)


@pytest.mark.extra
@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_policy_answers_alike_in_every_process(name: str):
    conform(name, HASHES)
