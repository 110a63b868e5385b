"""Render docs/roofline.md: what the kernels should take on an RTX PRO 6000, which nobody has measured.

The shapes are those that the benchmark runs, so this needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .benchcase import BenchCase
from .kernelbench import BENCHES, ROOT

PAGE = ROOT / "docs" / "roofline.md"
RAW = ROOT / "ci" / "checkpoints" / "raw"

# RTX PRO 6000 Blackwell. Bandwidth: vendor's 1,792 GB/s, of which real kernels reach 86-87 % on the RTX
# 5090 (same memory; reported, sparkinfer#863). Reported for kernels on this card: fp8 830 TFLOP/s, bf16 417.
BANDWIDTH = 0.85 * 1_792e9
FP8, BF16 = 830e12, 417e12

# Kernels whose time is one of two bounds, with their rate of multiplications and the run on the H200. The
# top-k's is neither: its rounds wait for each other. Products of f16 are taken as half as fast as of fp8.
SECTIONS = {
    "indexer": ("Indexer logits", FP8, RAW / "h200-kernels" / "h200-bench-kernel.json"),
    "hc_pre": (
        "Hyper-connection pre-linear",
        BF16,
        RAW / "h200-hc-pre" / "bench.json",
    ),
    "hc_sum": (
        "Weighted sum of the hyper-connection streams",
        BF16,
        RAW / "h200-hc-pre" / "bench.json",
    ),
    "attention": (
        "Sparse MLA attention",
        FP8 / 2,
        RAW / "h200-decode" / "bench.json",
    ),
}


def write() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render())
    print(f"written {PAGE}")


def render() -> str:
    """The page as text."""
    lines = [
        "# Predicted times on an RTX PRO 6000 (sm_120)",
        "",
        "Rendered by `scripts/bench.sh roofline`. **Predictions, not measurements**: no such card was",
        "available. A time is the larger of two bounds plus a fixed part:",
        "",
        "- bytes that must move (each input once, each output once), and partial results that programs which share",
        "  a row leave for each other (written once, read once, though most stay in the L2), at 85 % of 1,792 GB/s;",
        "- multiplications at the rate of their type (reported for this card);",
        "- launch and first loads: the least that any shape of the kernel took above its memory floor in",
        "  the run on an H200; of shapes whose programs share rows the least of these, as it has the merging too.",
        "  Clocks differ, so this part is the least certain.",
        "",
        "The last column is what the same shape took on the H200 (sm_90, 132 SMs): another card, shown only to tell",
        "where the bound lies.",
    ]
    for kernel, section in SECTIONS.items():
        lines += _section(kernel, *section)
    lines += [
        "",
        "Attention is near neither bound on the H200: what bounds it is the chain of steps of a tile, 2.3 us for 64 keys and 16 heads there,",
        "unknown on sm_120. Read its predictions as the least that can be hoped for.",
    ]
    return "\n".join(lines) + "\n"


def _section(kernel: str, title: str, rate: float, run: Path) -> list[str]:
    record = json.loads(run.read_text())
    measured = {row["case"]: row for row in record["cases"] if row["kernel"] == kernel}
    (bench,) = (bench for bench in BENCHES if bench.kernel == kernel)
    cases = [case for group in bench.groups.values() for case in group]
    fixed = _fixed_parts(cases, measured)
    words = f"{fixed[False]:.1f} us"
    if True in fixed:
        words += f", where programs share rows {fixed[True]:.1f} us"
    lines = [
        "",
        f"## {title}",
        "",
        f"Multiplications at {rate / 1e12:.0f} TFLOP/s, launch and first loads {words}"
        f" ([H200 run](../{run.relative_to(ROOT)}), copies at {record['machine']['copy_bytes_per_s'] / 1e12:.2f} TB/s).",
        "",
        "| shape | MB moved | MB of partial results | GFLOP | bytes, us | flop, us | bound by | predicted, us | H200, us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        overhead = fixed[case.exchanged > 0]
        memory = (case.moved + case.exchanged) / BANDWIDTH * 1e6
        compute = case.flop / rate * 1e6
        bound = "launch"
        if max(memory, compute) > overhead:
            bound = "bytes" if memory >= compute else "flop"
        seen = measured.get(case.name)
        h200 = f"{seen['timings']['ours']['median']:,.1f}" if seen else "none"
        lines.append(
            f"| {case.name} | {case.moved / 1e6:,.1f} | {case.exchanged / 1e6:,.1f} | {case.flop / 1e9:,.1f} | {memory:,.1f} |"
            f" {compute:,.1f} | {bound} | {max(memory, compute) + overhead:,.1f} | {h200} |"
        )
    return lines


def _fixed_parts(cases: Sequence[BenchCase], measured: Mapping) -> dict[bool, float]:
    """Least microseconds above the memory floor: of shapes whose programs share no row, and of those that do."""
    above: dict[bool, list[float]] = {}
    for case in cases:
        if row := measured.get(case.name):
            took = row["timings"]["ours"]["median"] - row["floor_us"]
            above.setdefault(case.exchanged > 0, []).append(took)
    return {shared: min(us) for shared, us in above.items()}
