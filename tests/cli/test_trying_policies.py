"""Hooks are tried before a policy decides: by `policies check`, `serve --dry-run` and `serve`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.cli import serve
from cadenza.cli.main import main
from cadenza.cli.options import PolicyOptions
from cadenza.cli.plugin_check import check_plugin
from cadenza.cli.profile import configure
from cadenza.policies.contract import ENGINE_HOOKS
from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library

POLICY = """
from cadenza.policies import hookimpl


class Mine:
    name = "mine"

    @hookimpl
    def order_admissions({arguments}):
        return {answer}
"""
WRONG = {
    "a typo": ("self, waiting", "waiting.promt_tokens", "has no attribute 'promt_tokens'"),
    "too short": ("self, waiting", "waiting.prompt_tokens[:-1]", "expected shape (3,), got (2,)"),
    "objects": (
        "self, waiting",
        "waiting.prompt_tokens.astype(object)",
        "expected scores as floats or ints, got dtype object",
    ),
    "no self": ("waiting", "waiting.prompt_tokens", "order_admissions"),
}
FLAGS = ("--policy", "order=mine", "--plugins-dir")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_PLUGINS", "")
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)


def write(folder: Path, arguments: str, answer: str) -> Path:
    file = folder / "mine.py"
    file.write_text(POLICY.format(arguments=arguments, answer=answer))
    return file


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int) -> str:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    said = capsys.readouterr()
    assert left.value.code == status, said
    return said.out if status < 2 else said.err


@pytest.mark.parametrize("case", WRONG)
def test_a_hook_that_fails_at_once_is_told_alike_everywhere(capsys, tmp_path: Path, case: str):
    arguments, answer, message = WRONG[case]
    file = write(tmp_path, arguments, answer)
    with pytest.raises(ProfileError) as refused:  # as `policies use` is refused by the service
        Library(tmp_path, ()).tried({"order_admissions": ("mine",)}, {}, ENGINE_HOOKS)
    assert message in str(refused.value)

    checked = told(capsys, "policies", "check", file, status=1)
    dry = told(capsys, "serve", "demo", "--dry-run", *FLAGS, tmp_path, status=2)
    started = told(capsys, "serve", "demo", *FLAGS, tmp_path, status=2)

    assert checked == f"mine: order_admissions\nfault: {refused.value}\n"
    assert dry == started == f"cadenza: {refused.value}\n"


def test_the_list_tries_nothing(capsys, tmp_path: Path):
    write(tmp_path, "self, waiting", "waiting.promt_tokens")

    assert "mine" in told(capsys, "policies", "list", *FLAGS, tmp_path, status=0)


HANGING = {
    "when it is imported": "hang()\n" + POLICY.format(arguments="self", answer="None"),
    "when it is built": POLICY.format(arguments="self", answer="None").replace(
        "    @hookimpl", "    def __init__(self):\n        hang()\n\n    @hookimpl"
    ),
    "when it is tried": POLICY.format(arguments="self", answer="hang()"),
}
HANG = f"""
import sys
go = sys.modules[{__name__!r}].hanging.go
def hang():
    while not go.wait(0.01):
        pass
"""


class Hanging:
    """What modules of this test wait for, though they may be imported when it is over."""

    go = threading.Event()


hanging = Hanging()


@pytest.fixture
def go() -> Iterator[None]:
    """Ends whatever hangs still."""
    hanging.go = threading.Event()
    yield
    hanging.go.set()


@pytest.mark.parametrize("case", HANGING)
def test_check_has_a_time_limit(capsys, tmp_path: Path, go, case: str):
    file = tmp_path / "mine.py"
    file.write_text(HANG + HANGING[case])

    assert check_plugin(str(file), limit_s=0.05) == 1

    wanted = f"fault: {file} was not imported, and its policies built and tried, within 0.05 s\n"
    assert capsys.readouterr().out == wanted


def test_the_start_has_one_for_building_and_trying(tmp_path: Path, go):
    (tmp_path / "mine.py").write_text(HANG + HANGING["when it is tried"])
    flags = PolicyOptions(policy=("order=mine",), plugins_dir=tmp_path)

    with pytest.raises(ProfileError) as refused:
        configure(flags, {"CADENZA_PLUGINS": ""}, is_tried=True, limit_s=0.05)

    assert str(refused.value) == "The new policies (mine) were not built and tried within 0.05 s."
