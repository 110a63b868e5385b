"""How messages and results name many things: counted, cut to a readable length, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LIMIT = 10


def counted(items: Sequence, noun: str) -> str:
    """The number of `items` with the noun in the right form: `1 file`, `3 files`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def listed(paths: Sequence[str], limit: int = LIMIT) -> str:
    """One path a line, at most `limit` of them, then how many more there are."""
    lines = list(paths[:limit])
    if len(paths) > limit:
        lines.append(f"and {len(paths) - limit} more")
    return "\n".join(lines)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """One line a row, its cells in columns; a row whose last cell is empty is left out."""
    table = [row for row in rows if row[-1]]
    widths = [max(map(len, column)) for column in zip(*table)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in table
    ]
