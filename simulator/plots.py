"""Plots as SVG, drawn here, so that a page needs no script and nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from cadenza.simulator.run import FloatArray

COLOURS = 7  # that the page's style names --c0, --c1, ...; beyond them lines are dashed
_WIDTH, _HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 38
_MOST_POINTS = 300
_LEAST_STROKE, _STROKES = 1.4, 0.6
_LEAST_WIDTH = 1e-6  # of an axis, as a share of its end


class Line(NamedTuple):
    """A line of a plot, by what it is of."""

    name: str
    x: FloatArray
    y: FloatArray


class _Axis(NamedTuple):
    """Values from `low` to `high`, on so many pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """A few round values within."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 3), (1, 2, 5)):
                values = [digit * 10.0**power for power in powers for digit in digits]
                ticks = [value for value in values if self.low <= value <= self.high]
                if len(ticks) > 2:
                    return ticks
        step = 10.0 ** math.floor(math.log10(self.high - self.low))
        while (self.high - self.low) / step < 4:
            step /= 2
        first = math.ceil(self.low / step)
        return [step * rank for rank in range(first, math.floor(self.high / step) + 1)]


def plot(
    title: str,
    x: str,
    y: str,
    lines: Sequence[Line],
    *,
    log_x: bool = False,
) -> str:
    """A figure with a caption, both axes named, y from 0 on; empty if there is nothing to show.

    A line has the same colour in every plot where it has the same place.
    """
    lines = [_thinned(line) for line in lines]
    shown = [line for line in lines if len(line.x)]
    if not shown:
        return ""
    x_axis, y_axis = _axes(shown, log_x=log_x)
    marks = [*_grid(x_axis, y_axis), *_names(x, y)]
    # Wider below narrower ones, so that of equal lines all are seen
    widths = [_LEAST_STROKE + _STROKES * rank for rank in reversed(range(len(lines)))]
    marks += [
        _path(line, rank, width, x_axis, y_axis)
        for rank, (line, width) in enumerate(zip(lines, widths, strict=True))
    ]
    drawn = "".join(marks)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{drawn}</svg>{_legend([line.name for line in lines])}</figure>"
    )


def _legend(names: Sequence[str]) -> str:
    """Which colour is whose, in the order of the lines."""
    keys = "".join(
        f'<span><i style="background:{_colour(rank)}"></i>{escape(name)}</span>'
        for rank, name in enumerate(names)
    )
    return f'<div class="keys">{keys}</div>'


def distribution_of(name: str, values: FloatArray) -> Line:
    """The share of values up to each value, of those above 0 that there are."""
    known = np.sort(values[values > 0])
    return Line(name, known, np.arange(1, len(known) + 1) / max(1, len(known)))


def over_time(name: str, time_s: FloatArray, took_s: FloatArray, values: FloatArray) -> Line:
    """Means by time, of values that hold from `time_s` on for `took_s`, and are 0 between."""
    if not len(time_s):
        return Line(name, time_s, values)
    ends_s = time_s + took_s
    edges = np.linspace(0.0, float(ends_s[-1]), _MOST_POINTS + 1)
    sums = (took_s * values).cumsum()
    # The integral from the beginning on, where a value begins to hold and where it no longer does
    known_s = np.stack((time_s, ends_s), axis=1).ravel()
    integral = np.stack((sums - took_s * values, sums), axis=1).ravel()
    means = np.diff(np.interp(edges, known_s, integral, left=0.0)) / np.diff(edges)
    return Line(name, edges[:-1], means)


def _thinned(line: Line) -> Line:
    """With points enough for its width."""
    if len(line.x) <= _MOST_POINTS:
        return line
    kept = np.unique(np.linspace(0, len(line.x) - 1, _MOST_POINTS).round().astype(np.int64))
    return Line(line.name, line.x[kept], line.y[kept])


def _axes(lines: Sequence[Line], *, log_x: bool) -> tuple[_Axis, _Axis]:
    low = float(min(line.x.min() for line in lines))
    high = float(max(line.x.max() for line in lines))
    top = float(max(line.y.max() for line in lines))
    if high - low <= _LEAST_WIDTH * abs(high):  # equal, but for how they were rounded
        high = low * 1.1 if low > 0 else low + 1
    x_axis = _Axis(low, high, _LEFT, _WIDTH - _RIGHT, log_x)
    return x_axis, _Axis(0.0, top or 1.0, _HEIGHT - _BOTTOM, _TOP, is_log=False)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    marks = []
    for value in x_axis.ticks():
        at = x_axis.at(value)
        marks.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_bottom()}"/>'
        )
        marks.append(f'<text x="{at:.1f}" y="{_bottom() + 14}" class="x">{value:g}</text>')
    for value in y_axis.ticks():
        at = y_axis.at(value)
        right = _WIDTH - _RIGHT
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        marks.append(f'<text x="{_LEFT - 5}" y="{at + 4:.1f}" class="y">{value:g}</text>')
    return marks


def _names(x: str, y: str) -> list[str]:
    middle = (_TOP + _bottom()) / 2
    return [
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 6}" class="x">{escape(x)}</text>',
        f'<text x="12" y="{middle:.0f}" class="x" transform="rotate(-90 12 {middle:.0f})">'
        f"{escape(y)}</text>",
    ]


def _path(line: Line, rank: int, width: float, x_axis: _Axis, y_axis: _Axis) -> str:
    points = " ".join(
        f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}"
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
    )
    return (
        f'<polyline fill="none" style="stroke:{_colour(rank)}" stroke-width="{width:.2g}"'
        f'{_dashes(rank)} points="{points}">'
        f"<title>{escape(line.name)}</title></polyline>"
    )


def _colour(rank: int) -> str:
    return f"var(--c{rank % COLOURS})"


def _dashes(rank: int) -> str:
    return ' stroke-dasharray="5 3"' if rank >= COLOURS else ""


def _bottom() -> int:
    return _HEIGHT - _BOTTOM
