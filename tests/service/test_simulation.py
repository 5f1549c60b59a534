"""Lives of the whole service by seeds: whatever happens, clients get what is theirs, no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .simulation.__main__ import main
from .simulation.life import live
from .simulation.planted_faults import FAULTS, Fault

NUM_SEEDS = 1000
NUM_MORE = 5000
A_GROUP = 250
ENOUGH = 1000  # seeds for any of the planted faults

_ROOT = Path(__file__).parents[2]
_ELSEWHERE = """
import sys
from tests.service.simulation.life import live
for seed in map(int, sys.argv[1:]):
    print(live(seed).fingerprint)
"""


class _Lives:
    """A class for each of two processes: pytest keeps one's tests together."""

    def test_whatever_happens_clients_get_what_is_theirs(self, first: int):
        for seed in range(first, first + A_GROUP):
            live(seed)


def groups(first: int, end: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("first", range(first, end, A_GROUP))


@groups(0, NUM_SEEDS // 2)
class TestLives(_Lives):
    pass


@groups(NUM_SEEDS // 2, NUM_SEEDS)
class TestOtherLives(_Lives):
    pass


@pytest.mark.extra
@groups(NUM_SEEDS, NUM_SEEDS + NUM_MORE // 2)
class TestMoreLives(_Lives):
    pass


@pytest.mark.extra
@groups(NUM_SEEDS + NUM_MORE // 2, NUM_SEEDS + NUM_MORE)
class TestYetMoreLives(_Lives):
    pass


def killed_by(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> int:
    """The first seed that notices."""
    monkeypatch.setattr(fault.owner, fault.method, fault.instead)
    for seed in range(ENOUGH):
        try:
            live(seed)
        except AssertionError:
            return seed
    raise AssertionError(f"nobody notices that {fault.name}")


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
    def test_every_planted_fault_is_found(self, fault: Fault, monkeypatch, tell):
        tell(f"{fault.name}: seed {killed_by(fault, monkeypatch)}")

    def test_there_are_enough_of_them(self):
        assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25


SEEDS = range(25)


@cache
def fingerprints() -> list[str]:
    return [live(seed).fingerprint for seed in SEEDS]


class TestSeeds:
    def test_each_is_another_life(self):
        assert len(set(fingerprints())) == len(SEEDS)

    def test_one_is_the_same_life_each_time(self):
        backwards = [live(seed).fingerprint for seed in reversed(SEEDS)]

        assert backwards[::-1] == fingerprints()

    def test_one_is_the_same_life_in_a_process_that_hashes_otherwise(self):
        found = [*self._elsewhere(reversed(SEEDS))]

        assert found[::-1] == fingerprints()

    def _elsewhere(self, seeds: Iterator[int]) -> Iterator[str]:
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run(
            [sys.executable, "-P", "-c", _ELSEWHERE, *map(str, seeds)],
            env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "17"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return iter(ran.stdout.split())

    def test_what_goes_wrong_says_how_to_see_it_again(self, monkeypatch):
        fault = next(fault for fault in FAULTS if fault.name == "output is forgotten")
        seed = killed_by(fault, monkeypatch)
        with pytest.raises(Exception) as found:  # noqa: PT011 - whatever it is, it is so again
            live(seed)
        [note] = found.value.__notes__
        command = re.fullmatch(r"again: make simulate SEED=(\d+)", note)

        assert command is not None
        with pytest.raises(type(found.value), match=re.escape(str(found.value))):
            main([command[1]])
        assert "-m tests.service.simulation $(SEED)" in (_ROOT / "Makefile").read_text()
