"""What one bisect asks, kept in a file that the program of each step reads, and its figures.

DIRECTORY/plan.json               the question
DIRECTORY/harness/                copies of the measuring programs, outside what is measured
DIRECTORY/running-*/worktree/     the detached work tree, while a bisect runs
DIRECTORY/steps/COMMIT.ROUND.json the figures of one run, .log beside it what it printed
DIRECTORY/steps/COMMIT.again.json the same of a second look
DIRECTORY/steps/*.doubted         figures that a second look put in doubt, kept and not used
DIRECTORY/abort.json              why the last run of the search was given up
"""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import atomic, gpuload

GAIN, LOSS = "gain", "loss"
TREE, REPO = "tree", "repo"
# In the place of a round: the run of a second look.
AGAIN = "again"
_OWN_FIELDS = ("value", "correct", "why", "beside")


@dataclass(frozen=True)
class Plan:
    """A question and how it is measured. threshold is None until the ends are known."""

    over: str
    find: str
    probe: str
    unit: str
    better: str
    rounds: int
    least_change: float
    limit_s: int
    program: list[str]
    environment: dict[str, str]
    repository: str
    old: str
    new: str
    python: str
    harness_sha256: str
    threshold: float | None = None

    def write(self, directory: Path) -> None:
        """Keep it in a session's directory. Raises OSError."""
        text = json.dumps(asdict(self), indent=1) + "\n"
        atomic.write(directory / "plan.json", text.encode())


def read(directory: Path) -> Plan:
    """The plan of a session's directory. Raises OSError, ValueError, TypeError."""
    return Plan(**json.loads((directory / "plan.json").read_text()))


@dataclass(frozen=True)
class Figures:
    """What is known of one commit.

    Attributes:
        values: one figure for each round. wrong: why its results are not right, or None.
        skip: why it cannot be measured, or None. details: the rest, of the last round.
        beside: what else used the GPU in each round (gpuload.py); empty for a probe that does not look.
        again: the figures of a second look, or None.
    """

    values: list[float]
    wrong: str | None = None
    skip: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    beside: list[dict | None] = field(default_factory=list)
    again: Figures | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def crowd(self) -> dict | None:
        """The most that used the GPU beside a round, if something did."""
        busy = [load for load in self.beside if gpuload.is_busy(load)]
        return gpuload.fullest(busy) if busy else None


def keep(directory: Path, commit: str, round: int | str, found: dict) -> None:
    """Write the figures of one run. Raises OSError."""
    text = json.dumps(found, indent=1) + "\n"
    atomic.write(file(directory, commit, round), text.encode())


def kept(directory: Path, commit: str, round: int | str) -> dict | None:
    """The figures of one run, or None when it was not finished."""
    try:
        return json.loads(file(directory, commit, round).read_text())
    except (FileNotFoundError, ValueError):
        return None


def figures(plan: Plan, directory: Path, commit: str) -> Figures | None:
    """All rounds of one commit together, with the second look at it, or None when a round is missing."""
    rounds = []
    for round in range(plan.rounds):
        found = kept(directory, commit, round)
        if found is None:
            return None
        if "skip" in found:
            return Figures([], skip=found["skip"])
        rounds.append(found)
    again = kept(directory, commit, AGAIN)
    return replace(_joined(rounds), again=_joined([again]) if again else None)


def set_aside(directory: Path, commit: str) -> None:
    """Use the figures of a commit no more: it is measured anew. Raises OSError."""
    for path in (directory / "steps").glob(f"{commit}.*.json"):
        os.replace(path, path.with_suffix(".doubted"))


def log_file(directory: Path, commit: str, round: int | str) -> Path:
    """Where a run's output goes."""
    return file(directory, commit, round).with_suffix(".log")


def file(directory: Path, commit: str, round: int | str) -> Path:
    """Where the figures of one run are kept."""
    return directory / "steps" / f"{commit}.{round}.json"


def _joined(rounds: list[dict]) -> Figures:
    last = rounds[-1]
    if "skip" in last:
        return Figures([], skip=last["skip"])
    wrong = [found["why"] for found in rounds if not found["correct"]]
    return Figures(
        values=[found["value"] for found in rounds],
        wrong=wrong[0] if wrong else None,
        details={key: last[key] for key in last if key not in _OWN_FIELDS},
        # Sessions of before have rounds without it.
        beside=(
            [found.get("beside") for found in rounds]
            if any("beside" in found for found in rounds)
            else []
        ),
    )
