"""What a signal that ends the process does: die without a word, or unwind as KeyboardInterrupt."""

from __future__ import annotations

import signal

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_silently() -> None:
    """For the time when nothing has been changed yet, or everything is done."""
    _set(signal.SIG_DFL)


def unwind() -> None:
    """For the time of the work: what is half-done is cleaned up on the way out."""
    _set(_raise)


def _set(handler) -> None:
    for number in _ENDING:
        # A signal that our caller ignores (nohup, a job in the background) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)
