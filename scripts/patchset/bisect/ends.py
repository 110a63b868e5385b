"""The two ends, measured first: whether there is a change to look for, and the line between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..errors import Exit, Failure
from . import measuring, worktree
from . import plan as plans
from .plan import GAIN, LOSS, Figures, Plan


@dataclass(frozen=True)
class Ends:
    """The figures of both ends."""

    old: Figures
    new: Figures


def measure(plan: Plan, directory: Path, running: Path) -> Ends:
    """Measure both ends, in turn and in alternating order. Raises Failure where one has no figure."""
    for round in range(plan.rounds):
        order = (plan.old, plan.new) if round % 2 == 0 else (plan.new, plan.old)
        for commit in order:
            worktree.check_out(running, commit)
            measuring.run_round(plan, directory, running, commit, round)
    found = [plans.figures(plan, directory, commit) for commit in (plan.old, plan.new)]
    for name, commit, figures in zip(("old", "new"), (plan.old, plan.new), found):
        problem = figures.skip or figures.wrong
        if problem:
            raise Failure(
                Exit.NO,
                f"the {name} end can't be measured, so there is nothing to compare with",
                where=f"{commit}\n{problem}",
                state=f"its figures are kept in {directory / 'steps'}",
                next=f"choose another end: --{name} COMMIT",
            )
    return Ends(*found)


def threshold(plan: Plan, ends: Ends) -> float:
    """The geometric middle of the gap between the ends.

    Raises Failure(NO) when their figures overlap, differ too little, or differ the other way.
    """
    lower, higher = sorted((ends.old, ends.new), key=lambda figures: figures.value)
    low, high = max(lower.values), min(higher.values)
    if low * (1 + plan.least_change) > high:
        raise _refusal(
            plan,
            ends,
            f"there is no {plan.find} between the ends: their figures "
            + ("overlap" if low >= high else f"differ by {high / low - 1:.2%}"),
            f"at least {plan.least_change:.0%} is needed; choose ends further apart, or another probe",
        )
    better_is_new = (ends.new is lower) == (plan.better == "lower")
    if better_is_new != (plan.find == GAIN):
        other = LOSS if plan.find == GAIN else GAIN
        raise _refusal(
            plan,
            ends,
            f"between the ends is a {other}, not a {plan.find}",
            f"look for it: --find {other}",
        )
    return math.sqrt(low * high)


def _refusal(plan: Plan, ends: Ends, what: str, after: str) -> Failure:
    rows = [
        f"{name} {commit[:12]}: {', '.join(f'{value:.6g}' for value in figures.values)} {plan.unit}"
        for name, commit, figures in (
            ("old", plan.old, ends.old),
            ("new", plan.new, ends.new),
        )
    ]
    return Failure(
        Exit.NO,
        what,
        where="\n".join(rows),
        state="nothing was searched",
        next=after,
    )
