"""A folder that a script of ci/ writes whole or not at all, and never over something."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from failures import Exit, Failure


def require_free(directory: Path, undone: str) -> None:
    """Raise Failure(USAGE) for a file, or a folder with something in it. undone: what was not done."""
    if not directory.exists():
        return
    if directory.is_dir():
        if not any(directory.iterdir()):
            return
        what = f"{directory} is not empty"
    else:
        what = f"{directory} is a file, and a folder is written"
    raise Failure(
        Exit.USAGE,
        what,
        where=str(directory.absolute()),
        state=f"nothing was {undone}; it is as it was",
        next="the same command with a new folder",
    )


@contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """Make a folder that is free; when the block is not finished, what is in it goes again."""
    require_free(directory, "written")
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
    except BaseException:
        if directory.is_dir():
            _empty(directory)
        for each in made:
            if each.is_dir():
                each.rmdir()
        raise


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
