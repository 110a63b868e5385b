"""What a full disk, a read-only place and a missing right mean, whether git met them or we did."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from . import gitenv
from .errors import Exit, Failure
from .listing import listed

_FULL = re.compile(r"No space left on device|Disk quota exceeded|Out of diskspace")
_NO_ROOM = 64 * 1024
_READ_ONLY = re.compile(
    r"Read-only file system|Permission denied|insufficient permission", re.I
)


def is_told_by(said: str) -> bool:
    """True when git's message is about the disk or a missing right, not about its task."""
    return is_full_by(said) or bool(_READ_ONLY.search(said))


def is_full_by(said: str) -> bool:
    """True when a message says that the disk is full."""
    return bool(_FULL.search(said))


@contextlib.contextmanager
def errors(place: str, state: str, another: str) -> Iterator[None]:
    """Turns OSError and GitCommandError of the block into Failure(ENVIRONMENT).

    Arguments: place is what was to be written, state what it is like now, another the next
    command when this place can't be written at all.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(place, state) from None
        said = f"{error.strerror or error}: {error.filename or place}"
        raise _unwritable(place, state, another, said) from None
    except gitenv.GitCommandError as error:
        said = gitenv.message_of(error)
        if _READ_ONLY.search(said):
            raise _unwritable(place, state, another, said) from None
        if is_full_by(said) or _has_no_room(place):
            raise _full(place, state) from None
        raise Failure(
            Exit.ENVIRONMENT,
            f"git {_verb(error)} failed",
            where=f"{place}\n{listed(said.splitlines())}",
            state=state,
            next="put right what git says, then run the same command again",
        ) from None


def _has_no_room(place: str) -> bool:
    """True when the file system is full: git doesn't always say why it couldn't write."""
    nearest = next(
        path for path in (Path(place), *Path(place).parents) if path.exists()
    )
    found = os.statvfs(nearest)
    return found.f_bavail * found.f_frsize < _NO_ROOM


def _full(place: str, state: str) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        "the disk is full",
        where=place,
        state=state,
        next="free some space, then run the same command again",
    )


def _unwritable(place: str, state: str, another: str, said: str) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        "this place can't be written",
        where=f"{place}\n{said}",
        state=state,
        next=another,
    )


def _verb(error: gitenv.GitCommandError) -> str:
    return next((word for word in error.command[1:] if word[0] != "-"), "")
