"""A file that a command makes and never writes over: what it may be called where its name is taken."""

from __future__ import annotations

import itertools
from pathlib import Path

from .errors import Exit, Failure


def beside(taken: Path) -> Path:
    """The first of NAME-2.json, NAME-3.json, ... that is not there yet."""
    names = (taken.with_stem(f"{taken.stem}-{number}") for number in itertools.count(2))
    return next(each for each in names if not each.exists())


def require(out: Path, another: str) -> None:
    """A raw file is evidence: it is not written over. Raises Failure(USAGE), with ``another`` command, if it is there."""
    if out.exists():
        raise Failure(
            Exit.USAGE,
            "--out needs a new file, and this one is there",
            where=str(out),
            state="nothing was measured, and the file is as it was",
            next=another,
        )
