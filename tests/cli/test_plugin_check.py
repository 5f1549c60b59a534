"""What `cadenza policies check` says of names that are no plugins, and of names that are taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.cli.errors import UsageError
from cadenza.cli.plugin_check import check_plugin
from tests.policies.plugins import install, policy_module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, whose module is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("acme_mod", None)


def refusal_of(target: str) -> str:
    with pytest.raises(UsageError) as refused:
        check_plugin(target)
    return str(refused.value)


def acme(site: Path, *, group: str = "cadenza", points: bool = True) -> None:
    named = {"acme-point": "acme_mod"} if points else {}
    install(site, "acme-policies", named, {"acme_mod": policy_module("gold-short")}, group=group)


def test_an_installed_distribution_without_an_entry_point_is_told(site: Path):
    acme(site, points=False)

    assert refusal_of("Acme_Policies") == (
        "'Acme_Policies' (1.5) is installed, but has no entry point in group 'cadenza'"
    )


@pytest.mark.parametrize("group", ["cadenza.policies", "cadenza_plugins", "candenza"])
def test_a_wrong_group_is_told(site: Path, group: str):
    acme(site, group=group)

    assert refusal_of("acme-policies") == (
        "'acme-policies' (1.5) is installed, but has no entry point in group 'cadenza'; "
        f"the group must not be {group!r}"
    )
    assert refusal_of("acme-point") == (
        f"'acme-point' is an entry point; the group must not be {group!r}"
    )


def test_the_name_of_a_policy_is_told_whose_it_is(site: Path):
    acme(site)

    assert refusal_of("gold-short") == (
        "'gold-short' is no plugin, but a policy of acme-policies 1.5; check that"
    )
    assert refusal_of("fcfs") == "'fcfs' is no plugin, but a policy that is built in"


def test_a_name_that_is_nearly_one_is_told(site: Path):
    acme(site)

    assert refusal_of("acme-policy").endswith("and no module (did you mean 'acme-policies'?)")


def test_a_name_that_an_installed_policy_has_is_a_fault(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    acme(site)
    file = site / "_mine.py"
    file.write_text(policy_module("gold-short"))

    assert check_plugin(str(file)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"fault: policy 'gold-short' of {file} has the name of another one, which is from "
        "acme-policies 1.5; rename one"
    )
    for same in ("acme-policies", str(site / "acme_mod.py")):
        assert check_plugin(same) == 0, "it is the installed one"
    monkeypatch.setenv("CADENZA_PLUGINS", "")
    assert check_plugin(str(file)) == 0, "no service loads the other one"
