"""The live processes of this machine, and the end of a whole process group of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import signals

_POLL = 0.05


class Process(NamedTuple):
    """A process: its id, and those of its group and its session."""

    id: int
    group: int
    session: int


def live() -> Iterator[Process]:
    """Each process that still runs; one that has ended and that nobody asked after is none."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_bytes()
        except OSError:
            continue
        # The command's name, in brackets, may hold anything.
        state, _, group, session = stat[stat.rindex(b")") + 2 :].split()[:4]
        if state not in (b"Z", b"X"):
            yield Process(int(entry), int(group), int(session))


def end_group(leader: subprocess.Popen, patience: float) -> None:
    """End a process that leads a group, and all of the group: asked to first, killed when some are
    left after so many seconds.

    Who is asked can stop what it started elsewhere. Signals to this process wait until it is done.
    """
    with signals.held_off():
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, patience)):
            if not _has_members(leader.pid):
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, number)
            end = time.monotonic() + seconds
            while _has_members(leader.pid) and time.monotonic() < end:
                time.sleep(_POLL)
        leader.wait()


def _has_members(group: int) -> bool:
    return any(process.group == group for process in live())
