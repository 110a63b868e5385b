"""What stands at a target path, read without changing it: ours and complete, or why not."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from . import base, gitenv, operation, scratchrepo
from .commits import commit_series
from .errors import Exit, Failure
from .listing import listed
from .result import ALREADY, TreeResult
from .series import Series
from .state import read_state

OWNER_KEY = "patchset.release"
SOURCE_KEY = "patchset.source"


def is_empty(target: Path) -> bool:
    """True when a target can be made here: nothing, or an empty directory."""
    if not target.exists():
        return True
    return target.is_dir() and not any(target.iterdir())


def is_ours(target: Path) -> bool:
    """True for a tree that this tool made."""
    return (target / ".git").is_dir() and bool(_config(target, OWNER_KEY))


def require_ours(target: Path) -> None:
    """Raise Failure(PATCH) unless target is a tree that this tool made."""
    if not target.is_dir():
        raise _refuse(
            target, "the target is not a directory", "choose another: --to DIR"
        )
    if not (target / ".git").is_dir():
        raise _refuse(
            target,
            "the target is not a git repository, so it was not made by this tool",
            "choose another place: --to DIR, or move that directory away",
        )
    if not is_ours(target):
        raise _refuse(
            target,
            "the target is a git repository that this tool did not make",
            f"to patch your own checkout: scripts/apply.sh --into {_quoted(target)}",
        )


@dataclass(frozen=True)
class Asked:
    """What `apply` was asked for: the target, the whole series, the part wanted, the source."""

    target: Path
    series: Series
    wanted: Series
    source: str

    @property
    def again(self) -> str:
        """How to make the target again."""
        words = ["scripts/apply.sh"]
        if self.source != "wheel":
            words += ["--source", self.source]
        if self.wanted != self.series:
            words += ["--upto", self.wanted.patches[-1].name]
        return f"make it again: {shlex.join([*words, '--to', str(self.target), '--force'])}"


def read_target(asked: Asked) -> TreeResult:
    """Read an existing target; return its commits when it already is what was asked for.

    Nothing is written, so a target in a read-only place can be read too. Raises Failure(PATCH),
    each with its own message and next command, when the target is foreign, has another base, has
    a git operation in progress, is dirty, is broken, or holds something else.
    """
    require_ours(asked.target)
    try:
        return _read(asked)
    except gitenv.GitCommandError as error:
        what = "the target is broken: git cannot read it"
        said = gitenv.message_of(error)
        raise _refuse(asked.target, what, asked.again, said) from None


def _read(asked: Asked) -> TreeResult:
    target = asked.target
    base_commit = _base(asked)
    _require_idle(target)
    _require_clean(target)
    head = gitenv.text(target, "rev-parse", "--verify", "HEAD^{commit}")
    with scratchrepo.borrowing(target) as scratch:
        applied = commit_series(scratch, base_commit, asked.wanted)
        if gitenv.text(scratch, "rev-parse", f"{head}^{{tree}}") != applied[-1].tree:
            raise _other_content(asked, scratch, base_commit, head)
    return TreeResult(str(target), asked.source, ALREADY, base_commit, tuple(applied))


def blob_at(repo_dir: Path, revision: str, path: str) -> str | None:
    """The blob id of a path in a revision; None when it has no such file."""
    command = ["--literal-pathspecs", "ls-tree", revision, "--", path]
    found = gitenv.text(repo_dir, *command)
    return found.split()[2] if found else None


def _base(asked: Asked) -> str:
    """The target's base commit, once it is known to be the one that was asked for."""
    target, pin = asked.target, asked.series.pin
    release = _config(target, OWNER_KEY)
    if release != pin.version:
        what = f"the target was made for SGLang {release}; the patches are for {pin.version}"
        raise _refuse(target, what, asked.again)
    made_from = _config(target, SOURCE_KEY)
    if made_from != asked.source:
        what = f"the target was made with --source {made_from}, not {asked.source}"
        raise _refuse(target, what, f"{asked.again}\nor choose another place: --to DIR")
    try:
        commit = gitenv.text(target, "rev-parse", "--verify", base.REF)
    except gitenv.GitCommandError:
        what = f"the target has lost its base ({base.REF})"
        raise _refuse(target, what, asked.again) from None
    if asked.source == "wheel" and commit != pin.commit:
        what = f"the target's base differs: {commit}, pinned {pin.commit}"
        raise _refuse(target, what, asked.again)
    return commit


def _require_idle(target: Path) -> None:
    found = operation.in_progress(target / ".git")
    if found:
        raise _refuse(
            target,
            f"{found.name} is in progress in the target",
            f"finish it, or end it: git -C {_quoted(target)} {found.way_out}",
        )


def _require_clean(target: Path) -> None:
    status = gitenv.run(target, "status", "--porcelain", "-z", "--no-renames")
    entries = [os.fsdecode(entry) for entry in status.split(b"\0")[:-1]]
    if entries:
        raise _refuse(
            target,
            "the target has changes that are not committed",
            f"commit them, or put them away: git -C {_quoted(target)} stash -u",
            listed(entries),
        )


def _other_content(asked: Asked, scratch: Path, base_commit: str, head: str) -> Failure:
    target = asked.target
    state = read_state(lambda path: blob_at(scratch, head, path), asked.series)
    if state.foreign:
        return _refuse(
            target,
            "foreign tree: these files are in no step of the series",
            f"if they hold your work on the patches: scripts/export.sh; else {asked.again}",
            listed(state.foreign),
        )
    if state.partial:
        return _refuse(
            target,
            "half-applied: the files stand at different patches of the series",
            asked.again,
            listed([f"{path}: {patch}" for path, patch in state.partial]),
        )
    count = f"{state.applied} of {state.total} patches are applied"
    expected = _tree_after(asked.series, scratch, base_commit, state.applied)
    others = _differing(scratch, expected, head)
    if others:
        return _refuse(
            target,
            f"{count}, and files outside the series were changed",
            f"keep your work on another branch, then {asked.again}",
            listed(others),
        )
    last = asked.wanted.patches[-1].name
    wanted = f"{len(asked.wanted.patches)} were asked for (up to {last})"
    return _refuse(target, f"{count}, {wanted}", asked.again)


def _tree_after(series: Series, scratch: Path, base_commit: str, count: int) -> str:
    if count == 0:
        return base_commit
    upto = series.upto(series.patches[count - 1].name)
    return commit_series(scratch, base_commit, upto)[-1].tree


def _differing(repo_dir: Path, before: str, after: str) -> list[str]:
    command = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after]
    names = gitenv.run(repo_dir, *command).split(b"\0")[:-1]
    return [os.fsdecode(name) for name in names]


def _config(target: Path, key: str) -> str:
    # A parent directory may be a repository too: only the target's own file counts.
    file = str(target / ".git" / "config")
    try:
        return gitenv.text(target, "config", "--file", file, "--get", key)
    except gitenv.GitCommandError:
        return ""


def _refuse(target: Path, what: str, after: str, files: str = "") -> Failure:
    where = f"{target}\n{files}" if files else str(target)
    return Failure(
        Exit.PATCH, what, where=where, state="the target is as it was", next=after
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
