"""What a signal that ends the process does: die without a word, or unwind as KeyboardInterrupt."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_silently() -> None:
    """For the time when nothing has been changed yet, or everything is done."""
    _set(signal.SIG_DFL)


def unwind() -> None:
    """For the time of the work: what is half-done is cleaned up on the way out.

    Python prints and forgets what is raised while an object is deleted (GitPython's processes have such code).
    One that came there is sent once more, a moment later.
    """
    sys.unraisablehook = _sent_once_more
    _set(_raise)


@contextmanager
def held_off() -> Iterator[None]:
    """Ignore them while something that must be done to its end, and soon ends, is done."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Let one that comes in between act at the end, for what must be known once it is begun.

    Handlers are not passed on to a program that is started, as an ignored signal would be.
    """
    came = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    _set(lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _set(handler) -> None:
    for number in _ENDING:
        # A signal that our caller ignores (nohup, a job in the background) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _sent_once_more(unraisable: sys.UnraisableHookArgs) -> None:
    value = unraisable.exc_value
    if not (isinstance(value, KeyboardInterrupt) and value.args):
        sys.__unraisablehook__(unraisable)
        return
    # Not from here: its handler would raise in this hook, which Python forgets too.
    later = threading.Timer(0.05, os.kill, (os.getpid(), value.args[0]))
    later.daemon = True
    later.start()
