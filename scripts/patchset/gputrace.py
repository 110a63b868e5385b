"""A trace of SGLang's profiler: the GPU's own time of each decode step, by kernel."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
# The choice of the likeliest token, which ends a step.
_LAST_OF_STEP = "ArgMax"
_NAME = 160


class NoSteps(ValueError):
    """A trace that has no whole decode step."""


@dataclass(frozen=True)
class Profile:
    """Whole decode steps of one trace.

    Attributes:
        busy_us: of each step, the time in which the GPU ran something of it.
        period_us: of each step, the time from the end of the step before to its own end.
        kernels: name -> of a step, the microseconds that they ran, those of busy_us that they add (of
            what runs side by side, what began first has the time), and the calls; medians over the steps.
    """

    busy_us: tuple[float, ...]
    period_us: tuple[float, ...]
    kernels: dict[str, tuple[float, float, float]]


def read(file: Path) -> Profile:
    """The steps of a trace. Raises NoSteps; OSError, EOFError and ValueError for half a file."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file) as data:
        return steps(json.load(data)["traceEvents"])


def steps(events: Sequence[dict]) -> Profile:
    """The steps between one choice of tokens and the next. Raises NoSteps."""
    ran = sorted(
        (each for each in events if each.get("cat") in _ON_GPU and "dur" in each),
        key=lambda each: each["ts"],
    )
    ends = [at for at, each in enumerate(ran) if _LAST_OF_STEP in each["name"]]
    if len(ends) < 2:
        raise NoSteps(
            f"{len(ran)} kernels in the trace, and {len(ends)} choices of tokens, "
            "between two of which a step lies"
        )
    found = [
        (ran[before : at + 1][1:], _end(ran[before]), _end(ran[at]))
        for before, at in zip(ends, ends[1:])
    ]
    return Profile(
        tuple(round(sum(_added(step)), 2) for step, _, _ in found),
        tuple(round(end - begin, 2) for _, begin, end in found),
        _by_kernel([step for step, _, _ in found]),
    )


def _end(event: dict) -> float:
    return event["ts"] + event["dur"]


def _added(step: Sequence[dict]) -> list[float]:
    """What each kernel adds to the time in which any ran: other streams, and launches that wait for the end
    of the kernel before, run side by side."""
    added, reached = [], float("-inf")
    for each in step:
        added.append(max(0.0, _end(each) - max(reached, each["ts"])))
        reached = max(reached, _end(each))
    return added


def _by_kernel(
    found: Sequence[Sequence[dict]],
) -> dict[str, tuple[float, float, float]]:
    figures = []
    for step in found:
        ran, adds, calls = Counter(), Counter(), Counter()
        for each, added in zip(step, _added(step)):
            name = each["name"][:_NAME]
            ran[name] += each["dur"]
            adds[name] += added
            calls[name] += 1
        figures.append((ran, adds, calls))
    return {
        name: tuple(
            round(statistics.median(counter[name] for counter in each), 2)
            for each in zip(*figures)
        )
        for name in sorted(set().union(*(ran for ran, _, _ in figures)))
    }
