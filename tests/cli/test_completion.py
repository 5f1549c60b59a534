"""Completion: scripts that their shells read, and that offer what the command takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cadenza.cli.main import app, main
from cadenza.cli.options import ServeOptions

COMMANDS = {name for name in app if not name.startswith("-")}
# `completed CURRENT WORD...`: what is offered where CURRENT stands after the words
COMPLETED = """
source "$1"
shift
COMP_WORDS=(cadenza "${@:2}" "$1")
COMP_CWORD=$(($#))
$(complete -p cadenza | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> str:
    """What the command writes for the shell of the test, bash where it names none."""
    with pytest.raises(SystemExit) as left:
        main(["completion", getattr(request, "param", "bash")])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.fixture
def completed(script: str, tmp_path: Path):
    file = tmp_path / "cadenza.bash"
    file.write_text(script)

    def completed(current: str, *words: str) -> set[str]:
        command = ["bash", "--norc", "-c", COMPLETED, "completed", str(file), current, *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert not done.stderr
        return set(done.stdout.split())

    return completed


def test_bash_offers_every_subcommand(completed):
    known = {
        *("calibrate", "chat", "completion", "config", "models", "policies", "serve", "simulate")
    }
    assert completed("") == COMMANDS == known
    assert completed("se") == {"serve"}
    assert completed("", "config") == {"show", "schema"}


def test_bash_offers_every_flag(completed):
    flags = completed("--", "serve", "demo", "--port", "8000")

    assert flags >= {f"--{field.replace('_', '-')}" for field in flags_of(ServeOptions)}
    assert completed("--max-num-s", "serve") == {"--max-num-seqs"}


def flags_of(options: type[ServeOptions]) -> set[str]:
    return {*options.model_fields} - {"model", "policy_options"}


def test_bash_offers_values_that_are_known(completed):
    assert completed("f", "serve", "--dtype") == {"float32"}
    assert completed("", "completion") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_every_script_names_all_there_is(script: str):
    for name in COMMANDS | {field.replace("_", "-") for field in flags_of(ServeOptions)}:
        assert name in script


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_every_script_is_one(script: str, request: pytest.FixtureRequest):
    """As far as its shell is here to say so."""
    shell = request.node.callspec.params["script"]
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    check = "--no-execute" if shell == "fish" else "-n"
    subprocess.run([shell, check], input=script, check=True, text=True, capture_output=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(["completion", "tcsh"])
    assert left.value.code == 2
    assert "tcsh" in capsys.readouterr().err
