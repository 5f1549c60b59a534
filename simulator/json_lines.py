"""Traces as lines of JSON: Mooncake's, Bailian's, and those that the service records."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from cadenza.policies.errors import quoted
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.machines import LIMITS
from cadenza.simulator.trace import Recorded, Trace, TraceRequest

RECORD = "cadenza-requests"  # as `service.recorder` writes it
RECORD_VERSION = 1
_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16  # tokens a hash stands for
_MOST = sys.float_info.max
_MOST_CHOICES = 1 << 16  # of a request, as large as a batch may be

Line = Mapping[str, Any]


def read_json_lines(source: str, text: str) -> Trace:
    """The requests of a file, as they stand.

    Raises:
        SimulatorError: it is of no known format, or has a line that is wrong.
    """
    lines = _lines(source, text)
    _, first = next(lines)
    if first.get("format") == RECORD:
        return _recording(source, first, lines)
    if {"timestamp", "input_length", "output_length"} <= {*first}:
        return _hashed(source, text)
    told = ", ".join(str(key)[:40] for key in [*first][:12])
    raise SimulatorError(
        f"{source} is of no known format: its lines have {told}. Known are Mooncake's and "
        "Bailian's (timestamp, input_length, output_length, hash_ids), and files of "
        "`cadenza serve --record`"
    )


def _lines(source: str, text: str) -> Iterator[tuple[int, Line]]:
    lines, is_ours = text.split("\n"), False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if is_ours and number == len(lines):
                return  # a service that was killed, or that records still, has left half a line
            raise SimulatorError(f"{source}, line {number} is no JSON") from error
        if not isinstance(value, dict):
            raise SimulatorError(f"{source}, line {number} is no object")
        is_ours = is_ours or value.get("format") == RECORD
        yield number, value


def _hashed(source: str, text: str) -> Trace:
    """Mooncake's have milliseconds and blocks of 512; Bailian's seconds, chats and blocks of 16.

    Where blocks are smaller than Mooncake's the numbers of hashes say so.
    """
    lines = [*_lines(source, text)]
    is_bailian = any("chat_id" in line for _, line in lines[:1])
    second = 1.0 if is_bailian else 1e-3
    size = _BAILIAN_BLOCK if is_bailian else _block_tokens(lines)
    requests = []
    for number, line in lines:
        where = f"{source}, line {number}"
        prompt = max(1, _count(where, line, "input_length"))
        names = line.get("hash_ids") or []
        if not isinstance(names, list) or not all(type(name) is int for name in names):
            raise SimulatorError(f"{where}: hash_ids must be a list of whole numbers")
        if (len(names) - 1) * size >= prompt:
            raise SimulatorError(
                f"{where}: {prompt} tokens have fewer blocks of {size} than {len(names)} hash_ids"
            )
        requests.append(
            TraceRequest(
                second * _number(where, line, "timestamp"),
                prompt,
                _count(where, line, "output_length"),
                # What is not whole is shared by nobody, whatever it is called
                blocks=tuple(names[: prompt // size]),
            )
        )
    kind = "Bailian" if is_bailian else "Mooncake"
    return Trace(source=source, kind=kind, requests=requests, block_tokens=size)


def _block_tokens(lines: list[tuple[int, Line]]) -> int:
    """Mooncake's 512, or the largest power of two that no prompt has too few tokens for."""
    size = _MOONCAKE_BLOCK
    for _, line in lines:
        names, prompt = line.get("hash_ids"), line.get("input_length")
        if not isinstance(names, list) or type(prompt) is not int:
            continue  # told where it is read
        while size > 1 and (len(names) - 1) * size >= prompt:
            size //= 2
    return size


def _recording(source: str, head: Line, lines: Iterator[tuple[int, Line]]) -> Trace:
    version, size = head.get("version"), head.get("block_tokens")
    if version != RECORD_VERSION:
        raise SimulatorError(
            f"{source} has version {quoted(version)}, and this reads version {RECORD_VERSION}"
        )
    if type(size) is not int or not 1 <= size <= LIMITS["block_size"]:
        raise SimulatorError(f"{source} does not say how many tokens a block has")
    requests: list[TraceRequest] = []
    for number, line in lines:
        requests += _recorded(f"{source}, line {number}", line)
    return Trace(source=source, kind="recording", requests=requests, block_tokens=size)


def _recorded(where: str, line: Line) -> list[TraceRequest]:
    """A request for each choice, of equal lengths."""
    choices = _count(where, line, "n")
    blocks = line.get("blocks")
    if not 1 <= choices <= _MOST_CHOICES:
        raise SimulatorError(f"{where}: n must be from 1 to {_MOST_CHOICES}")
    if not isinstance(blocks, list) or not all(type(each) is int for each in blocks):
        raise SimulatorError(f"{where}: blocks must be a list of whole numbers")
    ttft_s, e2e_s = (_optional(where, line, name, math.nan) for name in ("ttft_s", "e2e_s"))
    preemptions = _count(where, line, "preemptions")
    request = TraceRequest(
        arrival_s=_number(where, line, "arrival_s"),
        prompt_tokens=max(1, _count(where, line, "prompt_tokens")),
        output_tokens=-(-_count(where, line, "output_tokens") // choices),
        tenant=str(line.get("tenant", "")),
        blocks=tuple(blocks),
        max_tokens=_count(where, line, "max_tokens"),
        priority=_priority(where, line),
        ttft_target_s=_target(where, line, "ttft_target_s"),
        tpot_target_s=_target(where, line, "tpot_target_s"),
    )
    return [
        request._replace(
            # All choices together were preempted so often
            recorded=Recorded(ttft_s, e2e_s, (preemptions + choices - 1 - rank) // choices)
        )
        for rank in range(choices)
    ]


def _priority(where: str, line: Line) -> int:
    number = _number(where, line, "priority")
    if number != int(number) or not -(1 << 31) <= number < 1 << 31:
        raise SimulatorError(f"{where}: priority must be a whole number of 32 bits")
    return int(number)


def _target(where: str, line: Line, name: str) -> float:
    target_s = _optional(where, line, name, math.inf)
    if target_s <= 0:
        raise SimulatorError(f"{where}: {name} must be above 0, and is {target_s:g}")
    return target_s


def _count(where: str, line: Line, name: str) -> int:
    number = _number(where, line, name)
    if number != int(number) or not 0 <= number < 1 << 31:
        raise SimulatorError(f"{where}: {name} {quoted(line[name])} is no number of tokens")
    return int(number)


def _optional(where: str, line: Line, name: str, otherwise: float) -> float:
    return otherwise if line.get(name) is None else _number(where, line, name)


def _number(where: str, line: Line, name: str) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MOST:
        raise SimulatorError(f"{where}: {name} must be a number, and is {quoted(value)}")
    return float(value)
