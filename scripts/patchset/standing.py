"""What stands at a target path, read without changing it: ours and complete, or why not."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from . import base, gitenv, invocation, operation, origin, own_work, scratchrepo
from .bisect import worktree
from .commits import commit_series, tip
from .errors import Exit, Failure
from .listing import listed
from .origin import Origin
from .own_work import OwnWork
from .result import ALREADY, MADE, MADE_AGAIN, TreeResult
from .series import Series
from .state import read_state


def is_empty(target: Path) -> bool:
    """True when a target can be made here: nothing, or an empty directory."""
    if not target.exists():
        return True
    return target.is_dir() and not any(target.iterdir())


def is_ours(target: Path) -> bool:
    """True for a tree that this tool made."""
    return (target / ".git").is_dir() and bool(origin.read(target).release)


def require_ours(target: Path, another: str | None = None) -> None:
    """Raise Failure(PATCH) unless target is a tree that this tool made.

    Arguments: another is how a command that only reads a tree is given another one.
    """
    if not target.is_dir():
        after = another or _another_place()
        raise _refuse(target, "the target is not a directory", after)
    if not (target / ".git").is_dir():
        raise _refuse(
            target,
            "the target is not a git repository, so it was not made by this tool",
            another or f"{_another_place()}, or move that directory away",
        )
    if not is_ours(target):
        into = invocation.again(
            "--into", str(target), drop=("to", "source", "wheel", "url")
        )
        raise _refuse(
            target,
            "the target is a git repository that this tool did not make",
            another or f"to patch your own checkout: {into}",
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
        return f"make it again: {self.force}"

    @property
    def force(self) -> str:
        """The command that replaces the target."""
        words = []
        if self.source != "wheel":
            words += ["--source", self.source]
        if self.wanted != self.series:
            words += ["--upto", self.wanted.last]
        return invocation.again(*words, "--to", str(self.target), "--force")


@dataclass(frozen=True)
class Replaceable:
    """A target that may be made.

    Attributes: state: what that is called once it is done. work: what is lost by it.
    """

    state: str
    work: OwnWork | None = None


def judge(asked: Asked, force: bool) -> TreeResult | Replaceable:
    """The commits of a target that already is what was asked for, or that it may be made.

    Nothing is written, so a target in a read-only place can be read too. Raises Failure(PATCH),
    each with its own message and next command, when the target is foreign, has another base, has
    a git operation in progress, is dirty, is broken, or holds something else; with force only
    when it is not ours. Raises Failure(ENVIRONMENT) when a bisect is at work on one to be replaced.
    """
    target = asked.target
    if is_empty(target):
        return Replaceable(MADE)
    require_ours(target)
    if force:
        _require_unused(asked)
        return Replaceable(MADE, _readable_work(asked))
    try:
        return _read(asked)
    except gitenv.GitCommandError as error:
        what = "the target is broken: git cannot read it"
        said = gitenv.message_of(error)
        raise _refuse(asked.target, what, asked.again, said) from None


def _readable_work(asked: Asked) -> OwnWork | None:
    try:
        return own_work.find(
            asked.target, origin.read(asked.target), asked.series.hook_digest
        )
    except gitenv.GitCommandError:
        return None


def _read(asked: Asked) -> TreeResult | Replaceable:
    target = asked.target
    made_from = origin.read(target)
    base_commit = _base(asked, made_from)
    _require_idle(target)
    work = own_work.find(target, made_from, asked.series.hook_digest)
    changed = made_from.series != asked.series.digest
    if changed:
        _require_unused(asked)
    if work.edits:
        raise _outdated(asked, made_from, work) if changed else _dirty(target, work)
    if changed and not work:
        return Replaceable(MADE_AGAIN)
    with scratchrepo.borrowing(target) as scratch:
        applied = commit_series(scratch, base_commit, asked.wanted)
        wanted = tip(base_commit, applied)
        command = ("rev-parse", f"{work.tip}^{{tree}}", f"{wanted}^{{tree}}")
        if len(set(gitenv.text(scratch, *command).split())) > 1:
            if changed:
                raise _outdated(asked, made_from, work)
            raise _other_content(asked, scratch, base_commit, work.tip)
    return TreeResult(str(target), asked.source, ALREADY, base_commit, tuple(applied))


def _outdated(asked: Asked, made_from: Origin, work: OwnWork) -> Failure:
    """The refusal for a tree that holds work of its user on an older series."""
    tree = f"git -C {_quoted(asked.target)}"
    since = made_from.tip or base.REF
    steps = [f"{tree} add -A && {tree} commit -m work"] if work.edits else []
    steps.append(f"{tree} format-patch -o DIR {since}..HEAD")
    because = (
        "the series has changed since it was made"
        if made_from.tip
        else "it was made by an older version of this tool, from what is not recorded"
    )
    return _refuse(
        asked.target,
        f"the target holds work of yours ({work.summary()}), and {because}",
        f"save it: {' && '.join(steps)}\nthen replace the tree: {asked.force}\n"
        f"and put it back: {tree} am --3way DIR/*.patch",
        work.listing(),
    )


def blob_at(repo_dir: Path, revision: str, path: str) -> str | None:
    """The blob id of a path in a revision; None when it has no such file."""
    command = ["--literal-pathspecs", "ls-tree", revision, "--", path]
    found = gitenv.text(repo_dir, *command)
    return found.split()[2] if found else None


def _base(asked: Asked, made_from: Origin) -> str:
    """The target's base commit, once it is known to be the one that was asked for."""
    target, pin = asked.target, asked.series.pin
    if made_from.release != pin.version:
        what = (
            f"the target was made for SGLang {made_from.release}; "
            f"the patches are for {pin.version}"
        )
        raise _refuse(target, what, asked.again)
    if made_from.source != asked.source:
        what = (
            f"the target was made with --source {made_from.source}, not {asked.source}"
        )
        raise _refuse(target, what, f"{asked.again}\nor {_another_place()}")
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


