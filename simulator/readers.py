"""Reads traces of any known format, which is told by what a file holds, not by its name."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from cadenza.policies.errors import quoted
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.json_lines import read_json_lines
from cadenza.simulator.trace import Trace, TraceRequest, in_order

FORMATS = (
    "Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens), "
    "BurstGPT CSV (Timestamp, Request tokens, Response tokens), "
    "CSV with tenants (timestamp_s, client_id, input_tokens, output_tokens), "
    "Mooncake JSONL (timestamp, input_length, output_length, hash_ids), "
    "Bailian JSONL (the same with chat_id), or a file of `cadenza serve --record`"
)
_MOST = 1 << 32  # characters
_GZIP = b"\x1f\x8b"
_MOMENT = re.compile(r"(.*?\d\d:\d\d:\d\d)(\.\d+)?(.*)")

Row = Mapping[str, str]
Parse = Callable[[Row], TraceRequest]


class Rows(Iterator[list[str]], Protocol):
    """What `csv.reader` makes, whose class has no name."""

    line_num: int


class _Layout(NamedTuple):
    """A CSV format: the columns that it must have, and a request of a row."""

    kind: str
    columns: frozenset[str]
    parse: Parse


def read_trace(path: Path) -> Trace:
    """All requests of a file that got at least one token, in the order of arrival, from 0 s on.

    The file may be compressed with gzip.

    Raises:
        SimulatorError: it cannot be read, is of no known format, or has a line that is wrong.
    """
    text = _text(path)
    head = text.lstrip()[:1]
    if not head:
        raise SimulatorError(f"{path} is empty")
    trace = read_json_lines(str(path), text) if head == "{" else _read_csv(str(path), text)
    return _begun(trace)


def _text(path: Path) -> str:
    """What the file holds, unpacked; of a pipe what comes."""
    try:
        with path.open("rb") as opened:
            # A pipe may have a single byte to look at
            file = opened if opened.seekable() else _whole(path, opened)
            is_packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            source = gzip.GzipFile(fileobj=file) if is_packed else file
            with io.TextIOWrapper(source, encoding="utf-8-sig") as decoded:
                text = decoded.read(_MOST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SimulatorError(f"{path} cannot be unpacked: {error}") from error
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SimulatorError(f"{path} is no text in UTF-8, so no trace") from error
    if len(text) > _MOST:
        raise SimulatorError(f"{path} has more than {_MOST} characters; take a part of it")
    return text


def _whole(path: Path, pipe: BinaryIO) -> io.BytesIO:
    content = pipe.read(_MOST + 1)
    if len(content) > _MOST:
        raise SimulatorError(f"{path} has more than {_MOST} bytes; take a part of it")
    return io.BytesIO(content)


def _begun(trace: Trace) -> Trace:
    """Without requests that have no answer, the first of the others at 0 s."""
    able = in_order([each for each in trace.requests if each.output_tokens > 0])
    if not able:
        raise SimulatorError(f"{trace.source} has no request with an output")
    begin_s = able[0].arrival_s
    requests = [each._replace(arrival_s=each.arrival_s - begin_s) for each in able]
    missing = len(trace.requests) - len(able)
    notes = (f"{missing} requests without an output left out",) if missing else ()
    return Trace(
        source=trace.source,
        kind=trace.kind,
        requests=requests,
        block_tokens=trace.block_tokens,
        notes=notes,
    )


def _read_csv(source: str, text: str) -> Trace:
    rows = csv.reader(io.StringIO(text))
    try:
        names = [name.strip() for name in next(filter(any, rows), [])]
        layout = _layout(source, names)
        requests = [*_requests(source, layout, names, rows)]
    except csv.Error as error:
        raise SimulatorError(f"{source}, line {rows.line_num}: {error}") from error
    return Trace(source=source, kind=layout.kind, requests=requests)


def _layout(source: str, names: Sequence[str]) -> _Layout:
    for layout in _LAYOUTS:
        if layout.columns <= {*names}:
            return layout
    told = ", ".join(name[:40] for name in names[:12])
    raise SimulatorError(
        f"{source} is of no known format: its columns are {told}. Known are {FORMATS}"
    )


def _requests(
    source: str, layout: _Layout, names: Sequence[str], rows: Rows
) -> Iterator[TraceRequest]:
    for values in rows:
        if not any(values):
            continue
        number = rows.line_num
        if len(values) != len(names):
            raise SimulatorError(
                f"{source}, line {number}: {len(values)} values for {len(names)} columns"
            )
        try:
            yield layout.parse(dict(zip(names, values, strict=True)))
        except SimulatorError as error:
            raise SimulatorError(f"{source}, line {number}: {error}") from error


def _azure(row: Row) -> TraceRequest:
    return TraceRequest(
        _moment(row["TIMESTAMP"]), _prompt(row["ContextTokens"]), _count(row["GeneratedTokens"])
    )


def _burst_gpt(row: Row) -> TraceRequest:
    return TraceRequest(
        _seconds(row["Timestamp"]), _prompt(row["Request tokens"]), _count(row["Response tokens"])
    )


def _with_tenants(row: Row) -> TraceRequest:
    return TraceRequest(
        _seconds(row["timestamp_s"]),
        _prompt(row["input_tokens"]),
        _count(row["output_tokens"]),
        tenant=row["client_id"].strip(),
    )


_LAYOUTS = (
    _Layout("Azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    _Layout("BurstGPT", frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burst_gpt),
    _Layout(
        "tenants",
        frozenset({"timestamp_s", "client_id", "input_tokens", "output_tokens"}),
        _with_tenants,
    ),
)


def _prompt(text: str) -> int:
    """At least one token, without which nothing can be computed."""
    return max(1, _count(text))


def _count(text: str) -> int:
    number = _seconds(text)
    if number != int(number) or not 0 <= number < 1 << 31:
        raise SimulatorError(f"{quoted(text)} is no number of tokens")
    return int(number)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise SimulatorError(f"{quoted(text)} is no number") from error
    if not math.isfinite(number):
        raise SimulatorError(f"{quoted(text)} is no number that can be used")
    return number


def _moment(text: str) -> float:
    """Seconds of a date and time, with up to 7 digits behind the point; of UTC, unless it says."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise SimulatorError(f"{quoted(text)} is no date and time")
    whole, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{whole}{zone or '+00:00'}")
    except ValueError as error:
        raise SimulatorError(f"{quoted(text)} is no date and time") from error
    return moment.timestamp() + float(fraction or 0)
