"""Where policies come from, and what is refused when they are registered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.discovery import BUILT_IN, Catalog, Discovery, discover
from cadenza.policies.errors import ProfileError
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.testing.driver import Driver
from tests.policies.plugins import install, policy_module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def found(folder: Path, source: str) -> Catalog:
    """What a file of this source, in a --plugins-dir, amounts to."""
    (folder / "mine.py").write_text(source)
    discovery = Discovery()
    discovery.add_folder(folder)
    return discovery.catalog()


def fault_of(folder: Path, source: str) -> str:
    (fault,) = found(folder, source).faults
    return fault


def test_without_plugins_there_are_the_built_in_policies():
    catalog = Discovery().catalog()

    assert catalog.classes == BUILTIN
    assert {each.source for each in catalog.policies.values()} == {BUILT_IN}
    assert not catalog.faults


def test_an_installed_distribution_is_found(site: Path):
    install(site, "acme-policies", {"acme": "acme_mod"}, {"acme_mod": policy_module("backwards")})

    catalog = discover()

    assert not catalog.faults
    policy = catalog.policies["backwards"]
    assert (policy.source, policy.version) == ("acme-policies", "1.5")


def test_what_is_found_decides_only_when_it_is_chosen(site: Path):
    install(site, "acme-policies", {"acme": "acme_mod"}, {"acme_mod": policy_module("backwards")})
    catalog = discover()

    assert admitted(catalog, {}) == [0, 1, 2]
    assert admitted(catalog, {"order_admissions": "backwards"}) == [2, 1, 0]


def admitted(catalog: Catalog, chosen: dict[str, str]) -> list[int]:
    driver = Driver(catalog.profile(chosen), max_num_seqs=1)
    for request in range(3):
        driver.add(request, [1, 2], max_tokens=1)
    driver.run()
    return driver.admitted


def test_an_entry_point_may_name_an_object(site: Path):
    source = policy_module("backwards").replace("@hookimpl\ndef register", "@hookimpl\ndef _unused")
    source += """
        class Plugin:
            @hookimpl
            def register_policies(self):
                return [Backwards]
        plugin = Plugin()
    """.replace("\n        ", "\n")
    source = source.replace("@hookimpl\ndef _unused", "def _unused")
    install(site, "acme", {"acme": "acme_mod:plugin"}, {"acme_mod": source})

    assert "backwards" in discover().policies


def test_the_allow_list_says_what_is_imported_at_all(site: Path):
    broken = "raise RuntimeError('imported')"
    install(site, "acme", {"a": "acme_a", "b": "acme_b"}, {"acme_a": broken, "acme_b": broken})
    install(site, "good", {"g": "good_mod"}, {"good_mod": policy_module("backwards")})

    assert len(discover().faults) == 2
    assert len(discover(allowed=["acme"]).faults) == 2
    assert len(discover(allowed=["a"]).faults) == 1
    assert discover(allowed=[]).classes == BUILTIN
    assert "acme_a" not in sys.modules
    for allowed in (["good"], ["g"], ["Good"]):
        catalog = discover(allowed=allowed)
        assert not catalog.faults
        assert "backwards" in catalog.policies


def test_a_name_on_the_allow_list_that_nobody_has_is_a_fault(site: Path):
    install(site, "acme", {"a": "acme_mod"}, {"acme_mod": policy_module("backwards")})

    (fault,) = discover(allowed=["acne"]).faults

    assert fault == (
        "CADENZA_PLUGINS: there is no plugin 'acne' (did you mean 'acme'?); plugins are a, acme"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_at_all", "fails to import: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "fails to import: SystemExit: 3 at broken_mod.py:1 in <module>"),
        ("1 +", "fails to import: SyntaxError"),
        ("x = 1", "it has no function register_policies() marked with @hookimpl"),
        ("def register_policies(): return []", "it has no function register_policies() marked"),
        (
            "from cadenza.policies import hookimpl\n@hookimpl\ndef register_policies(): return 1",
            "register_policies must return a list of policy classes, and returned int",
        ),
        (
            "from cadenza.policies import hookimpl\n@hookimpl\ndef register_policies(): return [1]",
            "registers 1, which is no class",
        ),
        (
            "from cadenza.policies import hookimpl\n@hookimpl\ndef register_policies(): return []",
            "has no policies",
        ),
        (
            "from cadenza.policies import hookimpl\n@hookimpl\ndef register_policies(): return 1/0",
            "cannot be registered: ZeroDivisionError: division by zero at broken_mod.py:3",
        ),
        (
            "from cadenza.policies import hookimpl\n"
            "@hookimpl\nasync def register_policies(): return []",
            "its register_policies() is async",
        ),
        (
            "from cadenza.policies import hookimpl\n@hookimpl\ndef register_policies(): return []\n"
            "@hookimpl\ndef order_admissions(waiting): return None",
            "order_admissions",
        ),
    ],
)
def test_a_plugin_that_cannot_be_registered_is_told_by_name(site: Path, source: str, message: str):
    install(site, "acme", {"broken": "broken_mod"}, {"broken_mod": source})

    (fault,) = discover().faults

    assert fault.startswith("plugin 'broken' (acme 1.5)")
    assert message in fault


def test_an_entry_point_that_names_a_class_is_told_what_to_name(site: Path):
    install(site, "acme", {"a": "acme_mod:Backwards"}, {"acme_mod": policy_module("b")})

    (fault,) = discover().faults

    assert "it is a class; name a module or object that has register_policies()" in fault


def test_a_profile_of_a_faulty_catalog_is_refused_with_all_faults(site: Path):
    install(site, "acme", {"broken": "broken_mod"}, {"broken_mod": "import no_such_module"})

    with pytest.raises(ProfileError) as refused:
        discover().profile({"order_admissions": "lifo"}, faults=["a flag is wrong"])

    import_fault, flag = refused.value.faults
    assert "'broken' (acme 1.5)" in import_fault
    assert flag == "a flag is wrong"


def test_only_names_that_nobody_has_are_left_out_where_a_plugin_failed(tmp_path: Path):
    chosen = {"order_admissions": "lifo", "gate_arrivals": ["newest"]}

    with pytest.raises(ProfileError) as refused:
        found(tmp_path, "import no_such_module").profile(chosen)

    _, misfit = refused.value.faults
    assert "'newest' does not decide gate_arrivals" in misfit


HEAD = """
from __future__ import annotations
import inspect, types
from dataclasses import dataclass
from cadenza.policies import hookimpl
"""


def test_a_file_needs_no_more_than_a_class(tmp_path: Path):
    source = HEAD + (
        "class _Base:\n    @hookimpl\n    def on_finished(self, finished): pass\n"
        "class Mine(_Base):\n    name = 'mine'\n"
    )

    catalog = found(tmp_path, source)

    assert not catalog.faults
    assert catalog.policies["mine"].source == str(tmp_path / "mine.py")
    assert catalog.policies["mine"].version is None


def test_a_file_may_register_its_policies_itself(tmp_path: Path):
    assert "backwards" in found(tmp_path, policy_module("backwards")).policies


def test_files_that_begin_with_an_underscore_are_left_alone(tmp_path: Path):
    (tmp_path / "_helpers.py").write_text("raise RuntimeError")

    assert not discover(tmp_path).faults


def test_a_file_without_a_policy_is_a_fault(tmp_path: Path):
    assert fault_of(tmp_path, "x = 1").endswith("mine.py) has no policies")


TYPO = "class Mine:\n    def order_admission(self, waiting): pass\n"


def test_a_method_that_is_nearly_a_hook_is_told_where_there_is_no_policy(tmp_path: Path):
    told = "; class Mine has a method order_admission: did you mean 'order_admissions', with"
    assert told in fault_of(tmp_path, TYPO)

    registering = "\n@hookimpl\ndef register_policies(): return {}\n"
    assert told in fault_of(tmp_path, HEAD + TYPO + registering.format("[]"))
    without_name, unmarked = found(tmp_path, HEAD + TYPO + registering.format("[Mine]")).faults
    assert "has no name" in without_name
    assert unmarked.endswith("marked with @hookimpl; order_admission looks like order_admissions")


def test_a_marker_above_a_static_method_is_told_once(tmp_path: Path):
    source = HEAD + NAMED + HOOK.replace("    def", "    @staticmethod\n    def")

    assert fault_of(tmp_path, source).endswith(
        "has order_admissions with @hookimpl above @staticmethod; write @hookimpl below it"
    )
    source = source.replace("@hookimpl", "@hookimpl(specname='select_victims')")
    source = source.replace("@staticmethod", "@classmethod").replace("def order", "def my_order")
    assert "has select_victims with @hookimpl above @classmethod" in fault_of(tmp_path, source)


@pytest.mark.parametrize("name", ["HOOKSPEC_VERSION", "requires_hookspecs", "requires_hookspec"])
def test_a_range_that_a_module_declares_is_told_whose_it_is(tmp_path: Path, name: str):
    source = HEAD + f"{name} = '>=0.4'\n" + NAMED + HOOK

    assert fault_of(tmp_path, source).endswith(
        f"has {name} = '>=0.4', which nobody reads; "
        "let each policy class have requires_hookspec = '>=0.4'"
    )


def test_a_range_under_a_wrong_name_is_told_the_right_one(tmp_path: Path):
    source = HEAD + NAMED + "    requires_hookspecs = '>=0.4'\n" + HOOK

    told = fault_of(tmp_path, source)
    assert told.endswith(
        "has requires_hookspecs = '>=0.4', which nobody reads; call it requires_hookspec"
    )


def test_the_version_of_the_hooks_may_be_imported(tmp_path: Path):
    source = HEAD + "from cadenza.policies.markers import HOOKSPEC_VERSION\n" + NAMED + HOOK

    assert not found(tmp_path, source).faults


def test_a_folder_that_is_none_is_a_fault(tmp_path: Path):
    assert discover(tmp_path / "no").faults == (f"--plugins-dir {tmp_path / 'no'} is no folder",)


HOOK = "    @hookimpl\n    def order_admissions(self, waiting): return None\n"
NAMED = "class Mine:\n    name = 'mine'\n"
REFUSED = {
    "no name": ("class Mine:\n" + HOOK, "'Mine' of plugin {} has no name"),
    "a bad name": ("class Mine:\n    name = 'a b'\n" + HOOK, "has the name 'a b'; a name has"),
    "a taken name": (
        "class Mine:\n    name = 'fcfs'\n" + HOOK,
        "'fcfs' of plugin {} has the name of another one, which is from built in",
    ),
    "async": (
        NAMED + HOOK.replace("def", "async def"),
        "has order_admissions as a coroutine function (async)",
    ),
    "awaitable by types.coroutine": (
        NAMED
        + HOOK.replace("@hookimpl", "@hookimpl\n    @types.coroutine").replace("return", "yield"),
        "has order_admissions as a generator",
    ),
    "an async generator": (
        NAMED + HOOK.replace("def", "async def").replace("return", "yield"),
        "has order_admissions as an async generator",
    ),
    "a generator": (
        NAMED + HOOK.replace("return", "yield"),
        "has order_admissions as a generator",
    ),
    "a wrapper": (
        NAMED + HOOK.replace("@hookimpl", "@hookimpl(wrapper=True)").replace("return", "yield"),
        "wrappers have nobody to wrap",
    ),
    "an object": (
        "class Call:\n    def __call__(self, waiting): return None\n"
        + NAMED
        + "    order_admissions = hookimpl(Call())\n",
        "has order_admissions as an object",
    ),
    "an unknown hook": (
        NAMED + HOOK.replace("order_admissions", "order_admission"),
        "implements order_admission: there is no hook 'order_admission' "
        "(did you mean 'order_admissions'?)",
    ),
    "an unknown argument": (
        NAMED + HOOK.replace("waiting", "waitng"),
        "has order_admissions: there is no argument 'waitng' (did you mean 'waiting'?); "
        "arguments are waiting, step",
    ),
    "a keyword-only argument": (
        NAMED + HOOK.replace("self, waiting", "self, *, waiting"),
        "has order_admissions with the keyword-only argument 'waiting'",
    ),
    "no mark": (
        NAMED + HOOK.replace("    @hookimpl\n", ""),
        "has no method that is marked with @hookimpl",
    ),
    "one mark too few": (
        NAMED + HOOK + "    def on_finished(self, finished): pass\n",
        "has a method on_finished that is not marked with @hookimpl",
    ),
    "another hookspec": (
        NAMED + "    requires_hookspec = '>=99'\n" + HOOK,
        f"needs hookspec >=99, and this is {HOOKSPEC_VERSION}",
    ),
    "no version range": (
        NAMED + "    requires_hookspec = 'new'\n" + HOOK,
        "has requires_hookspec = 'new', which is no version range",
    ),
    "changeable options": (
        NAMED + "    @dataclass\n    class Options:\n        a: int = 1\n" + HOOK,
        "has Options that can be changed",
    ),
    "options of another kind": (
        NAMED + "    class Options:\n        a: int = 1\n" + HOOK,
        "has Options that are no dataclass",
    ),
}
if sys.version_info >= (3, 12):
    REFUSED["marked as a coroutine"] = (
        NAMED + HOOK.replace("@hookimpl", "@hookimpl\n    @inspect.markcoroutinefunction"),
        "has order_admissions as a coroutine function (async)",
    )


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_at_registration(tmp_path: Path, case: str):
    source, message = REFUSED[case]

    catalog = found(tmp_path, HEAD + source)

    plugin = f"'mine' ({tmp_path / 'mine.py'})"
    told = "\n".join(catalog.faults)
    assert message.format(plugin) in told
    assert f" of plugin {plugin} " in told
    assert catalog.classes == BUILTIN


def test_a_class_with_several_faults_is_told_all_of_them(tmp_path: Path):
    source = "class Mine:\n    requires_hookspec = '>=99'\n" + HOOK.replace("waiting", "wating")

    assert len(found(tmp_path, HEAD + source).faults) == 3


def test_what_pluggy_allows_besides_is_allowed(tmp_path: Path):
    source = (
        HEAD
        + NAMED
        + (
            "    requires_hookspec = '>=0.2,<1'\n"
            "    @hookimpl(specname='order_admissions')\n"
            "    def by_length(self, waiting, extra=1): return None\n"
            "    @hookimpl(optionalhook=True)\n"
            "    def hook_of_a_later_version(self, anything): return None\n"
            "    @staticmethod\n    @hookimpl\n"
            "    def on_finished(finished): return None\n"
        )
    )

    catalog = found(tmp_path, source)

    assert not catalog.faults
    profile = catalog.profile({"order_admissions": "mine"})
    assert profile.names["order_admissions"] == "mine"
    assert profile.observers("on_finished") == ("mine",)
