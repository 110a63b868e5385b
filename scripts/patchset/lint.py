"""The rules of a patch file that applying it does not prove."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Callable, Iterator

from . import base, gitenv
from .commits import Applied
from .generate import TREE_PREFIX, sources_of, tree_path
from .series import Patch, Series

REQUIRED = (
    "Patch",
    "Upstream-Status",
    "Origin",
    "Env-Flag",
    "Scope",
    "Depends-On",
    "Tests",
    "Evidence",
    "Drop-When",
)
OPTIONAL = ("Generated-From",)

_UPSTREAM_STATUS = re.compile(
    r"(Pending|Submitted|Backport|Denied|Inappropriate) \[[^\[\]]+\]"
)
_RECORD_ID = re.compile(r"none|\d{4}-[a-z0-9][a-z0-9.-]*")
# `git am` takes these for the start of the diff, a mail header or a mailbox separator.
_MAIL_LINE = re.compile(r"diff -|---|Index:|From:|From |Subject:|Date:|>From|-- >8 --")

Problem = str


def lint_series(series: Series) -> list[Problem]:
    """Check every patch file by itself and against those before it; empty means clean."""
    problems = [
        f"{patch.name}: {problem}"
        for patch in series.patches
        for rule in _RULES
        for problem in rule(patch)
    ]
    problems += _dependencies(series)
    problems += _chain(series)
    return problems


def lint_applied(
    repo_dir: Path, base_commit: str, applied: list[Applied]
) -> list[Problem]:
    """Check whitespace and line endings of a series against the tree that it applies to.

    A user's `apply.whitespace=fix` would make another tree out of a patch with a whitespace
    error, and line-ending conversion out of one that touches a CRLF file; both without a word.
    """
    problems: list[Problem] = []
    parent = base_commit
    for each in applied:
        problems += _whitespace(repo_dir, parent, each.patch)
        problems += _line_endings(repo_dir, each.patch)
        parent = each.commit
    return problems


def _ascii(patch: Patch) -> Iterator[Problem]:
    for number, line in enumerate(patch.path.read_bytes().split(b"\n"), start=1):
        if not line.isascii():
            yield f"line {number} is not ASCII"


def _author(patch: Patch) -> Iterator[Problem]:
    if patch.head.author != base.IDENTITY:
        yield f"the author is {patch.head.author}, not {base.IDENTITY}"


def _subject(patch: Patch) -> Iterator[Problem]:
    if patch.subject.startswith("["):
        yield "the subject starts with [..], which `git am` strips"
    if patch.subject != " ".join(patch.subject.split()):
        yield "the subject has spaces that `git am` strips"


def _message(patch: Patch) -> Iterator[Problem]:
    for line in patch.body.split("\n"):
        if _MAIL_LINE.match(line):
            yield f"a message line that `git am` takes for something else: {line!r}"
        if line != line.rstrip():
            yield f"a message line ends in a space, which `git am` strips: {line!r}"
    if "\n\n\n" in patch.body:
        yield "the message has two empty lines in a row, which `git am` makes one"


def _trailers(patch: Patch) -> Iterator[Problem]:
    for key in REQUIRED:
        if not patch.trailers.get(key):
            yield f"no trailer {key}:"
    for key in set(patch.trailers) - set(REQUIRED) - set(OPTIONAL):
        yield f"unknown trailer {key}:"
    status = patch.trailers.get("Upstream-Status")
    if status and not _UPSTREAM_STATUS.fullmatch(status):
        yield (
            f"Upstream-Status: {status!r} is not one of Pending, Submitted, Backport, Denied, "
            "Inappropriate, with a [reason]"
        )
    evidence = patch.trailers.get("Evidence")
    if evidence and not _RECORD_ID.fullmatch(evidence):
        yield f"Evidence: {evidence!r} is neither none nor a record id NNNN-slug"


def _name(patch: Patch) -> Iterator[Problem]:
    named = patch.trailers.get("Patch")
    if named and named != patch.name:
        yield f"the trailer Patch: {named} and the file name differ"


def _paths(patch: Patch) -> Iterator[Problem]:
    for change in patch.changes:
        if not change.path.startswith("python/sglang/"):
            yield f"{change.path} is outside python/sglang/"
        if change.path.endswith("/_version.py"):
            yield f"{change.path} is made by the build and not in upstream's tree"
        if not patch.generated and change.path.startswith(TREE_PREFIX):
            yield f"{change.path} may be changed only through kernels/"


def _generated(patch: Patch) -> Iterator[Problem]:
    if patch.generated:
        made = sorted(map(tree_path, sources_of(patch.trailers)))
        if made != sorted(change.path for change in patch.changes):
            yield "Generated-From and the files of the diff differ"
        if any(change.old_blob for change in patch.changes):
            yield "a generated patch only adds files"


_RULES: tuple[Callable[[Patch], Iterator[Problem]], ...] = (
    _ascii,
    _author,
    _subject,
    _message,
    _trailers,
    _name,
    _paths,
    _generated,
)


def _dependencies(series: Series) -> Iterator[Problem]:
    known: set[str] = set()
    for patch in series.patches:
        for needed in re.split(r"[,\s]+", patch.trailers.get("Depends-On", "none")):
            if needed != "none" and needed not in known:
                yield f"{patch.name}: Depends-On: {needed} is no patch before it"
        known |= {patch.number, patch.name}


def _chain(series: Series) -> Iterator[Problem]:
    """A file's blob before a patch must be the one that the last patch left."""
    left: dict[str, tuple[str | None, str]] = {}
    for patch in series.patches:
        for change in patch.changes:
            blob, by = left.get(change.path, (change.old_blob, ""))
            if blob != change.old_blob:
                yield f"{patch.name}: {change.path} is not as {by} leaves it"
            left[change.path] = (change.new_blob, patch.name)


def _whitespace(repo_dir: Path, parent: str, patch: Patch) -> Iterator[Problem]:
    with tempfile.TemporaryDirectory(prefix="patchset-lint-") as scratch:
        env = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        gitenv.run(repo_dir, "read-tree", parent, env=env)
        command = ["apply", "--cached", "--check", "--whitespace=error-all", "-"]
        try:
            gitenv.run(repo_dir, *command, input=patch.diff, env=env)
        except gitenv.GitCommandError as error:
            first = gitenv.message_of(error).splitlines()[0]
            yield f"{patch.name}: whitespace: {first}"


def _line_endings(repo_dir: Path, patch: Patch) -> Iterator[Problem]:
    for change in patch.changes:
        for blob in {change.old_blob, change.new_blob} - {None}:
            if b"\r\n" in gitenv.run(repo_dir, "cat-file", "blob", blob):
                yield f"{patch.name}: {change.path} has CRLF line endings"
                break
