"""A port that somebody else has: one plain line on standard error, and an exit status."""

from __future__ import annotations

import asyncio
import socket
import time

from tests.chaos.parts import Outcome, Scale
from tests.e2e.servers import COMMAND

STATUS = 2
LONGEST_S = 60.0


async def run(scale: Scale) -> Outcome:
    """Both ports, one after the other."""
    wrong: list[str] = []
    longest_s = 0.0
    for flag, other in (("--port", "--grpc-port"), ("--grpc-port", "--port")):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            began_s = time.monotonic()
            command = (*COMMAND, "serve", "demo", flag, port, other, "0")
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            async with asyncio.timeout(LONGEST_S):
                _, error = await process.communicate()
            longest_s = max(longest_s, time.monotonic() - began_s)
        told = error.decode()
        is_plain = len(told.splitlines()) == 1 and port in told and "in use" in told
        if process.returncode != STATUS or not is_plain:
            wrong.append(f"{flag} taken: status {process.returncode}, {told!r}")
    figures = {"ports": {"refusals": 2 - len(wrong), "longest_s": round(longest_s, 1)}}
    return Outcome(figures, wrong)
