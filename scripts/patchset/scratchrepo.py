"""Repositories that live for one command: computed in, then thrown away."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Iterator

from . import base, gitenv, wheel
from .pin import Pin


@contextlib.contextmanager
def imported(pin: Pin, given: Path | None = None) -> Iterator[Path]:
    """A repository that holds the pinned base commit, for the length of the block.

    Raises what wheel.obtain and base.import_base raise.
    """
    source = wheel.obtain(pin, given)
    with tempfile.TemporaryDirectory(prefix="patchset-scratch-") as scratch:
        base.init_repository(Path(scratch))
        base.import_base(Path(scratch), source, pin)
        yield Path(scratch)


@contextlib.contextmanager
def empty() -> Iterator[Path]:
    """An empty repository, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="patchset-scratch-") as scratch:
        base.init_repository(Path(scratch))
        yield Path(scratch)


@contextlib.contextmanager
def borrowing(repo_dir: Path) -> Iterator[Path]:
    """An empty repository that reads the objects of another, without its settings and refs."""
    objects = gitenv.text(repo_dir, "rev-parse", "--git-path", "objects")
    with empty() as scratch:
        alternates = scratch / ".git" / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{(Path(repo_dir) / objects).resolve()}\n")
        yield scratch
