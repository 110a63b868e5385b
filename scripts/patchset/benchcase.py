"""What a benchmark says about one kernel: its cases, what is right, and the calls to time.

``kernelbench`` runs any of them; a kernel's own module (``bench_indexer``, ``bench_topk``) makes one ``Bench``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

# Inputs are rotated over more than any L2 cache holds.
L2_ROTATION_BYTES = 160 << 20

Arms = Mapping[str, Sequence[Callable]]


@dataclass(frozen=True)
class Prepared:
    """One case with its inputs on the GPU.

    ``gate`` raises AssertionError on a wrong result, and returns what it found for the record. ``arms``
    are asked for only after it: lists of calls that do the same on different buffers, "ours" among them.
    ``facts`` are asked for after the times: other figures for the record (recall).
    """

    gate: Callable[[], dict]
    arms: Callable[[], Arms]
    facts: Callable[[], dict] = dict
    rotated_sets: int = 1


@dataclass(frozen=True)
class BenchCase:
    """One shape. ``moved``: bytes that must move; ``flop``: operations of the tensor cores, 0 if none.

    ``exchanged``: bytes beside those that programs leave for each other on the card that times are predicted of.
    """

    name: str
    batch: int
    moved: int
    flop: int
    prepare: Callable[[], Prepared]
    exchanged: int = 0


@dataclass(frozen=True)
class Bench:
    """The benchmark of one kernel.

    ``groups``: cases of one group are timed in turn, so that a ratio between them is one of one run.
    ``summarize``: from the rows that were measured, named ratios by arm.
    ``compile_peers``: for some of the groups, within so many seconds, what peers would compile between the
    measurements; one that does not get done is left out.
    """

    kernel: str
    groups: Mapping[str, Sequence[BenchCase]]
    summarize: Callable[[list[dict]], dict[str, dict[str, float]]] = lambda rows: {}
    compile_peers: Callable[[Sequence[str], float], None] = lambda groups, seconds: None


def rotated_sets(moved: int) -> int:
    """How many sets of inputs keep a case's ``moved`` bytes out of the L2 cache."""
    return max(1, min(48, -(-L2_ROTATION_BYTES // max(moved, 1))))


def ratios(rows: list[dict], case: str, to: str) -> dict[str, float]:
    """Time of ``case`` over that of ``to``, for each arm that both have."""
    timings = {row["case"]: row["timings"] for row in rows}
    return {
        arm: timing["median"] / timings[to][arm]["median"]
        for arm, timing in timings.get(case, {}).items()
        if arm in timings.get(to, {})
    }
