"""A bisect from the question to the answer, in a directory where a stopped one is taken up again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .. import base, disk, gitenv, invocation, lock, serversettings, wheel, workload
from ..errors import Exit, Failure
from ..layout import Layout
from ..pin import load_pin
from . import ends as the_ends
from . import harness, history, interpreter, measuring, report, search
from . import second_look, worktree
from . import plan as plans
from .history import Commit
from .plan import REPO, TREE, Plan
from .probes import Probe
from .report import Result

_STOCK = (
    "sglang/srt/layers/attention/dsv4/indexer.py",
    "sglang/srt/layers/attention/flash_mla_sm120.py",
)


@dataclass(frozen=True)
class Question:
    """What the user asks.

    Attributes: repository is the patched tree, or this repository with over=REPO. old, new: the
    ends, ids. python measures. wheel: the pinned wheel, or None for the cached one.
    """

    over: str
    find: str
    probe: Probe
    repository: Path
    old: str
    new: str
    python: str
    wheel: Path | None = None

    @property
    def key(self) -> str:
        """The name of its session: of another Python, or program, it is another one."""
        name = self.probe.name.replace(":", "-")
        words = json.dumps([self.python, *self.probe.program])
        measures = hashlib.sha256(words.encode()).hexdigest()[:8]
        ends = f"{self.old[:12]}-{self.new[:12]}"
        return f"{self.over}-{self.find}-{name}-{ends}-{measures}"


def run(question: Question, layout: Layout, place: Path) -> Result:
    """Find the commit. place is the directory of all sessions.

    A session of the same question that was stopped is gone on with: its figures are not measured
    again. Raises Failure when there is nothing to find, an end or the probe fails, or another
    bisect of this question is at work.
    """
    commits = history.line(question.repository, question.old, question.new)
    elsewhere = f"choose another place: {invocation.again('--out', 'DIR')}"
    with _session(question, layout, place, elsewhere) as (plan, directory, running):
        return _search(plan, question, directory, running, commits)


def measure(
    question: Question, layout: Layout, place: Path, elsewhere: str
) -> tuple[dict, Path]:
    """Measure every commit of the line, without looking for any: the raw file of it, and the
    directory of the session, which keeps the figures. elsewhere: what to do when place can't be
    written.

    Resumed and refused as run() is. A commit that can't be measured is in it, with the reason.
    """
    commits = history.line(question.repository, question.old, question.new)
    with _session(question, layout, place, elsewhere) as (plan, directory, running):
        with _aborts(directory):
            for round in range(plan.rounds):
                for commit in commits if round % 2 == 0 else reversed(commits):
                    worktree.check_out(running, commit.id)
                    found = measuring.run_round(
                        plan, directory, running, commit.id, round
                    )
                    value = found.get("skip") or question.probe.shown(found["value"])
                    measuring.tell(f"{commit.id[:12]}  {commit.name}  {value}")
        known = report.known(plan, directory, commits)
        raw = report.steps_of(plan, question.probe, tuple(commits), known)
        return raw, directory


@contextlib.contextmanager
def _session(
    question: Question, layout: Layout, place: Path, elsewhere: str
) -> Iterator[tuple[Plan, Path, Path]]:
    """The plan, the session's directory and that of the work tree, for the time of the work."""
    if question.probe.workload:
        # Before a server of any commit is loaded for nothing.
        workload.chosen(layout.root / "ci" / "workload.toml", question.probe.workload)
        _require_model(question.probe)
    interpreter.require(question.python, question.probe.needs)
    complete, directory = _place(place, question)
    if complete:
        measuring.tell(f"complete   {complete}; measuring afresh in {directory}")
    with _errors(directory, elsewhere), _alone(directory):
        plan = _plan(question, layout, directory)
        with worktree.detached(question.repository, directory) as running:
            # Here too, as the room that is lacking is back once the work tree is gone.
            with _errors(directory, elsewhere), _connected(question, running):
                if question.over == REPO:
                    pin = load_pin(layout.patches)
                    file = wheel.obtain(pin, question.wheel)
                    worktree.import_base(running, file, pin)
                yield plan, directory, running


def _require_model(probe: Probe) -> None:
    words = shlex.split(probe.words_of("serve"))
    if "--model-path" in serversettings.options(words):
        return serversettings.require_model(words)
    named = shlex.join([*words, "--model-path", "DIR_OR_NAME"])
    command = invocation.again("--probe", probe.name, "--serve", named, verb="bisect")
    raise Failure(
        Exit.USAGE,
        f"{probe.name} starts a server, and no model is named for it",
        state="nothing was measured",
        next=f"name one: {command}",
    )


