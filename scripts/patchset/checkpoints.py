"""CHECKPOINTS.md: the commits of the series and their evidence, rendered, never edited."""

from __future__ import annotations

from pathlib import Path

from . import atomic
from .commits import Applied
from .errors import Exit, Failure
from .pin import Pin
from .records import history, ladder, rows, schema, stale
from .records.stale import STOCK, Now

_HEADER = """# Checkpoints

Rendered by `scripts/export.sh` from `patches/` and `ci/checkpoints/`; never edited (`scripts/check.sh` compares).

Every step of the series over SGLang {version}: what it gained over the step below it, on what, how sure that is, and
the command to see it again. `none`: not measured. A measurement is stale when what it measured has changed since.
Each patch has a row of a real server over one that stands right below it (context 8K), also where it only adds files; work that is counted
of every patch has a row where it differs from that of the step below.
`scripts/checkpoint.sh verify` recomputes every figure from the raw files.
"""

_IDS = """
## Commits

As `scripts/apply.sh` makes them on any machine, from the default (wheel) source.

"""


def render(
    pin: Pin, applied: list[Applied], records: Path, kernels: Path | None
) -> str:
    """The text of CHECKPOINTS.md for a series applied to its pinned base.

    Arguments: records is the directory of records; kernels that of the kernels' sources, or None
    where they are not known. Raises Failure(PATCH) for a record that is not sound.
    """
    known = schema.load_all(records)
    today = stale.now(pin, applied, kernels)
    steps = [(STOCK, pin.commit, _stock(pin))]
    steps += [(each.patch.name, each.commit, each.patch.subject) for each in applied]
    parts = [
        _HEADER.format(version=pin.version),
        _gains(steps, known, today),
        ladder.section(known, today),
        _IDS + _commits(pin, applied, known),
        history.section(known),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


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


def _gains(
    steps: list[tuple[str, str, str]], known: dict[str, dict], today: Now
) -> str:
    head = ("gain", "on what", "how sure", "see it again")
    table = [("checkpoint", "commit", "what changed", *head)]
    for name, commit, subject in steps:
        measured = rows.of(known.get(name), today) or [("none",) * len(head)]
        step = (name, f"`{commit[:12]}`", subject)
        for number, cells in enumerate(measured):
            table.append((*(("",) * len(step) if number else step), *cells))
    return rows.table(table)


def _commits(pin: Pin, applied: list[Applied], known: dict[str, dict]) -> str:
    table = [("checkpoint", "what", "commit", "tree", "flag", "record")]
    ids = (f"`{pin.commit}`", f"`{pin.tree}`")
    table.append((STOCK, _stock(pin), *ids, "none", _link(STOCK, known)))
    for each in applied:
        patch = each.patch
        table.append(
            (
                patch.name,
                patch.subject,
                f"`{each.commit}`",
                f"`{each.tree}`",
                patch.trailers.get("Env-Flag", "none"),
                _link(patch.evidence or patch.name, known),
            )
        )
    return rows.table(table)


def _stock(pin: Pin) -> str:
    return f"SGLang {pin.version} as published"


def _link(id: str, known: dict[str, dict]) -> str:
    return f"[{id}](ci/checkpoints/{id}.json)" if id in known else "none"
