"""Whose fault an exception is: the measured tree's, which cannot be measured, or the probe's own."""

from __future__ import annotations

import traceback
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[3]


def of_tree(error: BaseException, tree: Path) -> str | None:
    """Why the tree cannot be measured, or None when the error is the probe's or this machine's.

    The tree's are code that does not compile, an import of what the tree itself lacks, and whatever
    its own code raises. All else is not: a package or a GPU that is missing, memory, an interrupt.
    """
    tree = tree.resolve()
    if not isinstance(error, Exception) or isinstance(error, (MemoryError, OSError)):
        return None
    if isinstance(error, SyntaxError):
        return _said(error, tree) if _is_in(error.filename, tree) else None
    if isinstance(error, ImportError):
        return _said(error, tree) if _lacks(error, tree) else None
    if error.__cause__ is not None:
        # Triton's interpreter and compiler, and the tree, wrap what was raised below them.
        return _said(error, tree) if of_tree(error.__cause__, tree) else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_in(frame.filename, tree):
            return _said(error, tree)
        if _is_in(frame.filename, HARNESS):
            return None
    return None


def _lacks(error: ImportError, tree: Path) -> bool:
    """The tree imports something of its own that is not there; not something of this Python, and not
    something that the probe replaces."""
    name = error.name or ""
    if name.split(".")[0] != "sglang":
        return False
    if isinstance(error, ModuleNotFoundError):
        base = tree / "python" / Path(*name.split("."))
        return not base.is_dir() and not base.with_suffix(".py").exists()
    return _is_in(error.path, tree)


def _is_in(file: str | None, directory: Path) -> bool:
    return bool(file) and Path(file).resolve().is_relative_to(directory)


def _said(error: Exception, tree: Path) -> str:
    """One line: the place in the tree, and the message."""
    place = None
    if isinstance(error, SyntaxError):
        place = (error.filename, error.lineno)
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if _is_in(frame.filename, tree):
                place = (frame.filename, frame.lineno)
    first = (str(error).strip().splitlines() or [""])[0]
    text = f"{type(error).__name__}: {first}"
    if place:
        return f"{Path(place[0]).resolve().relative_to(tree)}:{place[1]}: {text}"
    return text
