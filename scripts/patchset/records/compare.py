"""Two records side by side, where they measured the same thing on the same machine, with the same flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """One measurement of each record that can be compared: what, unit, both values, and the ratio,
    above 1 where the second is better."""

    what: str
    unit: str
    first: float
    second: float
    ratio: float


def compared(first: Mapping, second: Mapping) -> list[Pair]:
    """The pairs of two records, each once; empty when they have none."""
    pairs = (
        pair
        for one in first["measurements"]
        for other in second["measurements"]
        for pair in _pairs(one, other)
    )
    # An arm that is compared with two others has two measurements.
    return list(dict.fromkeys(pairs))


def _pairs(one: Mapping, other: Mapping) -> Iterator[Pair]:
    keys = ("reader", "workload", "machine")
    if any(one[key] != other[key] for key in keys) or _other_paths(one, other):
        return
    left, right = one["result"], other["result"]
    if left["unit"] != right["unit"]:
        return
    what = f"{one['workload']['id']}{_arms(one, other)}"
    if "candidate" in left and "candidate" in right:
        values = left["candidate"]["median"], right["candidate"]["median"]
        yield _pair(what, left, *values)
    elif "figures" in left and "figures" in right:
        for load, value in left["figures"].items():
            against = right["figures"].get(load)
            if value is not None and against is not None:
                yield _pair(f"{what}, {load}", left, value, against)


def _other_paths(one: Mapping, other: Mapping) -> bool:
    """Whether a flag that both know took this series' path in one of them alone: then more than the
    patches between them tells them apart."""
    paths = [_ours(each["flags"] or {}) for each in (one, other)]
    known = paths[0].keys() & paths[1].keys()
    return any(paths[0][flag] != paths[1][flag] for flag in known)


def _ours(flags: Mapping) -> dict[str, bool]:
    return {
        flag: taken["ours"]
        for flag, taken in flags.items()
        if isinstance(taken, Mapping) and taken["ours"] is not None
    }


def _arms(one: Mapping, other: Mapping) -> str:
    """What each figure is of, where the workload alone does not say it."""
    arms = [each["select"]["arm"] for each in (one, other) if "arm" in each["select"]]
    files = [{run["file"] for run in each["runs"]} for each in (one, other)]
    told = f": {' / '.join(dict.fromkeys(arms))}" if arms else ""
    return told if files[0] == files[1] else f"{told}, in two runs"


def _pair(what: str, result: Mapping, first: float, second: float) -> Pair:
    ratio = second / first if result["better"] == "higher" else first / second
    return Pair(what, result["unit"], first, second, ratio)
