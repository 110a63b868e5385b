"""What a tree holds besides what was made or exported: edits, commits and branches of its user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import base, gitenv
from .listing import counted, listed
from .origin import Origin

# Made again whenever the tree is used.
_CACHES = ("__pycache__/", ".pyc")


@dataclass(frozen=True)
class OwnWork:
    """The user's own work in one tree; empty (false) when replacing the tree loses nothing.

    Attributes:
        tip: the commit that is checked out.
        edits: `git status` entries of changes that are not committed.
        commits: one line per commit that neither `apply` made nor `export` wrote, newest first.
        others: whatever else would be lost, in words.
    """

    tip: str
    edits: tuple[str, ...]
    commits: tuple[str, ...]
    others: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.edits or self.commits or self.others)

    def summary(self) -> str:
        """What there is, in one phrase."""
        counts = []
        if self.commits:
            counts.append(f"{counted(self.commits, 'commit')} of your own")
        if self.edits:
            counts.append(f"{counted(self.edits, 'change')} not committed")
        return ", ".join([*counts, *self.others])

    def listing(self) -> str:
        """The commits and the edited files, one a line."""
        return listed([*self.commits, *self.edits])

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            key: value if key == "tip" else list(value)
            for key, value in vars(self).items()
        }


def find(tree: Path, origin: Origin, hook_digest: str) -> OwnWork:
    """Read a tree that this tool made. Raises GitCommandError when git can't read it.

    Arguments: origin is its record; hook_digest that of the patch files there are now: an
    exported commit counts as the user's again when they no longer are what it was written to.
    """
    head = gitenv.text(tree, "rev-parse", "--verify", "HEAD^{commit}")
    safe = [base.REF, origin.tip]
    if origin.hooks == hook_digest:
        safe.append(origin.exported)
    # After a rebase a pruning `git gc` may have removed the commits that we knew.
    safe = [commit for commit in safe if commit and gitenv.has_commit(tree, commit)]
    return OwnWork(
        tip=head,
        edits=edits(tree),
        commits=_commits(tree, safe),
        others=tuple(_others(tree)),
    )


def edits(tree: Path) -> tuple[str, ...]:
    """The `git status` entries of a tree's changes that are not committed."""
    command = ["status", "--porcelain", "-z", "--no-renames"]
    status = gitenv.run(tree, *command, "--untracked-files=normal")
    return tuple(os.fsdecode(entry) for entry in status.split(b"\0")[:-1])


def _commits(tree: Path, safe: list[str]) -> tuple[str, ...]:
    """Commits on any branch, tag or stash that are not below one of the safe ones."""
    # After a rebase the tags of `apply` name commits that are its own, and on no branch.
    ours = ["--exclude=refs/tags/checkpoint/*", "--exclude=refs/patchset/*"]
    command = [
        "log",
        "--no-show-signature",
        "--format=%h %s",
        *ours,
        "--all",
        "HEAD",
        "--not",
        *safe,
    ]
    return tuple(gitenv.text(tree, *command).splitlines())


def _others(tree: Path) -> list[str]:
    found = []
    branch = _branch(tree)
    if branch != base.BRANCH:
        found.append(f"HEAD on {branch or 'no branch'}")
    worktrees = tree / ".git" / "worktrees"
    if worktrees.is_dir() and any(worktrees.iterdir()):
        found.append("linked work trees")
    ignored = _ignored(tree)
    if ignored:
        found.append(f"ignored files: {', '.join(ignored[:3])}")
    return found


def _branch(tree: Path) -> str:
    try:
        return gitenv.text(tree, "symbolic-ref", "--quiet", "--short", "HEAD")
    except gitenv.GitCommandError:
        return ""


def _ignored(tree: Path) -> list[str]:
    """What git ignores in the tree and is no cache: an environment, something built."""
    command = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory"]
    shown = gitenv.run(tree, *command, "-z").split(b"\0")[:-1]
    return [
        name for entry in shown if not (name := os.fsdecode(entry)).endswith(_CACHES)
    ]
