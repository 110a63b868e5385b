"""The patched tree in a directory of its own: built beside its place, then renamed into it."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from . import base, disk, gitenv, invocation, lock, origin, standing
from .commits import Applied, commit_series, tip
from .errors import Exit, Failure
from .result import TreeResult
from .series import Series
from .standing import Asked, Replaceable

# Running or building the tree leaves these; they are not changes of it.
_IGNORED = "__pycache__/\n*.pyc\n*.so\n*.egg-info/\nbuild/\n.venv*/\n"


@dataclass(frozen=True)
class Source:
    """Where the base comes from.

    name is "wheel" or "git"; fill makes the base commit in an empty directory and returns its id.
    """

    name: str
    fill: Callable[[Path], str]


def apply_to(
    target: Path,
    series: Series,
    wanted: Series,
    source: Source,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> TreeResult:
    """Make the patched tree at target, or find that it is there already.

    Arguments: series is the whole series, wanted the part to apply; force replaces a target that
    this tool made; dry_run does everything in a scratch directory and throws it away. Whatever
    happens, target afterwards is as it was or complete. Raises Failure(PATCH) for patches that do
    not apply and for a target that holds something else, Failure(ENVIRONMENT) for a read-only
    place, a full disk and another apply at work on the same target.
    """
    target = Path(os.path.realpath(target))
    asked = standing.Asked(target, series, wanted, source.name)
    with _disk_errors(target):
        if not dry_run:
            _sweep(target)
        found = standing.judge(asked, force)
    if isinstance(found, TreeResult):
        return found
    if dry_run:
        return _rehearse(asked, source, found)
    with _our_turn(target):
        _recover(target)
        # Another apply may have finished while we were on our way to the lock.
        found = standing.judge(asked, force)
        if isinstance(found, TreeResult):
            return found
        return _build_beside(asked, source, found)


def _rehearse(asked: Asked, source: Source, found: Replaceable) -> TreeResult:
    with tempfile.TemporaryDirectory(prefix="patchset-dry-run-") as scratch:
        with _disk_errors(scratch):
            base_commit, applied = _commit_all(Path(scratch), asked.wanted, source)
    return _result(asked, base_commit, applied, found, "would be ")


def _result(
    asked: Asked,
    base_commit: str,
    applied: tuple[Applied, ...],
    found: Replaceable,
    would: str = "",
) -> TreeResult:
    return TreeResult(
        directory=str(asked.target),
        source=asked.source,
        state=would + found.state,
        base=base_commit,
        applied=applied,
        discarded=found.work or None,
    )


def _commit_all(
    directory: Path, wanted: Series, source: Source
) -> tuple[str, tuple[Applied, ...]]:
    base_commit = source.fill(directory)
    return base_commit, tuple(commit_series(directory, base_commit, wanted))


@contextlib.contextmanager
def _our_turn(target: Path) -> Iterator[None]:
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        with _disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with lock.hold(_beside(target, "lock")):
                yield
    except lock.Held:
        raise Failure(
            Exit.ENVIRONMENT,
            "another apply is at work on the same target",
            where=str(target),
            state="nothing was changed",
            next="wait until it has finished, then run the same command again",
        ) from None
    finally:
        # Directories made on the way go again when nothing came to stand in them.
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()


def _sweep(target: Path) -> None:
    """Undo what a killed process left, unless somebody is at work or the place is read-only."""
    if _leftovers(target) or _beside(target, "lock").exists():
        with contextlib.suppress(lock.Held, OSError):
            with lock.hold(_beside(target, "lock")):
                _recover(target)


def _recover(target: Path) -> None:
    """Undo what a killed process left; the caller holds the lock."""
    old = _beside(target, "old")
    if standing.is_ours(old) and standing.is_empty(target):
        os.rename(old, target)
    for stale in _leftovers(target):
        _remove(stale)


def _leftovers(target: Path) -> list[Path]:
    pattern = f".{glob.escape(target.name)}.new-*"
    left = list(target.parent.glob(pattern))
    old = _beside(target, "old")
    return [*left, old] if standing.is_ours(old) else left


def _build_beside(asked: Asked, source: Source, found: Replaceable) -> TreeResult:
    target = asked.target
    name = f"{_beside(target, 'new').name}-"
    new = Path(tempfile.mkdtemp(prefix=name, dir=target.parent))
    try:
        # Inside the clean-up, which makes room again: git does not always say that it had none.
        with _disk_errors(target):
            base_commit, applied = _commit_all(new, asked.wanted, source)
            _finish(new, asked, base_commit, applied)
            new.chmod(0o777 & ~_umask())
            _swap(new, target)
    finally:
        _remove(new)
    return _result(asked, base_commit, applied, found)


def _finish(
    new: Path,
    asked: Asked,
    base_commit: str,
    applied: tuple[Applied, ...],
) -> None:
    """Refs, marks and files of a repository that has all its commits."""
    refs = {
        base.REF: base_commit,
        f"refs/heads/{base.BRANCH}": tip(base_commit, applied),
        f"refs/tags/{base.STOCK_TAG}": base_commit,
    }
    for each in applied:
        if each.patch.evidence:
            refs[f"refs/tags/checkpoint/{each.patch.evidence}"] = each.commit
    updates = "".join(f"update {ref} {commit}\n" for ref, commit in refs.items())
    gitenv.run(new, "update-ref", "--stdin", input=updates.encode())
    origin.write_new(new, asked.series, asked.source, tip(base_commit, applied))
    (new / ".git" / "info" / "exclude").write_text(_IGNORED)
    gitenv.run(new, "symbolic-ref", "HEAD", f"refs/heads/{base.BRANCH}")
    gitenv.run(new, "reset", "--quiet", "--hard")


def _swap(new: Path, target: Path) -> None:
    """Put new in the place of target; killed between the renames, _recover puts target back."""
    old = _beside(target, "old")
    try:
        if not standing.is_empty(target):
            os.rename(target, old)
        os.rename(new, target)
    finally:
        # Also reached by a signal, which may come right after either rename.
        if old.exists() and not target.exists():
            os.rename(old, target)
    _remove(old)


def _disk_errors(target: Path | str) -> contextlib.AbstractContextManager[None]:
    return disk.errors(
        str(target),
        "the target is as it was",
        f"choose another place: {invocation.again('--to', 'DIR')}",
    )


def _beside(target: Path, what: str) -> Path:
    return target.parent / f".{target.name}.{what}"


def _remove(directory: Path) -> None:
    # A git process of a killed run may still be writing for a moment.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
