"""Two records side by side, where they measured the same thing on the same machine."""

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
    """The pairs of two records; empty when they have none."""
    return [
        pair
        for one in first["measurements"]
        for other in second["measurements"]
        for pair in _pairs(one, other)
    ]


def _pairs(one: Mapping, other: Mapping) -> Iterator[Pair]:
    keys = ("reader", "workload", "machine")
    if any(one[key] != other[key] for key in keys):
        return
    left, right = one["result"], other["result"]
    if left["unit"] != right["unit"]:
        return
    if "candidate" in left and "candidate" in right:
        yield _pair(
            one["workload"]["id"],
            left,
            left["candidate"]["median"],
            right["candidate"]["median"],
        )
    elif "figures" in left and "figures" in right:
        for load, value in left["figures"].items():
            against = right["figures"].get(load)
            if value is not None and against is not None:
                yield _pair(f"{one['workload']['id']}, {load}", left, value, against)


def _pair(what: str, result: Mapping, first: float, second: float) -> Pair:
    ratio = second / first if result["better"] == "higher" else first / second
    return Pair(what, result["unit"], first, second, ratio)
