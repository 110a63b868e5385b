"""`git bisect run` itself, and what it found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import gitenv, processes
from ..probe.entry import TELLS_TO
from . import measuring
from .history import Commit
from .plan import Plan

LOG = "git-bisect.log"
_ENTRY = Path("harness", "scripts", "patchset", "probe", "entry.py")
_FIRST = re.compile(r"^# first after commit: \[([0-9a-f]{40,64})\]", re.M)
_POSSIBLE = re.compile(r"^# possible first after commit: \[([0-9a-f]{40,64})\]", re.M)


@dataclass(frozen=True)
class Found:
    """The commits that git names: one, or several where skipped ones lie between, or none when the
    search was given up."""

    candidates: tuple[str, ...]


def search(plan: Plan, directory: Path, running: Path, commits: list[Commit]) -> Found:
    """Run the bisect between the ends of the plan; commits is the line between them.

    Ends in an exception end git and the measuring program too.
    """
    if len(commits) == 2:
        # git has nothing to run then.
        return Found((plan.new,))
    tree = running / "worktree"
    terms = ["--term-old=before", "--term-new=after"]
    gitenv.run(tree, "bisect", "start", *terms, plan.new, plan.old)
    with open(directory / LOG, "wb") as log:
        _bisect_run(tree, [sys.executable, "-P", directory / _ENTRY, directory], log)
    told = gitenv.text(tree, "bisect", "log")
    return Found(tuple(_FIRST.findall(told) or _POSSIBLE.findall(told)))


def _bisect_run(tree: Path, command: list, log) -> None:
    """Run git and its steps as one process group, which does not outlive this call.

    What git says goes to the log, what the steps tell to our own standard error.
    """
    words = ["git", "-C", str(tree), "bisect", "run", *map(str, command)]
    ours = os.dup(sys.stderr.fileno())
    try:
        # Not through GitPython, which passes no descriptor on.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[ours],
            env={**os.environ, TELLS_TO: str(ours)},
        )
    finally:
        os.close(ours)
    try:
        process.wait()
    finally:
        # A step that is asked to end its measuring program waits for that.
        processes.end_group(process, 2 * measuring.PATIENCE_S)
