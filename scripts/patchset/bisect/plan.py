"""What one bisect asks, kept in a file that the program of each step reads, and its figures.

DIRECTORY/plan.json               the question
DIRECTORY/harness/                copies of the measuring programs, outside what is measured
DIRECTORY/running-*/worktree/     the detached work tree, while a bisect runs
DIRECTORY/steps/COMMIT.ROUND.json the figures of one run, .log beside it what it printed
DIRECTORY/abort.json              why the last run of the search was given up
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import atomic

GAIN, LOSS = "gain", "loss"
TREE, REPO = "tree", "repo"


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
    """

    values: list[float]
    wrong: str | None = None
    skip: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None


def keep(directory: Path, commit: str, round: int, found: dict) -> None:
    """Write the figures of one run. Raises OSError."""
    text = json.dumps(found, indent=1) + "\n"
    atomic.write(_file(directory, commit, round), text.encode())


def kept(directory: Path, commit: str, round: int) -> dict | None:
    """The figures of one run, or None when it was not finished."""
    try:
        return json.loads(_file(directory, commit, round).read_text())
    except (FileNotFoundError, ValueError):
        return None


def figures(plan: Plan, directory: Path, commit: str) -> Figures | None:
    """All rounds of one commit together, or None when one is missing."""
    rounds = []
    for round in range(plan.rounds):
        found = kept(directory, commit, round)
        if found is None:
            return None
        if "skip" in found:
            return Figures([], skip=found["skip"])
        rounds.append(found)
    wrong = [found["why"] for found in rounds if not found["correct"]]
    details = {
        key: value
        for key, value in rounds[-1].items()
        if key not in ("value", "correct", "why")
    }
    return Figures(
        [found["value"] for found in rounds], wrong[0] if wrong else None, None, details
    )


def log_file(directory: Path, commit: str, round: int) -> Path:
    """Where a run's output goes."""
    return _file(directory, commit, round).with_suffix(".log")


def _file(directory: Path, commit: str, round: int) -> Path:
    return directory / "steps" / f"{commit}.{round}.json"
