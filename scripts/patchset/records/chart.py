"""The chart of tokens per second over checkpoints, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 130, 34, 76
# Readable on a white and on a dark page.
_COLOURS = ("#1f77b4", "#d1660f", "#2a8f2a")
_GREY = "#808080"


def draw(
    title: str, names: Sequence[str], lines: Mapping[str, Sequence[float | None]]
) -> str:
    """The SVG: a line for each load, a place for each name; a value that is not known is None."""
    values = [value for line in lines.values() for value in line if value is not None]
    scale = _Scale(len(names), min(values), max(values))
    parts = [*_grid(scale), *_names(scale, names)]
    # Two loads may lie close together: the topmost figures stand above their points, others below.
    *_, top = lines
    for colour, (load, line) in zip(_COLOURS, lines.items()):
        parts += _line(scale, line, colour, load, -8 if load == top else 17)
    return _document(title, parts)


class _Scale:
    """Places of checkpoints and of values, which span decades."""

    def __init__(self, count: int, least: float, most: float):
        self.low = 10 ** math.floor(math.log10(least))
        self.high = 10 ** math.ceil(math.log10(most))
        self.step = (_WIDTH - _LEFT - _RIGHT) / max(1, count - 1)
        # That fit under a place, at 6.5 pixels each.
        self.letters = min(16, int(self.step / 6.5))

    def x(self, index: int) -> float:
        return _LEFT + index * self.step

    def y(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _grid(scale: _Scale) -> list[str]:
    parts, value = [], scale.low
    while value <= scale.high:
        y = scale.y(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            f' stroke="{_GREY}" stroke-opacity="0.4"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end"))
        value *= 10
    return parts


def _names(scale: _Scale, names: Sequence[str]) -> list[str]:
    parts = []
    for index, name in enumerate(names):
        for row, line in enumerate(_wrapped(name, scale.letters)):
            y = _HEIGHT - _BOTTOM + 20 + 14 * row
            parts.append(_text(scale.x(index), y, line, "middle"))
    return parts


def _line(
    scale: _Scale,
    values: Sequence[float | None],
    colour: str,
    load: str,
    label: int,
) -> list[str]:
    points = [
        (scale.x(index), scale.y(value), value)
        for index, value in enumerate(values)
        if value is not None
    ]
    if not points:
        return []
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    ]
    for x, y, value in points:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        parts.append(_text(x, y + label, _figure(value), "middle", colour))
    x, y, _ = points[-1]
    parts.append(_text(x + 28, y + 4, load, "start", colour))
    return parts


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _text(x: float, y: float, text: str, anchor: str, colour: str = _GREY) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _wrapped(name: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in name.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _document(title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="11">'
    )
    shown = f"<title>{escape(title)}</title>"
    return "\n".join(
        [head, shown, _text(_LEFT, 18, title, "start"), *parts, "</svg>", ""]
    )
