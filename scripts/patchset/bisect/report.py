"""The answer of a bisect: the commit, the table of all that was measured, and the files of both."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from .. import atomic, gpuload, invocation
from ..errors import Exit
from ..layout import here
from ..listing import columns
from ..records import draft
from . import measuring, probes
from . import plan as plans
from .history import Commit
from .plan import TREE, Figures, Plan
from .probes import Probe

FILE = "result.json"
STEPS = "steps.json"
DRAFT = "record.json"

_WORDS = {
    measuring.BEFORE: "before",
    measuring.AFTER: "after",
    measuring.SKIP: "skipped",
}


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes:
        commits: the line between the ends. known: the figures of those that were measured, by id.
        candidates: the commit, or those that the skipped ones leave open.
    """

    plan: Plan
    probe: Probe
    directory: Path
    commits: tuple[Commit, ...]
    known: dict[str, Figures]
    candidates: tuple[Commit, ...]

    @property
    def culprit(self) -> Commit | None:
        return self.candidates[0] if len(self.candidates) == 1 else None

    @property
    def exit_code(self) -> Exit:
        """DONE for one commit, NO when skipped ones leave several open."""
        return Exit.DONE if self.culprit else Exit.NO

    def lines(self) -> list[str]:
        """A line for each measured commit, then what was found and where it is kept."""
        rows = [self._row(commit) for commit in self.commits if commit.id in self.known]
        found = f"{self.culprit.id}  {self.culprit.name}" if self.culprit else ""
        open_ones = "" if found else self._open()
        facts = [
            ("threshold", self.probe.shown(self.plan.threshold)),
            (self.plan.find, found),
            ("", self.culprit.subject if found else ""),
            ("open", open_ones),
            ("skipped", ", ".join(self._skipped())),
            ("next", "" if found else self._narrower()),
            ("figures", str(self.directory / STEPS)),
            ("draft", str(self.directory / DRAFT) if self._has_draft() else ""),
            ("record", self._recorded() if self._has_draft() else ""),
            ("again", self._again()),
            ("beside", self._beside()),
        ]
        return [*columns(rows), "", *columns(facts)]

    def as_json(self) -> dict:
        """The same for a script."""
        return {
            "find": self.plan.find,
            "probe": self.plan.probe,
            "over": self.plan.over,
            "threshold": self.plan.threshold,
            "unit": self.plan.unit,
            "culprit": self.culprit.id if self.culprit else None,
            "name": self.culprit.name if self.culprit else None,
            "candidates": [commit.id for commit in self.candidates],
            "skipped": self._skipped(),
            "beside_other_work": [commit.id for commit in self._crowded()],
            "directory": str(self.directory),
            "steps": self._steps()["steps"],
        }

    def write(self, directory: Path) -> None:
        """Write the figures, the draft and, last, the result. Raises OSError."""
        steps = _text(self._steps())
        atomic.write(directory / STEPS, steps)
        if self._has_draft():
            made = draft.from_steps(
                *(steps, STEPS, self.culprit.name, self._before().name),
                self.culprit.subject,
                self.plan.find,
            )
            atomic.write(directory / DRAFT, _text(made))
        atomic.write(directory / FILE, _text(self.as_json()))

    def _row(self, commit: Commit) -> tuple[str, ...]:
        figures = self.known[commit.id]
        value = "-" if figures.value is None else self.probe.shown(figures.value)
        word = _WORDS[measuring.exit_status(self.plan, figures)]
        notes = [f"wrong: {figures.wrong}"] if figures.wrong else []
        notes += [figures.skip] if figures.skip else []
        if figures.values and min(figures.values) < self.plan.threshold < max(
            figures.values
        ):
            notes.append("its figures lie on both sides of the threshold")
        if figures.crowd:
            notes.append(f"beside other work: {gpuload.said(figures.crowd)}")
        marks = ["<--"] if commit == self.culprit else []
        return (
            commit.id[:12],
            commit.name,
            value,
            word,
            "  ".join([*marks, *filter(None, ["; ".join(notes)])]) or " ",
        )

    def _skipped(self) -> list[str]:
        return [
            f"{commit.name} ({figures.skip or figures.wrong})"
            for commit in self.commits
            if (figures := self.known.get(commit.id))
            and measuring.exit_status(self.plan, figures) == measuring.SKIP
        ]

    def _crowded(self) -> list[Commit]:
        return [
            commit
            for commit in self.commits
            if (figures := self.known.get(commit.id)) and figures.crowd
        ]

    def _beside(self) -> str:
        """What the user must know of steps that were not alone on the GPU."""
        names = ", ".join(commit.name for commit in self._crowded())
        return (
            names
            and f"{names}: timed beside other work, so the figures may be too slow; measure "
            "again on a free GPU before you rely on them"
        )

    def _again(self) -> str:
        """The figures of a second look, with which every verdict was the same."""
        return ", ".join(
            f"{commit.name} {self.probe.shown(figures.again.value)}"
            for commit in self.commits
            if (figures := self.known.get(commit.id))
            and figures.again
            and figures.again.values
        )

    def _open(self) -> str:
        names = ", ".join(commit.name for commit in self.candidates)
        return f"one of {names}: those between can't be measured"

    def _narrower(self) -> str:
        """What can tell the open ones apart: other figures of them, or these once they can be had."""
        first = self.commits.index(self.candidates[0])
        ends = (
            "--old",
            self.commits[first - 1].name,
            "--new",
            self.candidates[-1].name,
        )
        return (
            "ask another probe about these: "
            f"{invocation.again('--probe', 'NAME', *ends, drop=('serve', 'smoke', 'bench'))}; or put "
            "right why they can't be measured, and measure anew: "
            f"{invocation.again()}"
        )

    def _has_draft(self) -> bool:
        if not self.culprit or self.plan.over != TREE:
            return False
        before = self._before()
        # A record is of figures that nothing slowed.
        slowed = {before, self.culprit}.intersection(self._crowded())
        return before is not None and not slowed

    def _recorded(self) -> str:
        """The commands that make a record of it."""
        raw = invocation.word(here().records / "raw" / f"{self.directory.name}.json")
        return (
            f"cp {shlex.quote(str(self.directory / STEPS))} {raw} && "
            f"{invocation.script('checkpoint.sh')} record --steps {raw}"
        )

    def _before(self) -> Commit | None:
        """The commit below the culprit, where it has figures."""
        index = self.commits.index(self.culprit)
        parent = self.commits[index - 1]
        figures = self.known.get(parent.id)
        return parent if figures and not figures.skip else None

    def _steps(self) -> dict:
        return steps_of(self.plan, self.probe, self.commits, self.known)


