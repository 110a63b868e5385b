"""The tables of docs/ladder.md about the ladder of real servers, made from the raw files of `bench.sh steps`."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from patchset import stepsummary

ROOT = Path(__file__).resolve().parents[2]
RAW = ROOT / "ci/checkpoints/raw/server-h200-steps"
ROWS = (1, 16, 64)


@functools.cache
def raw(name: str) -> dict:
    """One raw file of the run."""
    return json.loads((RAW / f"{name}.json").read_text())


def steps(made: dict, arm: str, rows: int) -> list[float]:
    """The counted steps of an arm in ms."""
    return stepsummary.steps_ms(made, arm, rows)


def waits_for_the_host(arm: str) -> bool:
    """Whether this arm of four layers has the patches from 0060 on."""
    return "0060" <= arm < "stock"


def busy(made: dict, arm: str, rows: int) -> float | None:
    """The GPU's own time of a step in us, the median of all profiled ones."""
    found = stepsummary.busy_us(made, arm, rows)
    return statistics.median(found) if found else None


def table(lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first line is its head."""
    head, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return head + "|" + "---|" * head.count(" | ") + "---|\n" + "".join(rest)


def over(below: float | None, time: float | None) -> str:
    """The gain over the time below."""
    return f"{below / time:.2f}x" if below and time else ""


def ladder(*runs: dict) -> str:
    """Each patch on top of the last: a step in ms and tokens a second, as timed and by the GPU's own time.

    A run begins with the last arm of the one before it, which is shown of that one.
    """
    head = [f"{rows} row{'s' * (rows > 1)}" for rows in ROWS]
    own = [f"GPU, {rows}" for rows in ROWS]
    lines = [["up to", *head, "over the last, 64 rows", *own, "over the last, 64 rows"]]
    below = below_own = None
    for made, name in ((made, arm["name"]) for made in runs for arm in made["arms"]):
        if "-" in name:
            continue
        medians = [statistics.median(steps(made, name, rows)) for rows in ROWS]
        own = [busy(made, name, rows) for rows in ROWS]
        if name == "0050" and made is not runs[0]:
            below, below_own = medians[2], own[2]
            continue
        lines.append(
            [
                name,
                *(
                    f"{step:.3f} ({rows / step * 1e3:,.0f})"
                    for rows, step in zip(ROWS, medians)
                ),
                over(below, medians[2]),
                *(f"{time:,.0f}" if time else "" for time in own),
                over(below_own, own[2]),
            ]
        )
        below, below_own = medians[2], own[2]
    return table(lines)


def contexts(made: dict, arms: Sequence[str]) -> str:
    """What is left of the speed at the first arm's context, by the GPU's own time and as timed."""
    lines = [
        [
            *("rows", "GPU, 8K", "128K", "1M", "left at 128K", "at 1M"),
            *("timed, 8K", "128K", "1M", "left at 128K", "at 1M"),
        ]
    ]
    for rows in ROWS:
        own = [busy(made, arm, rows) for arm in arms]
        timed = [steps(made, arm, rows) for arm in arms]
        medians = [statistics.median(times) for times in timed]
        lines.append(
            [
                str(rows),
                *(f"{time:,.0f}" for time in own),
                *(f"{own[0] / time:.1%}" for time in own[1:]),
                *(
                    f"{median:.3f} ({min(times):.3f} to {max(times):.3f})"
                    for median, times in zip(medians, timed)
                ),
                *(f"{medians[0] / time:.1%}" for time in medians[1:]),
            ]
        )
    return table(lines)


def kernels(made: dict, arm: str, rows: int) -> dict[str, float]:
    """What each kernel adds to the GPU's time of a step, in us, the median over the profiles."""
    found: dict[str, list[float]] = {}
    for profile in made["profiles"]:
        if (profile["arm"], profile["rows"]) == (arm, rows):
            for at, _, added, _ in profile["kernels"]:
                found.setdefault(made["kernel_names"][at], []).append(added)
    return {name: statistics.median(times) for name, times in found.items()}


# What a kernel works for -> words of the names of its kernels. Of upstream's torch paths only the products
# tell by their names: float32 ones are the indexer's (with xmma or gemv) and the hyper-connections'.
PARTS = {
    "attention": ("sparse_mla", "_sparse_decode"),
    "indexer's logits": ("paged_mqa_logits", "gemv2T", "xmma_gemm_f32f32"),
    "top-512": ("topk",),
    # The sum over experts of few rows is torch's.
    "experts": ("moe_", "expert_tokens", "silu_mul", "sum_functor<c10::BFloat16"),
    "hyper-connections": ("hc_", "mhc", "_weighted_sum", "simt_sgemm"),
    "other products": ("nvjet", "splitK", "cublas", "gemm", "cutlass"),
    "norms, rope, compression": ("RMSNorm", "_rope", "flash_c4", "flash_c128"),
}


def parts(name: str, arm: str, rows: int) -> dict[str, float]:
    """What each part adds to the GPU's time of a step, in us; nothing where no profile was taken."""
    left = kernels(raw(name), arm, rows)
    found = {}
    for part, words in PARTS.items():
        mine = [kernel for kernel in left if any(word in kernel for word in words)]
        found[part] = sum(left.pop(kernel) for kernel in mine)
    return found | {"rest": sum(left.values())}


def shares(rows: int) -> str:
    """The share of the GPU's time of a step by kernel, of each patch at both contexts."""
    lines = [["up to", "at", *PARTS, "rest", "sum, us"]]
    for arm in (each["name"] for each in raw("128k")["arms"]):
        for name, context in (("8k", "8K"), ("upper", "8K"), ("128k", "128K")):
            times = parts(name, arm, rows)
            whole = sum(times.values())
            here = any(arm == each["name"] for each in raw(name)["arms"])
            # 0050 is in both runs at 8K.
            if whole and here and "-" not in arm and (name, arm) != ("upper", "0050"):
                cells = (f"{time / whole:.1%}" for time in times.values())
                lines.append([arm, context, *cells, f"{whole:,.0f}"])
    return table(lines)


SERIES = ("0090-8k", "0090", "0090-1m")
WHOLE = ("0090-8k", "0090-128k", "0090-1m")
LAYERS = (4, 43)


def constants() -> list[tuple[list[float], list[float]]]:
    """The GPU's own time once a step and of a layer at three contexts, as if layers were alike, by rows."""
    found = []
    for rows in ROWS:
        few = [busy(raw("128k"), arm, rows) for arm in SERIES]
        many = [busy(raw("43"), arm, rows) for arm in WHOLE]
        layer = [(m - f) / (LAYERS[1] - LAYERS[0]) for f, m in zip(few, many)]
        found.append(([f - LAYERS[0] * each for f, each in zip(few, layer)], layer))
    return found


def constant() -> str:
    """The same as a table."""
    head = ["once a step, 8K", "128K", "1M", "a layer, 8K", "128K", "1M"]
    lines = [["rows", *head]]
    for rows, (once, layer) in zip(ROWS, constants()):
        cells = (*(f"{each:.0f}" for each in once), *(f"{each:.1f}" for each in layer))
        lines.append([str(rows), *cells])
    return table(lines)


def tables() -> dict[str, str]:
    """Every table by the words that stand before it in docs/ladder.md."""
    at_128k, lower, upper, whole = map(raw, ("128k", "8k", "upper", "43"))
    return {
        "Each patch on top of the last at 128K": ladder(at_128k),
        "Each patch on top of the last at 8K": ladder(lower, upper),
        "Share of the GPU's time of a step at 64 rows": shares(64),
        "The same at one row": shares(1),
        "What it costs 43 layers": contexts(whole, WHOLE),
        "What the context costs four layers": contexts(at_128k, SERIES),
        "What is paid once a step": constant(),
    }
