"""A second look at figures that a search rests on and that may be wrong, before a commit is named.

What else works on the GPU makes a step slow. A slow end that shows slower than it is moves the threshold so
far that its equals count as fast, and the search names a commit that changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import invocation
from ..errors import Exit, Failure
from . import ends, measuring, report, worktree
from . import plan as plans
from .history import Commit
from .plan import GAIN, Figures, Plan
from .probes import Probe

Known = Mapping[str, Figures]
_WORDS = {measuring.BEFORE: "before", measuring.AFTER: "after"}


def take(
    plan: Plan,
    probe: Probe,
    directory: Path,
    running: Path,
    commits: list[Commit],
) -> None:
    """Measure once more what is in doubt, if anything is; a second look that is kept is not repeated.

    Raises Failure(NO) when a verdict changes with it: then no commit can be named, and the figures in
    doubt are set aside, so that the same command measures those steps anew. Raises Aborted.
    """
    first = report.known(plan, directory, commits)
    doubted = doubtful(plan, probe, commits, first)
    if not doubted:
        return
    names = ", ".join(commit.name for commit in doubted)
    measuring.tell(f"once more  {names}: other work may have slowed a figure")
    for commit in doubted:
        worktree.check_out(running, commit.id)
        measuring.run_round(plan, directory, running, commit.id, plans.AGAIN)
    again = report.known(plan, directory, doubted)
    second = {**first, **{id: figures.again for id, figures in again.items()}}
    changes = changed(plan, probe, commits, first, second)
    if not changes:
        return
    rows = [_moved(plan, probe, commit, again[commit.id]) for commit in doubted]
    for commit in doubted:
        plans.set_aside(directory, commit.id)
    raise Failure(
        Exit.NO,
        "unclear: what was measured a second time changes the answer, so no commit is named",
        where="\n".join([*rows, *changes]),
        state=f"set aside in {directory / 'steps'}: {names}; all other figures are kept",
        next="once nothing else uses the GPU (nvidia-smi tells), go on with the same command, which "
        f"measures these anew: {invocation.again()}",
    )


def doubtful(
    plan: Plan, probe: Probe, commits: Sequence[Commit], known: Known
) -> list[Commit]:
    """The measured commits whose figures ask for a second look, in order.

    Those timed beside other work; and the slow end, when the fast steps differ among themselves as if
    some were its equals, and no other step shows its figure.
    """
    measured = [
        commit
        for commit in commits
        if commit.id in known and _side(plan, known[commit.id]) != measuring.SKIP
    ]
    slow = plan.old if plan.find == GAIN else plan.new
    unsure = probe.timed and _may_be_too_slow(plan, slow, measured, known)
    return [
        commit
        for commit in measured
        if known[commit.id].crowd or (unsure and commit.id == slow)
    ]


def changed(
    plan: Plan,
    probe: Probe,
    commits: Sequence[Commit],
    first: Known,
    second: Known,
) -> list[str]:
    """What is another answer with the second figures, a line for each; nothing when all verdicts hold."""
    wanting = [
        f"{commit.name}: {problem}"
        for commit in commits
        if (found := second.get(commit.id))
        and _side(plan, first[commit.id]) != measuring.SKIP
        and (problem := found.skip or found.wrong)
    ]
    if wanting:
        return wanting
    try:
        line = ends.threshold(plan, ends.Ends(second[plan.old], second[plan.new]))
    except Failure as refused:
        return [refused.what]
    moved = f"threshold {probe.shown(plan.threshold)}, then {probe.shown(line)}"
    at_line = replace(plan, threshold=line)
    others = [
        f"{commit.name}, {probe.shown(second[commit.id].value)}: {_WORDS[was]}, then {_WORDS[now]}"
        for commit in commits
        if commit.id in first
        and (was := _side(plan, first[commit.id]))
        != (now := _side(at_line, second[commit.id]))
    ]
    return [moved, *others] if others else []


def _may_be_too_slow(
    plan: Plan, slow: str, measured: Sequence[Commit], known: Known
) -> bool:
    side = _side(plan, known[slow])
    value = known[slow].value
    peers = [
        known[commit.id].value
        for commit in measured
        if commit.id != slow and _side(plan, known[commit.id]) == side
    ]
    fast = [
        known[commit.id].value
        for commit in measured
        if _side(plan, known[commit.id]) != side
    ]
    attested = any(_is_near(plan, value, peer) for peer in peers)
    return not attested and not _is_near(plan, min(fast), max(fast))


def _is_near(plan: Plan, one: float, other: float) -> bool:
    return max(one, other) <= min(one, other) * (1 + plan.least_change)


def _side(plan: Plan, figures: Figures) -> int:
    return measuring.exit_status(plan, figures)


def _moved(plan: Plan, probe: Probe, commit: Commit, figures: Figures) -> str:
    role = {plan.old: "old end ", plan.new: "new end "}.get(commit.id, "")
    first, second = _told(probe, figures), _told(probe, figures.again)
    return f"{role}{commit.name}: {first}, then {second}"


def _told(probe: Probe, figures: Figures) -> str:
    if figures.value is None:
        return "no figure"
    beside = " beside other work" if figures.crowd else ""
    return f"{probe.shown(figures.value)}{beside}"