def _search(
    plan: Plan,
    question: Question,
    directory: Path,
    running: Path,
    commits: list[Commit],
) -> Result:
    measuring.tell(f"figure     {question.probe.what}")
    ends = (f"{end.id[:12]} {end.label}" for end in (commits[0], commits[-1]))
    measuring.tell(f"ends       {' and '.join(ends)}")
    with _aborts(directory):
        ends = the_ends.measure(plan, directory, running)
    plan = replace(plan, threshold=the_ends.threshold(plan, ends))
    plan.write(directory)
    shown = question.probe.shown
    for name, figures in (("old end", ends.old), ("new end", ends.new)):
        measuring.tell(f"{name:<10} {shown(figures.value)}")
    measuring.tell(f"threshold  {shown(plan.threshold)}; {len(commits) - 2} between")
    abort = directory / "abort.json"
    abort.unlink(missing_ok=True)
    found = search.search(plan, directory, running, commits)
    if not found.candidates:
        raise _given_up(directory, abort)
    with _aborts(directory):
        second_look.take(plan, question.probe, directory, running, commits)
    result = report.make(plan, question.probe, directory, commits, found.candidates)
    result.write(directory)
    return result


def _plan(question: Question, layout: Layout, directory: Path) -> Plan:
    """The plan of a session: that of a stopped one, or a new one with a new harness."""
    old = _stopped(question, directory)
    if old:
        measuring.tell(f"going on with {directory}")
        return old
    (directory / "steps").mkdir(exist_ok=True)
    for stale in (directory / "steps").iterdir():
        stale.unlink()
    digest = harness.copy(layout.root, directory, _stock(question, layout))
    probe = question.probe
    plan = Plan(
        over=question.over,
        find=question.find,
        probe=probe.name,
        unit=probe.unit,
        better=probe.better,
        rounds=probe.rounds,
        least_change=probe.least_change,
        limit_s=probe.limit_s,
        program=list(probe.program),
        environment=dict(probe.environment),
        repository=str(question.repository),
        old=question.old,
        new=question.new,
        python=question.python,
        harness_sha256=digest,
    )
    plan.write(directory)
    return plan


def _stopped(question: Question, directory: Path) -> Plan | None:
    """The plan of a session that was stopped, if its figures still hold: measured by the harness that
    lies there, with the same Python."""
    try:
        plan = plans.read(directory)
    except (OSError, ValueError, TypeError):
        return None
    same = (
        plan.python == question.python
        and plan.program == list(question.probe.program)
        and harness.digest(directory / "harness") == plan.harness_sha256
    )
    rounds = question.probe.rounds
    return replace(plan, threshold=None, rounds=rounds) if same else None


def _stock(question: Question, layout: Layout) -> dict[str, bytes]:
    """The release's own files, which results are compared with; those that it has."""
    if question.over == TREE:
        found = _stock_of_tree(question.repository)
    else:
        found = wheel.members(
            wheel.obtain(load_pin(layout.patches), question.wheel), _STOCK
        )
    return {Path(name).name: data for name, data in found.items()}


def _stock_of_tree(tree: Path) -> dict[str, bytes]:
    names = [f"python/{name}" for name in _STOCK]
    there = gitenv.text(tree, "ls-tree", "-r", "--name-only", base.REF, "--", *names)
    return {
        name: gitenv.run(tree, "show", f"{base.REF}:{name}")
        for name in there.splitlines()
    }


def _place(place: Path, question: Question) -> tuple[Path | None, Path]:
    """The last of the question's sessions that is complete, and the directory of the one to do: a
    stopped one, or a new one beside those."""
    complete, directory, number = None, place / question.key, 2
    while (directory / report.FILE).exists():
        complete, directory = directory, place / f"{question.key}-{number}"
        number += 1
    return complete, directory


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with lock.hold(directory / worktree.LOCK):
            yield
    except lock.Held:
        raise Failure(
            Exit.ENVIRONMENT,
            "this bisect is at work already",
            where=str(directory),
            state="nothing was changed",
            next="wait until it has finished, or stop it with Ctrl-C",
        ) from None


@contextlib.contextmanager
def _connected(question: Question, running: Path) -> Iterator[None]:
    """Names the cause of whatever fails once the repository is no longer there."""
    try:
        yield
    except (Failure, gitenv.GitCommandError, OSError):
        if not worktree.is_cut_off(running):
            raise
        raise Failure(
            Exit.ENVIRONMENT,
            "what is measured was replaced or removed meanwhile",
            where=str(question.repository),
            state="no commit is named; the figures that are complete are kept",
            next="once it is there again, go on with the same command: "
            f"{invocation.again()}",
        ) from None


def _errors(directory: Path, elsewhere: str) -> contextlib.AbstractContextManager[None]:
    return disk.errors(
        str(directory), "the figures that are complete are kept", elsewhere
    )


@contextlib.contextmanager
def _aborts(directory: Path) -> Iterator[None]:
    try:
        yield
    except measuring.Aborted as aborted:
        raise _failed(directory, str(aborted)) from None


def _given_up(directory: Path, abort: Path) -> Exception:
    """Why a search has no answer: a step gave up, or git itself, which then has written why."""
    try:
        what = json.loads(abort.read_text())["what"]
    except (OSError, ValueError, KeyError):
        said = (directory / search.LOG).read_bytes()
        return gitenv.GitCommandError(["git", "bisect"], None, said)
    if disk.is_full_by(what):
        return OSError(errno.ENOSPC, what, str(directory))
    return _failed(directory, what)


def _failed(directory: Path, what: str) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        "the probe failed, which says nothing about the commit",
        where=what,
        state=f"no commit is named; the figures so far are kept in {directory / 'steps'}",
        next=f"put right what it says, then go on with the same command: {invocation.again()}",
    )
