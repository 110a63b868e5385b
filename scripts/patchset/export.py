"""Commits back into patch files, byte for byte the same on every machine."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from . import atomic, base, gitenv, invocation, mail, scratchrepo
from .errors import Exit, Failure

_FORMAT = ["format-patch", "-1", "--stdout", "--zero-commit", "--no-signature"]
_FORMAT += ["--no-numbered", "--full-index", "--no-renames", "--diff-algorithm=myers"]
_UNSQUASHED = re.compile(
    rb"^Subject: (?:\[PATCH\] )?(fixup|squash|amend)! ", re.MULTILINE
)
_AUTHOR = re.compile(rb"^From: .*$", re.MULTILINE)


def format_commit(repo_dir: Path, commit: str) -> bytes:
    """The patch file of one commit, with the series' fixed author."""
    data = gitenv.run(repo_dir, *_FORMAT, commit)
    return _AUTHOR.sub(f"From: {base.IDENTITY}".encode(), data, count=1)


def export_tree(repo_dir: Path, base_commit: str, tip: str) -> dict[str, bytes]:
    """The patch files of every commit after base_commit up to tip: file name to content.

    The commits are read through a repository of our own, so that no setting, attribute or
    replacement in repo_dir changes the output. Raises Failure(PATCH) for a merge, for a base that
    is no ancestor, and for a commit whose message has no `Patch:` trailer or repeats another's.
    """
    base_commit, tip = _commit(repo_dir, base_commit), _commit(repo_dir, tip)
    files: dict[str, bytes] = {}
    with scratchrepo.borrowing(repo_dir) as clean:
        _require_line(clean, base_commit, tip)
        command = ["rev-list", "--reverse", f"{base_commit}..{tip}"]
        for commit in gitenv.text(clean, *command).split():
            data = format_commit(clean, commit)
            _require_squashed(data, commit, repo_dir)
            name = _file_name(data, commit)
            if name in files:
                raise _unfit(f"two commits have the trailer Patch: {name[:-6]}", commit)
            if files and name < max(files):
                raise _unfit(f"{name[:-6]} comes after {max(files)[:-6]}", commit)
            files[name] = data
    return files


@dataclass(frozen=True)
class Difference:
    """How a patch directory differs from what the commits give; empty when it does not."""

    changed: dict[str, str]
    missing: tuple[str, ...]
    extra: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.changed) + len(self.missing) + len(self.extra)

    def as_json(self) -> dict:
        return {
            "changed": self.changed,
            "missing": list(self.missing),
            "extra": list(self.extra),
        }

    def lines(self) -> list[str]:
        """One line per file, with the first differing line of a changed one."""
        return [
            *(f"{name} differs at {place}" for name, place in self.changed.items()),
            *(f"{name} has no file" for name in self.missing),
            *(f"{name} has no commit" for name in self.extra),
        ]


def compare(there: dict[str, bytes], files: dict[str, bytes]) -> Difference:
    """Compare the patch files that there are with exported ones, both name to content."""
    return Difference(
        changed={
            name: first_difference(there[name], data)
            for name, data in files.items()
            if name in there and there[name] != data
        },
        missing=tuple(sorted(set(files) - set(there))),
        extra=tuple(sorted(set(there) - set(files))),
    )


def write_files(
    directory: Path, files: dict[str, bytes], *, remove: tuple[str, ...] = ()
) -> None:
    """Write files into a directory, each as a whole. Raises Failure(ENVIRONMENT)."""
    try:
        for name, data in files.items():
            atomic.write(directory / name, data)
        for name in remove:
            (directory / name).unlink()
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"a patch file cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            state="each patch file is as it was, or complete",
            next="make the directory writable, then run the same command again",
        ) from None


def first_difference(before: bytes, after: bytes) -> str:
    """The first line in which two texts differ, both ways."""
    left, right = before.split(b"\n"), after.split(b"\n")
    for number, (old, new) in enumerate(zip(left, right), start=1):
        if old != new:
            return f"line {number}: file {_shown(old)}, exported {_shown(new)}"
    return f"line {min(len(left), len(right)) + 1}: one ends there"


def _shown(line: bytes) -> str:
    text = repr(line.decode("latin-1"))
    return text if len(text) <= 80 else text[:77] + "..."


def _commit(repo_dir: Path, name: str) -> str:
    try:
        return gitenv.text(repo_dir, "rev-parse", "--verify", f"{name}^{{commit}}")
    except gitenv.GitCommandError:
        raise Failure(
            Exit.USAGE,
            f"the tree has no commit {name!r}",
            where=str(repo_dir),
            state="nothing was written",
            next=f"name one that it has: {invocation.again('--tip', 'HEAD', verb='export')}",
        ) from None


def _require_line(repo_dir: Path, base_commit: str, tip: str) -> None:
    try:
        gitenv.run(repo_dir, "merge-base", "--is-ancestor", base_commit, tip)
    except gitenv.GitCommandError:
        raise _unfit("the base is not below the tip", f"{base_commit}..{tip}") from None
    merges = gitenv.text(repo_dir, "rev-list", "--merges", f"{base_commit}..{tip}")
    if merges:
        raise _unfit("the series must be a line, and has a merge", merges.split()[0])


def _require_squashed(data: bytes, commit: str, repo_dir: Path) -> None:
    found = _UNSQUASHED.search(data)
    if found:
        raise Failure(
            Exit.PATCH,
            f"a {found.group(1).decode()}! commit is not yet squashed into its patch",
            where=f"commit {commit}",
            state="nothing was written",
            next=f"git -C {shlex.quote(str(repo_dir))} rebase -i --autosquash {base.STOCK_TAG}, "
            f"then {invocation.again(verb='export')}",
        )


def _file_name(data: bytes, commit: str) -> str:
    if not data:
        raise _unfit("the commit changes nothing", commit)
    try:
        name = mail.parse_head(data).trailers.get("Patch", "")
    except mail.MalformedPatch as error:
        raise _unfit(f"the commit makes no patch file: {error}", commit) from None
    if not re.fullmatch(r"\d{4}-[a-z0-9][a-z0-9.-]*", name):
        raise _unfit(
            f"the message needs a trailer 'Patch: NNNN-slug', found {name!r}", commit
        )
    return f"{name}.patch"


def _unfit(what: str, commit: str) -> Failure:
    return Failure(
        Exit.PATCH,
        what,
        where=f"commit {commit}",
        state="nothing was written",
        next="amend that commit in the patched tree, then run: "
        f"{invocation.again(verb='export')}",
    )
