"""CHECKPOINTS.md: the commits of the series and their evidence, rendered, never edited."""

from __future__ import annotations

from pathlib import Path

from . import atomic
from .commits import Applied
from .errors import Exit, Failure
from .pin import Pin

_HEADER = """# Checkpoints

Rendered by `scripts/export.sh`; never edited (`scripts/check.sh` compares).

Every step of the series over SGLang {version}, as `scripts/apply.sh` makes it on any machine. The
commit and tree ids are those of the default (wheel) source; evidence is a measured record in
`ci/checkpoints/`, and `none` where nothing was measured.
"""


def render(pin: Pin, applied: list[Applied], records: Path) -> str:
    """The text of CHECKPOINTS.md for a series applied to its pinned base.

    records is the directory of measured records; a checkpoint has evidence when its record is
    there.
    """
    rows = [("checkpoint", "what", "commit", "tree", "flag", "evidence")]
    stock = ("0000-stock", f"SGLang {pin.version} as published")
    rows.append((*stock, f"`{pin.commit}`", f"`{pin.tree}`", "none", "none"))
    rows += [_row(each, records) for each in applied]
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return _HEADER.format(version=pin.version) + "\n" + "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Replace the file as a whole. Raises Failure(ENVIRONMENT)."""
    try:
        atomic.write(path, text.encode())
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"{path.name} cannot be written: {error.strerror}",
            where=str(path),
            state="it is as it was",
            next="make it writable, then run the same command again",
        ) from None


def is_current(path: Path, text: str) -> bool:
    """True when the file has exactly this text."""
    return path.exists() and path.read_bytes() == text.encode()


def _row(applied: Applied, records: Path) -> tuple[str, ...]:
    patch = applied.patch
    return (
        patch.name,
        patch.subject,
        f"`{applied.commit}`",
        f"`{applied.tree}`",
        patch.trailers.get("Env-Flag", "none"),
        _evidence(patch.evidence, records),
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _evidence(record: str | None, records: Path) -> str:
    if record is None or not (records / f"{record}.json").exists():
        return "none"
    return f"[{record}](ci/checkpoints/{record}.json)"
