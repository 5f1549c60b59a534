"""Runs the `check_*` functions of a module as a program, in whatever venv its client has.

Each prints one line of JSON: its name, and what went wrong or null.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[Any], None]


def checks_of(module: Mapping[str, Any]) -> Iterator[tuple[str, Check]]:
    """Names and functions, in the order of the file."""
    for name, value in module.items():
        if name.startswith("check_"):
            yield name.removeprefix("check_").replace("_", " "), value


def main(module: Mapping[str, Any], connect: Callable[[str], Any]) -> None:
    """Run them against the URL that is the program's argument."""
    for name, check in checks_of(module):
        fault = None
        try:
            check(connect(sys.argv[1]))
        except Exception:  # whatever it is, the next one can still be run
            fault = traceback.format_exc()
        sys.stdout.write(json.dumps({"name": name, "fault": fault}) + "\n")
        sys.stdout.flush()
