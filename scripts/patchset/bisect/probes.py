"""The figures that a bisect can look for, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Callable

from ..errors import Exit, Failure

LOWER, HIGHER = "lower", "higher"
# How the words begin that a measuring program is given for the commands it runs.
WORDS = ("--serve=", "--smoke=", "--bench=")


@dataclass(frozen=True)
class Probe:
    """A program that measures one tree, and how its figure is read.

    Attributes:
        program: the arguments of the measuring Python. environment: what it is given besides.
        better: LOWER or HIGHER. what: the figure, in words. unit: behind the number.
        rounds: runs of the program for each commit; 1 where the figure is exact.
        least_change: the least difference between two ends, as a share, that is looked for.
        limit_s: a run that takes longer hangs. workload: WORKLOAD[@C] of ci/workload.toml, or "".
        needs: the modules that the Python must have, and "CUDA" for a GPU of torch's.
        timed: whether the figure depends on what else the machine does.
    """

    name: str
    what: str
    unit: str
    better: str
    program: tuple[str, ...]
    rounds: int
    least_change: float
    limit_s: int
    environment: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    needs: tuple[str, ...] = ()
    timed: bool = False

    def shown(self, value: float) -> str:
        """A figure with its unit."""
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{number}{'' if self.unit == 'x' else ' '}{self.unit}"

    def words_of(self, command: str) -> str:
        """The words that its program is given for one of the commands that it runs."""
        option = f"--{command}="
        found = (word for word in self.program if word.startswith(option))
        return next(found, option).removeprefix(option)


def _work(which: str, words: Mapping[str, str]) -> Probe | None:
    if which != "indexer":
        return None
    return Probe(
        name="work:indexer",
        what="work of the indexer, context 256K over 8K, texts of 512 tokens",
        unit="x",
        better=LOWER,
        program=("-m", "patchset.probe.work_indexer"),
        needs=("torch", "triton"),
        rounds=1,
        least_change=0.01,
        limit_s=600,
        environment={"TRITON_INTERPRET": "1"},
    )


def _kernel(which: str, words: Mapping[str, str]) -> Probe | None:
    if which not in KERNEL_CASES:
        return None
    return Probe(
        name=f"kernel:{which}",
        what=f"{KERNEL_CASES[which]}, through the tree's own entry point",
        unit="us",
        better=LOWER,
        program=("-m", "patchset.probe.kernel_time", "--case", which),
        needs=("torch", "triton", "CUDA"),
        rounds=3,
        least_change=0.05,
        limit_s=900,
        timed=True,
    )


def _serving(which: str, words: Mapping[str, str]) -> Probe | None:
    if not which:
        return None
    given = [f"--{command}={text}" for command, text in words.items()]
    return Probe(
        name=f"serving:{which}",
        what=f"tokens per second of a real server, workload {which}",
        unit="tok/s",
        better=HIGHER,
        program=("-m", "patchset.probe.serving_speed", "--case", which, *given),
        rounds=2,
        least_change=0.03,
        limit_s=7200,
        workload=which,
        timed=True,
    )


KERNEL_CASES = {
    "indexer": "indexer, 64 rows of 8,192 tokens under a context of 128K",
    "decode": "attention of a decode step, 64 rows, 16 heads, 128 + 512 keys",
    "decode-one": "attention of a decode step, 1 row, 16 heads, 128 + 512 keys",
}

_FAMILIES: dict[str, Callable[[str, Mapping[str, str]], Probe | None]] = {
    "work": _work,
    "kernel": _kernel,
    "serving": _serving,
}


def names() -> list[str]:
    """Every name that find() knows."""
    kernels = [f"kernel:{case}" for case in KERNEL_CASES]
    return ["work:indexer", *kernels, "serving:WORKLOAD[@CONCURRENCY]"]


def find(name: str, words: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """The probe of this name. Raises Failure(USAGE).

    words: more words for the commands `serve`, `smoke` and `bench`, for those that use a server.
    """
    family, _, which = name.partition(":")
    make = _FAMILIES.get(family)
    probe = make(which, words) if make else None
    if probe is None:
        raise Failure(
            Exit.USAGE,
            f"no probe {name!r}",
            state="nothing was measured",
            next=f"name one of these with --probe: {', '.join(names())}",
        )
    return probe