def _require_unused(asked: Asked) -> None:
    """Before it is replaced, which would take its repository away from a search."""
    session = worktree.at_work(asked.target)
    if session:
        raise Failure(
            Exit.ENVIRONMENT,
            "a bisect or a measure is at work on the target",
            where=f"{asked.target}\n{session}",
            state="the target is as it was",
            next="wait until it has finished, or stop it with Ctrl-C (its own command goes on "
            f"later), then {asked.again}",
        )


def _dirty(target: Path, work: OwnWork) -> Failure:
    return _refuse(
        target,
        "the target has changes that are not committed",
        f"commit them, or put them away: git -C {_quoted(target)} stash -u",
        listed(work.edits),
    )


def _other_content(asked: Asked, scratch: Path, base_commit: str, head: str) -> Failure:
    target = asked.target
    state = read_state(lambda path: blob_at(scratch, head, path), asked.series)
    if state.foreign:
        return _refuse(
            target,
            "foreign tree: these files are in no step of the series",
            f"if they hold your work on the patches: {_export(target)}; else {asked.again}",
            listed(state.foreign),
        )
    if state.partial:
        return _refuse(
            target,
            "half-applied: the files stand at different patches of the series",
            asked.again,
            listed([f"{path}: {patch}" for path, patch in state.partial]),
        )
    verb = "is" if state.applied == 1 else "are"
    count = f"{state.applied} of {state.total} patches {verb} applied"
    expected = _tree_after(asked.series, scratch, base_commit, state.applied)
    others = _differing(scratch, expected, head)
    if others:
        return _refuse(
            target,
            f"{count}, and files outside the series were changed",
            f"keep your work on another branch, then {asked.again}",
            listed(others),
        )
    number = len(asked.wanted.patches)
    wanted = f"{number} {'was' if number == 1 else 'were'} asked for (up to {asked.wanted.last})"
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


def _another_place() -> str:
    return f"choose another place: {invocation.again('--to', 'DIR')}"


def _export(target: Path) -> str:
    return invocation.again("--from", str(target), verb="export")


def _refuse(target: Path, what: str, after: str, files: str = "") -> Failure:
    where = f"{target}\n{files}" if files else str(target)
    return Failure(
        Exit.PATCH, what, where=where, state="the target is as it was", next=after
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
