"""Figures of a record: an arm's median, least and most over n runs, and the gain of one over another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


class Unreadable(ValueError):
    """The raw files do not have what is selected."""


def one(rows: Sequence[Mapping], key: str, value: str) -> Mapping:
    """The only row that has this value there. Raises Unreadable."""
    found = [row for row in rows if row[key] == value]
    if len(found) != 1:
        raise Unreadable(f"{len(found)} entries with {key} {value!r} in the raw file")
    return found[0]


def arm(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of an arm's values."""
    return {
        "median": rounded(statistics.median(values)),
        "min": rounded(min(values)),
        "max": rounded(max(values)),
        "n": len(values),
    }


def timed(timing: Mapping) -> dict[str, float]:
    """The same of a timing that was summed up before."""
    return {
        "median": rounded(timing["median"]),
        "min": rounded(timing["low"]),
        "max": rounded(timing["high"]),
        "n": timing["samples"],
    }


def result(unit: str, better: str, candidate: dict, parent: dict | None) -> dict:
    """Both arms and the gain over the parent, above 1 where the candidate is better."""
    gain = least = most = None
    if parent:
        ratios = [
            parent[one] / candidate[other]
            for one, other in (("median", "median"), ("min", "max"), ("max", "min"))
        ]
        if better == "higher":
            ratios = [
                candidate[one] / parent[other]
                for one, other in (("median", "median"), ("min", "max"), ("max", "min"))
            ]
        gain, least, most = map(rounded, ratios)
    return {
        "unit": unit,
        "better": better,
        "candidate": candidate,
        "parent": parent,
        "gain": gain,
        "gain_min": least,
        "gain_max": most,
    }


def rounded(value: float) -> float:
    """Six digits: what a raw file repeats exactly."""
    return float(f"{value:.6g}")
