"""One process at a time on a thing, by an advisory lock on a file beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Iterator


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock for the block; the file is gone afterwards.

    The kernel frees the lock when its holder dies, so a file left by `kill -9` stops nobody.
    Raises Held when another process has it and wait is false, OSError when the file cannot be
    made.
    """
    descriptor = _acquire(path, wait)
    try:
        yield
    finally:
        # Unlinked while still held: a waiter then sees that its file is not the one on disk.
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """True when a live process holds the lock. Raises OSError when the file can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path, wait: bool) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_current(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise Held(str(path)) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
