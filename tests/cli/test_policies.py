"""`cadenza policies list`, `show` and `check`, and how plugins reach `cadenza serve`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.cli.main import main
from cadenza.cli.options import PolicyOptions
from cadenza.cli.profile import allowed_plugins, configure
from cadenza.engine.policies import library_of
from cadenza.policies import hookspecs
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import ARGUMENTS
from cadenza.policies.errors import ProfileError
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import EngineConfig, Start, ToEngine

MINE = '''
from dataclasses import dataclass
from cadenza.policies import hookimpl


class Mine:
    """Whoever asks for least."""

    name = "mine"
    requires_hookspec = ">=0.2,<1"

    @dataclass(frozen=True)
    class Options:
        depth: int = 3
        share: float = 0.5

    def __init__(self, options):
        self.options = options

    @hookimpl
    def order_admissions(self, waiting):
        return waiting.max_tokens.astype(float)

    @hookimpl
    def on_finished(self, finished):
        pass
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.fixture(autouse=True)
def no_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_PLUGINS", "")
    monkeypatch.delenv("CADENZA_TRACE_PLUGINS", raising=False)


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0
) -> tuple[str, str]:
    """What `cadenza policies` writes to standard output and error, when it ends with `status`."""
    with pytest.raises(SystemExit) as left:
        main(["policies", *map(str, arguments)])
    said = capsys.readouterr()
    assert left.value.code == status, said
    return said.out, said.err


def listed(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> dict[str, dict[str, object]]:
    out, _ = run(capsys, "list", "--json", *flags)
    report = json.loads(out)
    assert report["hookspec_version"] == HOOKSPEC_VERSION
    return {policy.pop("name"): policy for policy in report["policies"]}


def test_the_list_has_all_policies_and_what_would_decide(capsys: pytest.CaptureFixture[str]):
    policies = listed(capsys)

    assert {*policies} == {*BUILTIN}
    active = {hook: name for name, policy in policies.items() for hook in policy["active"]}
    assert active == DEFAULTS
    assert policies["past-future"] == {
        "hooks": ["reserve_blocks", "on_finished"],
        "source": "built in",
        "version": None,
        "requires_hookspec": None,
        "active": [],
    }


def test_the_list_takes_the_flags_of_serve(capsys: pytest.CaptureFixture[str], folder: Path):
    flags = ["--scheduling-policy", "priority", "--policy", "order=mine", "--plugins-dir", folder]

    policies = listed(capsys, *flags)

    assert policies["mine"]["active"] == ["order_admissions", "on_finished"]
    assert policies["mine"]["source"] == str(folder / "mine.py")
    assert policies["mine"]["requires_hookspec"] == ">=0.2,<1"
    assert policies["strict-priority"]["active"] == ["allow_displacement"]
    assert policies["priority"]["active"] == []


def test_the_list_is_a_table_for_people(capsys: pytest.CaptureFixture[str]):
    out, _ = run(capsys, "list", "--policy", "order=priority")

    header, *rows = (line.split() for line in out.splitlines())
    assert header == ["POLICY", "FROM", "HOOKSPEC", "DECIDES", "HOOKS"]
    assert ["priority", "built", "in", "any", "order", "order_admissions"] in rows
    assert ["fcfs", "built", "in", "any", "-", "order_admissions"] in rows


def test_a_wrong_profile_is_told_whole_and_is_status_2(capsys: pytest.CaptureFixture[str]):
    flags = [
        "--policy",
        "ordr=fcfs",
        "--policy",
        "order=prioritty",
        "--policy",
        "victims=newest:a=1",
    ]

    out, error = run(capsys, "list", *flags, status=2)

    assert not out
    first, *faults = error.splitlines()
    assert first == "cadenza: 3 faults:"
    for fault, part in zip(faults, ("'order'?", "'priority'?", "takes no options"), strict=True):
        assert part in fault


def test_show_explains_a_policy(capsys: pytest.CaptureFixture[str], folder: Path):
    out, _ = run(capsys, "show", "mine", "--plugins-dir", folder)

    assert out.splitlines() == [
        f"mine, from {folder / 'mine.py'}",
        "",
        "Whoever asks for least.",
        "",
        "Hooks:",
        "  order_admissions (--policy order=mine)",
        "  on_finished (told whenever the policy is in use; --policy observer=mine does only that)",
        "Options:",
        "  depth: int, default 3",
        "  share: float, default 0.5",
        f"Hookspec: >=0.2,<1 (this is {HOOKSPEC_VERSION})",
    ]


def test_show_explains_every_built_in_policy(capsys: pytest.CaptureFixture[str]):
    for name, cls in BUILTIN.items():
        out, _ = run(capsys, "show", name)
        assert str(cls.__doc__).splitlines()[0] in out


def test_show_of_nobody_guesses(capsys: pytest.CaptureFixture[str]):
    _, error = run(capsys, "show", "prioritty", status=2)

    assert error == "cadenza: there is no policy 'prioritty' (did you mean 'priority'?)\n"


def test_show_tells_of_a_broken_plugin(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "broken.py").write_text("1 +")

    _, error = run(capsys, "show", "fcfs", "--plugins-dir", tmp_path, status=2)

    assert "plugin 'broken'" in error


def test_check_finds_nothing_wrong(capsys: pytest.CaptureFixture[str], folder: Path):
    expected = "mine: order_admissions, on_finished\nno faults\n"

    assert run(capsys, "check", folder / "mine.py")[0] == expected
    assert run(capsys, "check", folder)[0] == expected


def test_check_of_a_module_on_the_path(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    source = "\n@hookimpl\ndef register_policies():\n    return [Mine]\n"
    (folder / "module_of_mine.py").write_text(MINE + source)
    monkeypatch.syspath_prepend(folder)

    out, _ = run(capsys, "check", "module_of_mine")

    assert out == "mine: order_admissions, on_finished\nno faults\n"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("    def order", "    async def order", "a coroutine function (async)"),
        (
            "self.options = options",
            "raise OSError('no file')",
            "cannot be used: OSError: no file at ",
        ),
        ("self, options", "self, options, more", "cannot be used: "),
        (">=0.2,<1", ">=7", "needs hookspec >=7"),
        ("from dataclasses", "import no_such_module\nfrom dataclasses", "fails to import"),
    ],
)
def test_check_tells_what_is_wrong_and_is_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, before: str, after: str, fault: str
):
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace(before, after, 1))

    out, _ = run(capsys, "check", file, status=1)

    (told,) = [line for line in out.splitlines() if line.startswith("fault: ")]
    assert fault in told
    assert "'mine'" in told


def test_check_does_not_build_what_nobody_can_build_without_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace("depth: int = 3", "depth: int"))

    assert "no faults" in run(capsys, "check", file)[0]
    assert "depth: int, must be given" in run(capsys, "show", "mine", "--plugins-dir", tmp_path)[0]


@pytest.mark.parametrize("target", ["no-such-plugin", "no.such.module", "no_such.py", "..."])
def test_check_of_nothing_is_a_wrong_use(capsys: pytest.CaptureFixture[str], target: str):
    _, error = run(capsys, "check", target, status=2)

    assert target in error


@pytest.mark.parametrize(
    ("value", "allowed"), [(None, None), ("", ()), ("a", ("a",)), (" a, b,", ("a", "b"))]
)
def test_the_allow_list_is_read_from_the_environment(
    value: str | None, allowed: tuple[str, ...] | None
):
    assert allowed_plugins({} if value is None else {"CADENZA_PLUGINS": value}) == allowed


@pytest.mark.parametrize(
    ("value", "trace"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_tracing_is_asked_for_in_the_environment(value: str | None, trace: bool):
    environment = {} if value is None else {"CADENZA_TRACE_PLUGINS": value}

    assert configure(PolicyOptions(), environment).config.trace is trace


def test_the_engine_builds_the_profile_that_the_flags_describe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    Path("profile.toml").write_text("[decisions]\norder = 'mine'\n[options.mine]\nshare = 0.25\n")
    flags = PolicyOptions(
        scheduling_policy="priority",
        policy=("order=mine:depth=9", "reserve=no-evict"),
        policy_file=Path("profile.toml"),
        plugins_dir=Path(),
    )

    front = configure(flags, {"CADENZA_PLUGINS": ""})
    message = encode(Start(EngineConfig(model="m", policies=front.config)))
    monkeypatch.chdir("/")
    (start,) = FrameReader(ToEngine).feed(message)
    assert isinstance(start, Start)
    config = start.config.policies
    engine = library_of(config).profile(config.chosen, config.options)

    assert engine.names == front.profile.names
    assert engine.names["order_admissions"] == "mine"
    assert engine.names["reserve_blocks"] == "no-evict"
    (impl,) = engine.caller("order_admissions", "mine").get_hookimpls()
    assert (impl.plugin.options.depth, impl.plugin.options.share) == (9, 0.25)


def test_a_plugin_that_fails_to_import_stops_the_start_by_name(folder: Path):
    (folder / "broken.py").write_text("raise RuntimeError('no licence')")

    with pytest.raises(ProfileError, match=r"plugin 'broken' .* RuntimeError: no licence"):
        configure(PolicyOptions(plugins_dir=folder), {})


@pytest.mark.parametrize("command", [["list"], ["show", "fcfs"], ["check", "cadenza.policies"]])
def test_the_commands_start_without_torch(command: list[str]):
    code = (
        "import sys, cadenza.cli.main as m\n"
        f"try: m.main(['policies', *{command!r}])\n"
        "finally: print(*sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )

    imported = set(done.stdout.splitlines()[-1].split())
    assert {"cadenza.cli.policy_reports", "cadenza.cli.plugin_check"} & imported, done.stderr
    assert not imported & {"torch", "transformers", "grpc", "starlette", "cadenza.service.front"}


def told_of_hooks(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(("policies", "hooks", *arguments))
    assert left.value.code == 0
    return capsys.readouterr().out


def test_hooks_lists_every_hook_with_its_process(capsys):
    lines = [line.split() for line in told_of_hooks(capsys).splitlines()[1:]]

    assert [line[0] for line in lines] == [*ARGUMENTS]
    told = {line[0]: (line[1], line[2]) for line in lines}
    assert told["order_admissions"] == ("order", "engine")
    assert told["gate_arrivals"] == ("gate", "front")
    assert told["on_finished"] == ("-", "engine")


@pytest.mark.parametrize("hook", ARGUMENTS)
def test_a_hook_is_explained_by_its_specification(capsys, hook: str):
    told = told_of_hooks(capsys, hook)

    assert told.startswith(f"@hookimpl\ndef {hook}(self, {ARGUMENTS[hook][0]}: ")
    assert inspect.getdoc(getattr(hookspecs, hook)) in told
    if hook in SHORT:
        assert told_of_hooks(capsys, SHORT[hook]) == told
        assert f"--policy {SHORT[hook]}=NAME" in told


@pytest.mark.parametrize(
    ("name", "meant"), [("order_admission", "order_admissions"), ("ordr", "order")]
)
def test_a_hook_that_is_none_is_told(capsys, name: str, meant: str):
    with pytest.raises(SystemExit):
        main(("policies", "hooks", name))
    assert f"there is no hook {name!r} (did you mean {meant!r}?)" in capsys.readouterr().err


BAD_OPTIONS = """
import dataclasses
from cadenza.policies import hookimpl


def fail():
    raise SystemExit("no default")


class Mine:
    name = "mine"

    @dataclasses.dataclass(frozen=True)
    class Options:
        {field}

    def __init__(self, options):
        pass

    @hookimpl
    def order_admissions(self, waiting):
        return None
"""


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            "a: int = dataclasses.field(default_factory=fail)",
            "cannot be made: SystemExit: no default",
        ),
        ("a: 'Nothing' = 3", "cannot be read: name 'Nothing' is not defined"),
        (
            "a: int = 3\n        def __post_init__(self): fail()",
            "refuses its options: SystemExit: no default",
        ),
    ],
)
def test_options_that_fail_are_told(capsys, tmp_path: Path, field: str, message: str):
    (tmp_path / "mine.py").write_text(BAD_OPTIONS.format(field=field))
    flags = ("--plugins-dir", str(tmp_path))
    told = []
    for command in (
        ("check", str(tmp_path)),
        ("list", "--policy", "order=mine", *flags),
        ("show", "mine", *flags),
    ):
        with pytest.raises(SystemExit):
            main(("policies", *command))
        captured = capsys.readouterr()
        told.append(captured.out + captured.err)

    assert message in told[0]
    assert message in told[1]
    assert "refuses" in message or message in told[2]
