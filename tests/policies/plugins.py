"""Distributions as an installer leaves them: modules, and a .dist-info folder beside them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
POLICY = '''
import numpy as np
from cadenza.policies import hookimpl


class Backwards:
    """The newest request first."""

    name = "{name}"

    @hookimpl
    def order_admissions(self, waiting):
        return -waiting.arrival.astype(float)


@hookimpl
def register_policies():
    return [Backwards]
'''


def policy_module(name: str) -> str:
    return POLICY.format(name=name)


def install(
    site: Path,
    distribution: str,
    points: dict[str, str],
    modules: dict[str, str],
    group: str = "cadenza",
) -> Path:
    """Write a distribution, version 1.5, with entry points (name to target) and modules."""
    for module, source in modules.items():
        (site / f"{module}.py").write_text(dedent(source))
    info = site / f"{distribution.replace('-', '_')}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")
    return site


def install_fixtures(site: Path) -> Path:
    """The entry point by which pytest finds Cadenza's fixtures, for environments without it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    site.mkdir()
    return install(
        site, "cadenza-fixtures", project["entry-points"]["pytest11"], {}, group="pytest11"
    )