def make(
    plan: Plan,
    probe: Probe,
    directory: Path,
    commits: list[Commit],
    candidates: tuple[str, ...],
) -> Result:
    """The result of a finished search; candidates are the ids that git named."""
    return Result(
        plan=plan,
        probe=probe,
        directory=directory,
        commits=tuple(commits),
        known=known(plan, directory, commits),
        candidates=tuple(commit for commit in commits if commit.id in candidates),
    )


def known(plan: Plan, directory: Path, commits: list[Commit]) -> dict[str, Figures]:
    """The figures that a session has, by commit id."""
    found = {commit.id: plans.figures(plan, directory, commit.id) for commit in commits}
    return {id: figures for id, figures in found.items() if figures}


def steps_of(
    plan: Plan, probe: Probe, commits: tuple[Commit, ...], known: dict[str, Figures]
) -> dict:
    """The raw file of a session: what was measured, with what, and each commit's figures."""
    words = [word for word in plan.program if word.startswith(probes.WORDS)]
    return {
        "probe": plan.probe,
        # More words for the commands that measure, as bisect took them.
        **({"words": words} if words else {}),
        "what": probe.what,
        "unit": plan.unit,
        "better": plan.better,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "harness_sha256": plan.harness_sha256,
        "steps": [
            {
                "name": commit.name,
                "commit": commit.id,
                "tree": commit.tree,
                "values": known[commit.id].values,
                "wrong": known[commit.id].wrong,
                "skip": known[commit.id].skip,
                **known[commit.id].details,
                **_company(known[commit.id]),
            }
            for commit in commits
            if commit.id in known
        ],
    }


def _company(figures: Figures) -> dict:
    """What else used the GPU, a load or null for each round, and the second look: where there are any."""
    found = {"beside": figures.beside} if figures.beside else {}
    if figures.again:
        found["again"] = {"values": figures.again.values, **_company(figures.again)}
    return found


def _text(value: dict) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
