"""What `bench steps` measured: an arm's steps, the GPU's part of them, and how far its tokens agree.

The raw file's form is described in stepbench.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .agreement import Alike, Said
from .listing import counted


def steps_ms(result: Mapping, arm: str, rows: int, warm: bool = False) -> list[float]:
    """The steps of an arm in ms, a figure for each counted list; with warm the first ones too."""
    return [
        run["step_ms"]
        for run in result["runs"]
        if (run["arm"], run["rows"]) == (arm, rows) and (run["rep"] or warm)
    ]


def busy_us(result: Mapping, arm: str, rows: int) -> list[float]:
    """The GPU's own time of each profiled step of an arm."""
    return [
        step
        for profile in result["profiles"]
        if (profile["arm"], profile["rows"]) == (arm, rows)
        for step in profile["busy_us"]
    ]


def compared(result: Mapping, arm: str, against: str) -> dict[str, Alike]:
    """How alike two arms answered, by the rows of a list; without those that one was not asked."""
    answers = {
        (each["arm"], each["rows"]): [Said.of_json(said) for said in each["said"]]
        for each in result["answers"]
    }
    return {
        f"lists of {counted(range(rows), 'row')}": Alike.of(
            zip(mine, answers[against, rows], strict=True)
        )
        for (name, rows), mine in answers.items()
        if name == arm and (against, rows) in answers
    }


def summary(result: Mapping) -> Iterator[dict]:
    """Of each arm and number of rows: median step and spread, the gain over the other arm, GPU time."""
    for arm in result["arms"]:
        for rows in map(int, result["load"]["output_tokens"]):
            mine = steps_ms(result, arm["name"], rows)
            if not mine:
                continue
            below = steps_ms(result, arm["against"], rows) if arm["against"] else []
            busy = busy_us(result, arm["name"], rows)
            yield {
                "rows": rows,
                "arm": arm["name"],
                "n": len(mine),
                "step_ms": statistics.median(mine),
                "least": min(mine),
                "most": max(mine),
                "gain": (
                    statistics.median(below) / statistics.median(mine)
                    if below
                    else None
                ),
                "gpu_us": statistics.median(busy) if busy else None,
                "gpu_steps": len(busy),
            }


def lines(found: Iterable[Mapping]) -> list[Sequence[str]]:
    """The summary as rows of a table, the head first."""
    head = ("rows", "arm", "step ms", "least..most", "n", "gain", "GPU us", "steps")
    rows = [
        (
            str(each["rows"]),
            each["arm"],
            f"{each['step_ms']:.3f}",
            f"{each['least']:.3f}..{each['most']:.3f}",
            str(each["n"]),
            f"{each['gain']:.3f}" if each["gain"] else "-",
            f"{each['gpu_us']:,.1f}" if each["gpu_us"] else "-",
            str(each["gpu_steps"]),
        )
        for each in sorted(found, key=lambda each: each["rows"])
    ]
    return [head, *rows]
