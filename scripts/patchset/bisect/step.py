"""One step of `git bisect run`: measure what is checked out, say what it is."""

from __future__ import annotations

from pathlib import Path

from .. import gitenv, signals
from . import history, measuring
from . import plan as plans

_WORDS = {measuring.BEFORE: "before", measuring.AFTER: "after", measuring.SKIP: "skip"}

# Wide enough for the names of the series.
_NAME = 24


def run(directory: Path) -> int:
    """Measure the commit in the current directory, a work tree, and return the status for git.

    Raises Aborted, and whatever else goes wrong here, for the caller to turn into ABORT. Asked to
    end, it ends the measuring program first.
    """
    signals.unwind()
    plan = plans.read(directory)
    if plan.threshold is None:
        raise measuring.Aborted("the ends were not measured")
    gitenv.scrub()
    worktree = Path.cwd()
    commit = history.head(worktree)
    try:
        figures = measuring.measured(plan, directory, worktree.parent, commit.id)
    except measuring.Aborted as aborted:
        told = f"commit {commit.id[:12]} {commit.label}: {aborted}"
        raise measuring.Aborted(told) from None
    status = measuring.exit_status(plan, figures)
    value = figures.skip or figures.wrong or f"{figures.value:.4g} {plan.unit}"
    measuring.tell(
        f"{commit.id[:12]}  {commit.label:<{_NAME}}  {_WORDS[status]:<6}  {value}"
    )
    return status
