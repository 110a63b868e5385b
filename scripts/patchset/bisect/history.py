"""The commits that a bisect walks, with the names that people have for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import base, gitenv
from ..errors import Exit, Failure
from ..records.stale import STOCK

_NOTHING = "nothing was measured"


@dataclass(frozen=True)
class Commit:
    """One commit: its id, its tree's id, its patch's name (or a short id), its first line."""

    id: str
    tree: str
    name: str
    subject: str

    @property
    def label(self) -> str:
        """What tells people most beside its id."""
        return self.subject if self.name == self.id[:12] else self.name


def line(repo: Path, old: str, new: str) -> list[Commit]:
    """The commits from old to new, both included, in order. They are ids or names of commits.

    Raises Failure(USAGE) when old is not an ancestor of new, or the same.
    """
    listed = f"{old}..{new}"
    commits = [*_log(repo, "-1", old), *_log(repo, "--reverse", "--topo-order", listed)]
    if not _is_ancestor(repo, old, new) or len(commits) < 2:
        raise Failure(
            Exit.USAGE,
            f"the old end is not before the new end: {old} and {new}",
            where=str(repo),
            state=_NOTHING,
            next="name an older commit with --old, or a newer one with --new",
        )
    return commits


def resolve(repo: Path, which: str, patches: bool) -> str:
    """The id of a commit: any name that git takes, and in a patched tree (`patches`) the number or
    name of a patch, or STOCK. Raises Failure(USAGE)."""
    if patches:
        known = series_of(repo)
        for commit in known:
            if which.zfill(4) in (commit.name, commit.name[:4]):
                return commit.id
        hint = f"choose one of: {', '.join(commit.name for commit in known)}"
    else:
        hint = "name a commit, a branch or a tag of the repository"
    try:
        return gitenv.text(
            repo, "rev-parse", "--verify", "--end-of-options", f"{which}^{{commit}}"
        )
    except gitenv.GitCommandError:
        raise Failure(
            Exit.USAGE,
            f"no commit {which!r}",
            where=str(repo),
            state=_NOTHING,
            next=hint,
        ) from None


def head(repo: Path) -> Commit:
    """The commit that is checked out."""
    return _log(repo, "-1", "HEAD")[0]


def series_of(tree: Path) -> list[Commit]:
    """The stock release and every commit over it in a tree that `apply` made, in order."""
    return [*_log(tree, "-1", base.REF), *_log(tree, "--reverse", f"{base.REF}..HEAD")]


def _log(repo: Path, *arguments: str) -> list[Commit]:
    form = "%H%x00%T%x00%(trailers:key=Patch,valueonly,separator=%x2C)%x00%s"
    said = gitenv.text(repo, "log", f"--format={form}", *arguments, "--")
    stock = _stock(repo)
    commits = []
    for row in said.splitlines():
        id, tree, patch, subject = row.split("\0")
        name = STOCK if id == stock else patch or id[:12]
        commits.append(Commit(id, tree, name, subject))
    return commits


def _stock(repo: Path) -> str | None:
    """The commit of the release in a patched tree; None elsewhere."""
    try:
        return gitenv.text(repo, "rev-parse", "--verify", "--quiet", base.REF)
    except gitenv.GitCommandError:
        return None


def _is_ancestor(repo: Path, old: str, new: str) -> bool:
    try:
        gitenv.run(repo, "merge-base", "--is-ancestor", old, new)
    except gitenv.GitCommandError:
        return False
    return True
