"""What pytest finds once Cadenza is installed, in sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.policies.plugins import install_fixtures


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Where the entry point is, whether or not this environment has been installed with it."""
    return install_fixtures(tmp_path / "site")


def run_pytest(site: Path, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A session of somebody else's, with warnings as errors."""
    (site.parent / "test_theirs.py").write_text(dedent(source))
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    strict = ["-W", "error", "--strict-config", "--strict-markers", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", *strict, *flags, "test_theirs.py"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=site.parent,
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_there_are_fixtures(site: Path):
    done = run_pytest(
        site,
        """
        from cadenza.policies import hookimpl

        class Newest:
            name = "newest-first"

            @hookimpl
            def order_admissions(self, waiting):
                return -waiting.arrival.astype(float)

        def test_the_table(policy_table):
            assert Newest().order_admissions(policy_table(3)).tolist() == [0, -1, -2]

        def test_the_driver(scheduler_driver, manual_clock):
            driver = scheduler_driver({"order_admissions": Newest}, max_num_seqs=1)
            for request in range(3):
                driver.add(request, [1], max_tokens=1)
            driver.run()
            assert driver.admitted == [2, 1, 0]
            assert manual_clock.now_s == driver.now_s > 0
        """,
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_session_that_wants_none_of_them_imports_nothing_for_them(site: Path):
    done = run_pytest(
        site,
        """
        import sys

        def test_nothing_is_imported():
            assert "cadenza.testing.pytest_plugin" in sys.modules
            ours = {name for name in sys.modules if name.startswith("cadenza.")}
            assert ours == {"cadenza.testing", "cadenza.testing.pytest_plugin"}
            assert not {"numpy", "torch", "msgspec"} & {*sys.modules}
        """,
        "-p",
        "no:hypothesispytest",
    )

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_kit_is_collected_from_a_subclass_and_says_what_is_wrong(site: Path):
    done = run_pytest(
        site,
        """
        import numpy as np
        from cadenza.policies import hookimpl
        from cadenza.testing import PolicyConformance

        class Zeros:
            name = "zeros"

            @hookimpl
            def order_admissions(self, waiting):
                return np.zeros(3)

        class TestZeros(PolicyConformance):
            policy = Zeros
        """,
        "-k",
        "test_answers_can_be_used or a_profile_takes",
    )

    assert "1 failed, 1 passed, 8 deselected" in done.stdout, done.stdout + done.stderr
    assert "order_admissions(0 waiting): AnswerError('expected shape (0,), got (3,)')" in (
        done.stdout
    )
