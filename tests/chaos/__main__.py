"""What may happen to a service, on real processes and the demo model: `make chaos`.

Parts run one after another; ARGS="--only kills stalled" chooses some, other flags say how much. The
last line is one JSON object with the figures of all; what is wrong is on standard error, and the
exit status then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

from tests.chaos import cancels, drains, kills, ports, slow, stalled
from tests.chaos.parts import Outcome, Scale

PARTS: dict[str, Callable[[Scale], Awaitable[Outcome]]] = {
    "ports": ports.run,
    "slow": slow.run,
    "stalled": stalled.run,
    "cancels": cancels.run,
    "drains": drains.run,
    "kills": kills.run,
}


async def run(names: list[str], scale: Scale) -> int:
    figures: dict[str, Any] = {}
    is_wrong = False
    for name in names:
        began_s = time.monotonic()
        outcome = await PARTS[name](scale)
        took = f"{name} took {time.monotonic() - began_s:.0f} s"
        sys.stdout.write(f"{took}: {json.dumps(outcome.figures)}\n")
        sys.stdout.flush()
        for sentence in outcome.wrong:
            sys.stderr.write(f"{name}: {sentence}\n")
        is_wrong = is_wrong or bool(outcome.wrong)
        figures |= outcome.figures
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if is_wrong else 0


def count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], help="these parts")
    for field in fields(Scale):
        kind = int if field.name == "seed" else count
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    given = vars(parser.parse_args())
    return asyncio.run(run(given.pop("only"), Scale(**given)))


if __name__ == "__main__":
    sys.exit(main())
