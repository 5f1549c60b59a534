"""docs/plugins.md, executed from top to bottom in one folder."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from cyclopts import CycloptsError

from cadenza.cli import serve
from cadenza.cli.main import app, main
from cadenza.policies.choices import DECISIONS
from cadenza.policies.presets import PRESETS
from cadenza.service import engine_process
from cadenza.service.http.asked import asked
from cadenza.service.limits import Limits
from cadenza.service.wishes import FORMS
from tests.policies.pages import DOCS, blocks_of
from tests.policies.plugins import install, install_fixtures

PAGE = (DOCS / "plugins.md").read_text()
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Front:
    """In place of the service, whose configuration has been checked when it gets here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    async def run(self) -> None:
        return None


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(serve, "Front", Front)
    never_started = SimpleNamespace(end=lambda: None)
    monkeypatch.setattr(engine_process, "start_engine", lambda: never_started)
    monkeypatch.setattr(serve, "load_tokenizer", lambda path: None)
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    at_warnings = structlog.make_filtering_bound_logger(logging.WARNING)  # as it is by default
    monkeypatch.setattr(serve, "_log", structlog.wrap_logger(None, wrapper_class=at_warnings))
    (tmp_path / "site").mkdir()
    return Reader(tmp_path, monkeypatch)


class Reader:
    """Does what a reader of the page does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def write(self, name: str, content: str) -> None:
        file = self._folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)

    def type(self, line: str, capsys: pytest.CaptureFixture[str]) -> str:
        """What a command line writes."""
        words = shlex.split(line)
        if words[0] == "pytest":
            return self._test(words[1:])
        if words[:2] == ["pip", "install"]:
            self._install(self._folder / words[2])
            return ""
        with self._monkeypatch.context() as patch:
            patch.setenv("CADENZA_PLUGINS", "acme-policies" if self._is_installed else "")
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            assert words[0] == "cadenza"
            with pytest.raises(SystemExit):
                main(words[1:])
        said = capsys.readouterr()
        return said.out.replace("Loading SmolLM2-135M-Instruct\n", "") + said.err

    @property
    def _is_installed(self) -> bool:
        return any((self._folder / "site").iterdir())

    def _test(self, arguments: list[str]) -> str:
        fixtures = install_fixtures(self._folder / "fixtures")
        path = os.pathsep.join(filter(None, (str(fixtures), *sys.path)))
        quiet = ["-p", "no:cacheprovider", "-q", "-W", "error"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pytest", *quiet, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=110,
        )
        return done.stdout + done.stderr

    def _install(self, package: Path) -> None:
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        modules = {file.stem: file.read_text() for file in package.glob("*.py")}
        points = project["entry-points"]["cadenza"]
        install(self._folder / "site", project["name"], points, modules)


def test_every_example_works(
    reader: Reader, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for block in blocks_of(PAGE):
        if block.mark == "file":
            reader.write(block.name, block.content)
        elif block.language == "console":
            for line, expected in COMMAND.findall(block.content):
                assert matches(expected, reader.type(line, capsys)), line
        elif block.language == "sh":
            for line in block.content.replace("\\\n", "").splitlines():
                understand(line)
        else:
            assert block.language == "python"
            code = compile(block.content, "plugins.md", "exec", dont_inherit=True)
            exec(code, {"__name__": "example"})
    sys.modules.pop("acme_policies", None)


def understand(line: str) -> None:
    """The command has such flags; what it does needs a service."""
    name, *words = shlex.split(line.removesuffix("&"))
    if name == "curl":
        understand_request(words)
        return
    assert name == "cadenza"
    app.parse_args(words, exit_on_error=False, print_error=False)


def understand_request(words: list[str]) -> None:
    """The service takes such a completion."""
    _, flag, header, data, body = words
    name, _, value = header.partition(": ")
    assert (flag, data) == ("-H", "-d")
    assert FORMS[name].fullmatch(value)
    assert {*json.loads(body)} <= {*asked(Limits())["CompletionRequest"]["properties"]}


def test_a_command_that_does_not_exist_is_not_understood():
    with pytest.raises(CycloptsError):
        understand("cadenza policies shadow --of")


def matches(expected: str, written: str) -> bool:
    """Whether this was written: `...` stands for anything, and columns may be wider or narrower."""
    pattern = re.escape(_narrow(expected)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, _narrow(written), re.DOTALL) is not None


def _narrow(text: str) -> str:
    return re.sub(" +", " ", text)


def test_the_page_has_every_decision_and_preset():
    assert all(f"`{preset}`" in PAGE for preset in PRESETS)

    for short, hook in DECISIONS.items():
        assert re.search(rf"^\| `{short}` \| .*{hook if hook != 'observer' else 'on_'}", PAGE, re.M)
