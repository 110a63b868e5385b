"""One step of `git bisect run`: measure what is checked out, say what it is."""

from __future__ import annotations

from pathlib import Path

from .. import gitenv, signals
from . import measuring
from . import plan as plans

_WORDS = {measuring.BEFORE: "before", measuring.AFTER: "after", measuring.SKIP: "skip"}


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
    commit = gitenv.text(worktree, "rev-parse", "HEAD")
    try:
        figures = measuring.measured(plan, directory, worktree.parent, commit)
    except measuring.Aborted as aborted:
        raise measuring.Aborted(f"commit {commit[:12]}: {aborted}") from None
    status = measuring.exit_status(plan, figures)
    value = figures.skip or figures.wrong or f"{figures.value:.4g} {plan.unit}"
    measuring.tell(f"{commit[:12]}  {_WORDS[status]:<6}  {value}")
    return status
