"""The detached work tree of a bisect, which is there while it runs and at no other time."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Iterator

from .. import base, gitenv, lock, signals
from ..pin import Pin

# Held in a session's directory for the time of its work.
LOCK = ".lock"
_PREFIX = "running-"


@contextlib.contextmanager
def detached(repo: Path, directory: Path) -> Iterator[Path]:
    """A new directory in a session's, with a detached work tree of repo in `worktree`.

    The repository's own work tree, branch, index and any bisect of its user stay as they are: each
    work tree has a HEAD and a bisect of its own. Both are gone afterwards, and so is what a killed
    run left. Each run has another directory, so that steps of a killed one can't meet its.
    """
    sweep(repo, directory)
    running = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    try:
        add = ["worktree", "add", "--quiet", "--detach", "--no-checkout"]
        # Git, killed in the middle of this, would leave a record that it takes for locked.
        with signals.deferred():
            gitenv.run(repo, *add, str(running / "worktree"), "HEAD")
        yield running
    finally:
        # Whoever is impatient presses Ctrl-C again.
        with signals.held_off():
            shutil.rmtree(running, ignore_errors=True)
            with contextlib.suppress(gitenv.GitCommandError):
                gitenv.run(repo, "worktree", "prune")


def sweep(repo: Path, directory: Path) -> None:
    """Remove what killed runs left in a session, and git's record of it."""
    left = list(directory.glob(f"{_PREFIX}*"))
    for stale in left:
        shutil.rmtree(stale, ignore_errors=True)
    if left:
        with contextlib.suppress(gitenv.GitCommandError):
            gitenv.run(repo, "worktree", "prune")


def at_work(repo: Path) -> Path | None:
    """The directory of a session that measures commits of repo right now, or None."""
    for record in (repo / ".git" / "worktrees").glob("*/gitdir"):
        # It names SESSION/running-…/worktree/.git
        running = Path(record.read_text().strip()).parents[1]
        if running.name.startswith(_PREFIX) and lock.is_held(running.parent / LOCK):
            return running.parent
    return None


def is_cut_off(running: Path) -> bool:
    """True when the repository of the work tree has been replaced or removed."""
    try:
        gitenv.run(running / "worktree", "rev-parse", "--git-dir")
    except gitenv.GitCommandError:
        return True
    return False


def check_out(running: Path, commit: str) -> None:
    """Make the work tree the files of a commit, and no other file."""
    tree = running / "worktree"
    gitenv.run(tree, "checkout", "--quiet", "--force", "--detach", commit)
    gitenv.run(tree, "clean", "-fdxq")


def import_base(running: Path, wheel: Path, pin: Pin) -> None:
    """A repository in `base` with the pinned release, for the trees of a bisect over patches."""
    place = running / "base"
    place.mkdir()
    base.init_repository(place)
    base.import_base(place, wheel, pin)
