"""Scratch folders of gigabytes, which no way out of the command leaves behind, and a second Ctrl-C neither."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import signals


@contextmanager
def folder(prefix: str, beside: Path | None = None) -> Iterator[Path]:
    """A new empty folder whose name begins so, in a folder or the usual place; gone on the way out.

    Raises OSError when it can't be made or removed.
    """
    made = None
    try:
        # A signal between its making and here would leave it.
        with signals.deferred():
            made = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
        yield Path(made.name)
    except KeyboardInterrupt as interrupt:
        _say_once(interrupt)
        raise
    finally:
        if made:
            with signals.held_off():
                made.cleanup()


def _say_once(interrupt: KeyboardInterrupt) -> None:
    # Folders lie in folders, and the first of them may take a minute.
    if not hasattr(interrupt, "__notes__"):
        interrupt.add_note("told")
        print("removing what is half-made", file=sys.stderr, flush=True)
