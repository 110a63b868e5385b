"""Turn a series into commits on top of a base, without touching HEAD, index or work tree."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import disk, gitenv, invocation
from .errors import Exit, Failure
from .mail import FileChange, Head
from .series import Patch, Series

_UNCHANGED = "no branch, index or file was changed"


@dataclass(frozen=True)
class Applied:
    """One patch as a commit."""

    patch: Patch
    commit: str
    tree: str


def commit_series(
    repo_dir: str | os.PathLike[str],
    base_commit: str,
    series: Series,
    strip_prefix: str = "",
) -> list[Applied]:
    """Commit every patch of series on top of base_commit and return the commits in order.

    Only objects are written: a scratch index stands in for the repository's own. Arguments:
    repo_dir is the top directory of the repository; strip_prefix ("python/" for a tree that
    starts at sglang/) is cut from the paths of the patches. Strict: no fuzz, no three-way merge,
    and each touched file must have, before and after, the blob that the patch names. Committer
    and date are the author's, so the ids depend on nothing but base and patches.
    Raises Failure(PATCH) naming the patch, the file and the hunk that does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="patchset-index-") as scratch:
        index = _Index(Path(repo_dir), Path(scratch) / "index", strip_prefix)
        index.read(base_commit)
        applied: list[Applied] = []
        parent = base_commit
        for patch in series.patches:
            index.apply(patch)
            tree = index.write()
            parent = commit_tree(repo_dir, tree, parent, patch.head)
            applied.append(Applied(patch=patch, commit=parent, tree=tree))
        return applied


def tip(base_commit: str, applied: Sequence[Applied]) -> str:
    """The last commit of a series on its base, which is the base where no patch was applied."""
    return applied[-1].commit if applied else base_commit


def commit_tree(
    repo_dir: str | os.PathLike[str], tree: str, parent: str | None, head: Head
) -> str:
    """Write one commit object with the head's message, author and date; return its id."""
    name, email = re.fullmatch(r"(.*) <(.*)>", head.author).groups()
    env = {"GIT_AUTHOR_NAME": name, "GIT_COMMITTER_NAME": name}
    env |= {"GIT_AUTHOR_EMAIL": email, "GIT_COMMITTER_EMAIL": email}
    env |= {"GIT_AUTHOR_DATE": head.date, "GIT_COMMITTER_DATE": head.date}
    command = ["commit-tree", tree, *(["-p", parent] if parent else [])]
    message = head.message.encode("ascii")
    return gitenv.run(repo_dir, *command, input=message, env=env).decode().strip()


class _Index:
    """A scratch index over one repository."""

    def __init__(self, repo_dir: Path, path: Path, strip_prefix: str):
        self.repo_dir = repo_dir
        self.strip_prefix = strip_prefix
        self.env = {"GIT_INDEX_FILE": str(path)}

    def read(self, commit: str) -> None:
        gitenv.run(self.repo_dir, "read-tree", commit, env=self.env)

    def write(self) -> str:
        return gitenv.text(self.repo_dir, "write-tree", env=self.env)

    def blobs(self, patch: Patch) -> dict[str, str]:
        """The blob of each path that the patch touches and the index has."""
        paths = [
            change.path.removeprefix(self.strip_prefix) for change in patch.changes
        ]
        command = ["--literal-pathspecs", "ls-files", "-s", "-z", "--", *paths]
        found = gitenv.run(self.repo_dir, *command, env=self.env)
        blobs = {}
        for entry in found.split(b"\0")[:-1]:
            meta, path = entry.split(b"\t", 1)
            blobs[self.strip_prefix + os.fsdecode(path)] = meta.split()[1].decode()
        return blobs

    def apply(self, patch: Patch) -> None:
        before = self.blobs(patch)
        depth = 1 + self.strip_prefix.count("/")
        command = ["apply", "--cached", "--whitespace=nowarn", f"-p{depth}", "-"]
        try:
            gitenv.run(self.repo_dir, *command, input=patch.diff, env=self.env)
        except gitenv.GitCommandError as error:
            said = gitenv.message_of(error)
            if disk.is_told_by(said):
                raise
            raise _refusal(patch, before, said) from None
        if any(before.get(c.path) != c.old_blob for c in patch.changes):
            raise _refusal(patch, before, "")
        after = self.blobs(patch)
        for change in patch.changes:
            if after.get(change.path) != change.new_blob:
                raise Failure(
                    Exit.PATCH,
                    f"{patch.name} gives another result than its index line says",
                    where=f"{change.path}: blob {after.get(change.path)}, "
                    f"the patch says {change.new_blob}",
                    state=_UNCHANGED,
                    next="the patch file was edited by hand: restore it, or change the "
                    f"applied tree and run {invocation.again(verb='export')}",
                )


def _refusal(patch: Patch, before: dict[str, str], said: str) -> Failure:
    """Say why a patch was refused: applied already, in part, over foreign files, or in a hunk."""
    done = [c for c in patch.changes if before.get(c.path) == c.new_blob]
    ready = [c for c in patch.changes if before.get(c.path) == c.old_blob]
    foreign = [c for c in patch.changes if c not in done and c not in ready]
    if not foreign and not ready:
        what = f"{patch.name} is already applied"
        where = _names(done)
    elif not foreign and done:
        what = f"{patch.name} is partly applied"
        where = f"already changed: {_names(done)}; still as before: {_names(ready)}"
    else:
        place = _place(patch, said)
        what = f"{patch.name} conflicts in this hunk" if place else ""
        what = what or f"{patch.name} meets files that it was not made for"
        where = place or _names(foreign or list(patch.changes))
        if foreign and place:
            where += f"\nforeign files: {_names(foreign)}"
        if said and not place:
            where += f"\n{said}"
    return Failure(
        Exit.PATCH,
        what,
        where=where,
        state=_UNCHANGED,
        next="find out whether the series itself is whole: "
        f"{invocation.again(verb='check')}",
    )


def _names(changes: list[FileChange]) -> str:
    return ", ".join(change.path for change in changes)


def _place(patch: Patch, said: str) -> str | None:
    """The file and hunk header that git's `patch failed: FILE:LINE` points at."""
    failed = re.search(r"patch failed: (.+):(\d+)", said)
    if not failed:
        return None
    name, line = failed.groups()
    for change in patch.changes:
        if change.path.endswith(name):
            for hunk in change.hunks:
                if re.match(rf"@@ -{line}[, ]", hunk):
                    return f"{change.path} {hunk}"
    return f"{name} line {line}"
