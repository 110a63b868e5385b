"""Time GPU work: CUDA graphs, arms interleaved, inputs rotated against the L2 cache.

Needs torch with a CUDA device; the rest of the package does not import this module.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Callable, Sequence

import torch

# Below this the host's launches show in the time: such calls are timed as a captured graph.
GRAPH_BELOW_US = 10_000.0
# Long enough that the first launch's latency and the clock's resolution do not show.
SAMPLE_US = 1000.0
# A graph costs some microseconds itself, on a busy host likely more than sixteen of the shortest calls take: one of
# few short calls holds them several times.
CALLS_IN_GRAPH = 256


@dataclass(frozen=True)
class Timing:
    """Microseconds per call over ``samples`` measurements."""

    median: float
    low: float
    high: float
    samples: int
    graph: bool


def time_arms(
    arms: dict[str, Sequence[Callable]], samples: int = 25
) -> dict[str, Timing]:
    """Time each arm, a list of calls that do the same on different buffers.

    One measurement runs all calls of an arm, once untimed (another arm ran before it, with other pages
    in the TLB), then as often as SAMPLE_US needs. Arms take turns, in alternating order, so that clocks
    and temperature drift over all alike.
    """
    runners = {name: _Runner(calls) for name, calls in arms.items()}
    seen: dict[str, list[float]] = {name: [] for name in arms}
    order = list(runners)
    for index in range(samples):
        for name in order if index % 2 == 0 else reversed(order):
            seen[name].append(runners[name].measure())
    return {
        name: Timing(
            statistics.median(us), min(us), max(us), len(us), runners[name].graph
        )
        for name, us in seen.items()
    }


def copy_bandwidth(size: int = 2**31) -> float:
    """Bytes per second of a device-to-device copy, counting bytes read and written.

    Not captured: in a graph the copy goes to the copy engines, which reach less than the SMs do.
    """
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    us = sorted(_elapsed_us(lambda: target.copy_(source), 5) / 5 for _ in range(9))
    return 2 * size / (us[4] * 1e-6)


class _Runner:
    """The calls of one arm: as a captured graph where they are short, else one after the other."""

    def __init__(self, calls: Sequence[Callable]):
        self._calls = list(calls)
        self._run = self._eager
        once = self._once()
        self.graph = once / len(calls) < GRAPH_BELOW_US
        if self.graph:
            self._run = self._capture()
            once = self._once()
            rounds = math.ceil(min(CALLS_IN_GRAPH / len(calls), SAMPLE_US / once))
            if rounds > 1:
                self._calls *= rounds
                self._run = self._capture()
                once *= rounds
        self._repeats = max(1, round(SAMPLE_US / once))

    def measure(self) -> float:
        """Microseconds of one call."""
        self._run()
        return _elapsed_us(self._run, self._repeats) / (
            self._repeats * len(self._calls)
        )

    def _once(self) -> float:
        """Microseconds of all calls, after they ran once."""
        self._run()
        return min(_elapsed_us(self._run, 1) for _ in range(3))

    def _eager(self) -> None:
        for call in self._calls:
            call()

    def _capture(self) -> Callable:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._eager()
        return graph.replay


def _elapsed_us(run: Callable, repeats: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3
