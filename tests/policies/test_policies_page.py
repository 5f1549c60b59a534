"""docs/policies.md has every hook, its signature, and two policies for it that work."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadenza.policies import RequestColumns, ServiceView, StepView, hookimpl, hookspecs
from cadenza.policies.arrivals import Arrival
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import ARGUMENTS, is_meant_as_policy
from cadenza.testing import Driver, PolicyConformance, profile_of
from cadenza.testing.tables import COLUMNS
from tests.policies.asked import asked_hooks
from tests.policies.pages import DOCS, Block, blocks_of

PAGE = (DOCS / "policies.md").read_text()
BLOCKS = blocks_of(PAGE)
EXAMPLES = [block for block in BLOCKS if block.mark in ("minimal", "fuller", "also")]
CHECKS = (
    PolicyConformance.test_a_profile_takes_it,
    PolicyConformance.test_answers_can_be_used,
    PolicyConformance.test_answers_follow_from_the_questions,
    PolicyConformance.test_views_are_left_alone,
    PolicyConformance.test_it_forgets_who_is_gone,
)
ELEMENTS = {"int64": "int", "float64": "float", "bool": "bool"}


def marked(mark: str) -> dict[str, str]:
    """The blocks with a mark, by name; each name once."""
    blocks = [block for block in BLOCKS if block.mark == mark]
    assert len({block.name for block in blocks}) == len(blocks)
    return {block.name: block.content for block in blocks}


def signature_of(hook: str) -> str:
    """As it is written in hookspecs.py, without markers and docstring."""
    source = inspect.getsource(getattr(hookspecs, hook))
    return source[source.index("def ") : source.index('    """')]


def headings(page: str) -> list[str]:
    return [line[3:] for line in page.splitlines() if line.startswith("## ")]


def undocumented(page: str, hooks: list[str]) -> list[str]:
    return [hook for hook in hooks if hook not in headings(page)]


def test_every_hook_has_a_heading_and_every_heading_with_a_hooks_name_has_the_hook():
    assert undocumented(PAGE, list(ARGUMENTS)) == []
    assert undocumented(PAGE, ["on_teatime"]) == ["on_teatime"]

    named = [heading for heading in headings(PAGE) if "_" in heading]
    assert sorted(named) == sorted(ARGUMENTS)


def test_signatures_are_those_of_the_specifications():
    assert marked("signature") == {hook: signature_of(hook) for hook in ARGUMENTS}


def test_every_hook_has_two_examples_of_its_own():
    for mark in ("minimal", "fuller"):
        examples = marked(mark)
        assert sorted(examples) == sorted(ARGUMENTS)
        for hook, content in examples.items():
            assert f"    def {hook}(self" in content


def test_the_page_names_the_decision_that_a_flag_takes():
    for hook, short in SHORT.items():
        if hook in ARGUMENTS:
            assert f"`--policy {short}=NAME`" in section(hook), hook


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_column_and_field_is_described():
    columns = dict(re.findall(r"^\| `(\w+)` \| (int|float|bool) \|", PAGE, re.MULTILINE))
    assert columns == {name: ELEMENTS[dtype.__name__.strip("_")] for name, dtype in COLUMNS.items()}

    table = section("What a policy sees").split("`StepView`")[1]
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE)))
    assert sorted(described) == sorted(each.name for each in fields(StepView))


def test_every_column_and_field_of_the_front_is_described():
    arrivals, service = section("What the front process shows").split("`ServiceView`")
    for table, names in (
        (arrivals, Arrival._fields),
        (service, [each.name for each in fields(ServiceView)]),
    ):
        described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE)))
        assert sorted(described) == sorted(names)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.mark}-{each.name}")
def test_an_example_works_and_conforms(example: Block):
    names: dict[str, Any] = {"__name__": "example"}
    for block in (*(each for each in BLOCKS if each.mark == "prelude"), example):
        where = f"{example.mark} {example.name}"
        exec(compile(block.content, where, "exec", dont_inherit=True), names)

    policies = [
        each
        for each in names.values()
        if isinstance(each, type) and each.__module__ == "example" and is_meant_as_policy(each)
    ]
    assert policies
    for policy in policies:
        conformance = type("Conformance", (PolicyConformance,), {"policy": policy})()
        for check in CHECKS:
            check(conformance)


def hooks_with_a_test(folder: Path) -> set[str]:
    """The hooks for which a test named after them is in the folder."""
    trees = [ast.parse(file.read_text()) for file in sorted(folder.rglob("test_*.py"))]
    functions = [
        each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)
    ]
    return {
        each.name.removeprefix("test_hook_")
        for each in functions
        if each.name.startswith("test_hook_")
    }


def test_every_hook_has_a_test_of_its_name():
    """And conftest.py sees to it that the test makes the runner ask a policy of its own."""
    tested = hooks_with_a_test(Path(__file__).parent)

    assert {*ARGUMENTS} <= tested
    assert "on_teatime" not in tested


def test_a_default_that_is_asked_is_no_test_of_a_hook():
    with asked_hooks() as asked:
        driver = Driver(profile_of({"order_admissions": NewestFirst}))
        driver.add(0, [1], max_tokens=1)
        driver.run()

    assert asked.has_own("order_admissions")
    assert ("new-token-ratio", "reserve_blocks") in asked.pairs
    assert not asked.has_own("reserve_blocks")


class NewestFirst:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> np.ndarray:
        return -waiting.arrival
