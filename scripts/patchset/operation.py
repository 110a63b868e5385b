"""Git operations that stand half-way in a repository, told by the files that they leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Operation:
    """What is in progress, and the git arguments that end it without keeping anything."""

    name: str
    way_out: str


_MARKS = {
    "rebase-apply/applying": Operation("git am", "am --abort"),
    "rebase-apply": Operation("git rebase", "rebase --abort"),
    "rebase-merge": Operation("git rebase", "rebase --abort"),
    "MERGE_HEAD": Operation("git merge", "merge --abort"),
    "CHERRY_PICK_HEAD": Operation("git cherry-pick", "cherry-pick --abort"),
    "REVERT_HEAD": Operation("git revert", "revert --abort"),
    "BISECT_LOG": Operation("git bisect", "bisect reset"),
}


def in_progress(git_dir: Path) -> Operation | None:
    """The operation in progress in a repository, or None; a linked work tree has its own."""
    for mark, operation in _MARKS.items():
        if (git_dir / mark).exists():
            return operation
    return None
