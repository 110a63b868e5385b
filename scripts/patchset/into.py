"""`apply --into DIR`: one new branch in a user's own checkout, and nothing else touched."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import disk, drift, gitenv, scratchrepo
from .checkout import UNTOUCHED, Checkout, open_checkout
from .commits import Applied, commit_series
from .errors import Failure
from .listing import columns
from .result import patch_lines
from .series import Series

_NO_COMMIT = "0" * 40
_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_IDENTITY = {
    "GIT_COMMITTER_NAME": "sm120 patches",
    "GIT_COMMITTER_EMAIL": "patches@sm120.invalid",
}


@dataclass(frozen=True)
class BranchResult:
    """What apply_into() did.

    Attributes:
        state: one of: made, moved, already there, would be made, would be moved.
        branch: the branch; when what is checked out holds the series already, that branch, or
            "HEAD" for a detached one.
        checked_out: HEAD holds the series, so there is nothing to switch to.
        previous: where a moved branch pointed before.
        applied: the patches as commits; empty when HEAD holds them.
    """

    directory: str
    layout: str
    state: str
    branch: str
    base: str
    tip: str
    applied: tuple[Applied, ...]
    previous: str | None = None
    checked_out: bool = False

    def as_json(self) -> dict:
        """The same facts for a script."""
        facts = {key: value for key, value in vars(self).items() if key != "applied"}
        return {
            "source": "into",
            **facts,
            "patches": [
                {
                    "number": each.patch.number,
                    "name": each.patch.name,
                    "commit": each.commit,
                    "tree": each.tree,
                    "files": len(each.patch.changes),
                    "added": each.patch.added,
                    "removed": each.patch.removed,
                }
                for each in self.applied
            ],
        }

    def lines(self) -> list[str]:
        """One aligned line per patch, then the branch and what to do next."""
        switch = f"git -C {shlex.quote(self.directory)} switch {self.branch}"
        planned = self.state.startswith("would")
        facts = [
            ("checkout", self.directory),
            ("branch", f"{self.branch}: {self.state}"),
            (
                "was",
                (
                    f"{self.previous} (git branch NAME {self.previous[:12]} keeps it)"
                    if self.previous
                    else ""
                ),
            ),
            ("base", self.base),
            ("tip", self.tip),
            ("note", _NOTE if self.applied else ""),
            ("next", "" if planned or self.checked_out else switch),
        ]
        return [*patch_lines(self.applied), *columns(facts)]


_NOTE = (
    "commit ids depend on your HEAD; the patched files are the series' own, by blob id"
)


def apply_into(
    series: Series,
    directory: Path,
    *,
    dry_run: bool = False,
    force: bool = False,
    upto: str | None = None,
) -> BranchResult:
    """Makes the branch `sm120/<version>` in a checkout: the series on top of its HEAD.

    HEAD, the current branch, index, files and stash are not touched; the commits are made in a
    scratch index, and the branch appears last, in one step. Arguments: force moves a branch of
    that name which holds something else; upto cuts the series right after one patch; dry_run
    writes nothing, not even objects. Raises Failure(PATCH) for a checkout that is dirty, busy,
    of another version or not the pin's, and Failure(ENVIRONMENT) when it can't be written.
    """
    wanted = series.upto(upto) if upto else series
    checkout = open_checkout(Path(os.path.abspath(directory)))
    with _git_errors(checkout):
        checkout.require_idle()
        checkout.require_clean(wanted)
        checkout.require_version(series.pin)
        state = checkout.state(series, checkout.head)
        in_place = state.kind in ("applied", "partly")
        if in_place and state.applied == len(wanted.patches):
            return _held_by_head(checkout)
        checkout.require_pristine(state, series.pin)
        if not dry_run:
            checkout.require_own()
        drift.require(checkout.read, series, wanted)
        return _Branch(checkout, series).put(wanted, dry_run, force)


class _Branch:
    """The branch of the series in one checkout."""

    def __init__(self, checkout: Checkout, series: Series):
        self.checkout = checkout
        self.series = series
        self.name = f"sm120/{series.pin.version}"
        self.ref = f"refs/heads/{self.name}"

    def put(self, wanted: Series, dry_run: bool, force: bool) -> BranchResult:
        old = self._tip()
        if old is None:
            self._require_free_name()
        applied = self._commit(wanted, dry_run)
        if old and self._tree(old) == applied[-1].tree:
            return self._result("already there", applied, tip=old)
        if old:
            if not force:
                raise self._exists(old)
            self._require_not_checked_out()
        if not dry_run and not self._point(applied[-1].commit, old):
            return self._result("already there", applied)
        would = "would be " if dry_run else ""
        return self._result(
            f"{would}{'moved' if old else 'made'}", applied, previous=old
        )

    def _tip(self) -> str | None:
        command = ["rev-parse", "--verify", "--quiet", f"{self.ref}^{{commit}}"]
        try:
            return gitenv.text(self.checkout.top, *command)
        except gitenv.GitCommandError:
            return None

    def _tree(self, commit: str) -> str:
        return gitenv.text(self.checkout.top, "rev-parse", f"{commit}^{{tree}}")

    def _commit(self, wanted: Series, dry_run: bool) -> tuple[Applied, ...]:
        head, prefix = self.checkout.head, self.checkout.strip_prefix
        with contextlib.ExitStack() as stack:
            repo = self.checkout.top
            if dry_run:
                repo = stack.enter_context(scratchrepo.borrowing(repo))
            return tuple(commit_series(repo, head, wanted, prefix))

    def _point(self, commit: str, old: str | None) -> bool:
        """Makes or moves the branch. False when another apply has just put it there."""
        command = ["update-ref", "-m", "patchset: apply --into", self.ref]
        try:
            with _uninterrupted():
                gitenv.run(
                    self.checkout.top,
                    *command,
                    commit,
                    old or _NO_COMMIT,
                    env=_IDENTITY,
                )
        except gitenv.GitCommandError:
            now = self._tip()
            if now == commit:
                return False
            if now != old:
                raise self._exists(now) from None
            raise
        return True

    def _require_free_name(self) -> None:
        command = ["for-each-ref", "--format=%(refname:short)"]
        family = self.name.partition("/")[0]
        refs = gitenv.text(self.checkout.top, *command, f"refs/heads/{family}")
        for name in refs.splitlines():
            if name == family or name.startswith(f"{self.name}/"):
                raise self.checkout.refusal(
                    f"the branch {name!r} is in the way of a branch {self.name!r}",
                    next=f"rename it: git -C {self.checkout.quoted} branch -m {name} NEW-NAME",
                )

    def _exists(self, tip: str) -> Failure:
        state = self.checkout.state(self.series, tip)
        holds = {
            "foreign": "files that no step of the series has",
            "half-applied": "the series half applied",
        }.get(state.kind, f"{state.applied} of {state.total} patches")
        subject = gitenv.text(self.checkout.top, "log", "-1", "--format=%h %s", tip)
        return self.checkout.refusal(
            f"the branch {self.name} exists already, with another content",
            f"it holds {holds}; its tip is {subject}",
            next=f"keep it under another name: git -C {self.checkout.quoted} branch -m "
            f"{self.name} NEW-NAME, or move it with --force",
        )

    def _require_not_checked_out(self) -> None:
        shown = gitenv.text(self.checkout.top, "worktree", "list", "--porcelain")
        for block in shown.split("\n\n"):
            lines = block.split("\n")
            if f"branch {self.ref}" in lines:
                place = lines[0].removeprefix("worktree ")
                raise self.checkout.refusal(
                    f"the branch {self.name} is checked out, so it can't be moved",
                    f"checked out in {place}",
                    next=f"git -C {shlex.quote(place)} switch --detach "
                    f"{self.series.pin.tag}, then run the same command again",
                )

    def _result(
        self,
        state: str,
        applied: tuple[Applied, ...],
        *,
        tip: str | None = None,
        previous: str | None = None,
    ) -> BranchResult:
        return BranchResult(
            directory=str(self.checkout.top),
            layout=_layout(self.checkout),
            state=state,
            branch=self.name,
            base=self.checkout.head,
            tip=tip or applied[-1].commit,
            applied=applied,
            previous=previous,
        )


def _held_by_head(checkout: Checkout) -> BranchResult:
    return BranchResult(
        directory=str(checkout.top),
        layout=_layout(checkout),
        state="already there",
        branch=checkout.branch or "HEAD",
        checked_out=True,
        base=checkout.head,
        tip=checkout.head,
        applied=(),
    )


def _layout(checkout: Checkout) -> str:
    return "sglang/" if checkout.strip_prefix else "python/sglang/"


@contextlib.contextmanager
def _git_errors(checkout: Checkout) -> Iterator[None]:
    another = (
        f"run the same command as the owner of {checkout.quoted}, or patch a copy of it"
    )
    with disk.errors(str(checkout.top), UNTOUCHED, another):
        yield


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: git, ended in the middle of this, could leave a lock in the repository."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
