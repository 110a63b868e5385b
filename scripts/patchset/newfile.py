"""A file that a command makes and never writes over: what it may be called where its name is taken."""

from __future__ import annotations

import itertools
from pathlib import Path


def beside(taken: Path) -> Path:
    """The first of NAME-2.json, NAME-3.json, ... that is not there yet."""
    names = (taken.with_stem(f"{taken.stem}-{number}") for number in itertools.count(2))
    return next(each for each in names if not each.exists())
