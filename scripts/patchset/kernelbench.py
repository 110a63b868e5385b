"""Time kernels against what they replace, on the GPU of this machine: choose, gate, time, print, keep.

A case whose result is wrong gets no time: the gate comes first. What a case is, what is right and which
calls are timed stands in one module per kernel. Needs torch and triton.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
import triton  # noqa: E402

from . import (  # noqa: E402
    atomic,
    bench_decode,
    bench_hc_pre,
    bench_indexer,
    bench_metadata,
    bench_topk,
    benchnames,
    gputime,
    peers,
)
from .benchcase import Bench, BenchCase, Prepared  # noqa: E402
from .errors import Exit, Failure  # noqa: E402

BENCHES = (
    bench_indexer.BENCH,
    bench_metadata.BENCH,
    bench_topk.BENCH,
    bench_decode.BENCH,
    bench_hc_pre.LINEAR,
    bench_hc_pre.SUM,
)
SOURCES = (".py", ".cu", ".cuh")


def run(
    chosen: Optional[list[str]],
    out: Optional[Path],
    samples: int,
    without: Sequence[str] = (),
    peer_seconds: float = 120,
) -> int:
    """Time the chosen groups or kernels (None: all) and return the exit code.

    The table goes to stdout, the raw figures to ``out``, group by group: of a run that is cut off, ``out`` has what
    was measured and names the groups left. A wrong result is exit code 1. ``without`` names peers that are not
    asked; one whose kernels take longer than ``peer_seconds`` to compile is left out as well.
    """
    groups = choose(chosen, BENCHES)
    if not torch.cuda.is_available():
        raise Failure(
            Exit.ENVIRONMENT,
            f"torch {torch.__version__} sees no CUDA GPU",
            where=sys.executable,
            state="nothing was measured",
            next="on a GPU host: PYTHON=/path/to/python scripts/bench.sh kernel",
        )
    for name in without:
        peers.leave_out(name)
    for bench in {bench.kernel: bench for bench, _ in groups}.values():
        mine = [group for each, group in groups if each is bench]
        bench.compile_peers(mine, peer_seconds)
    left = [group for _, group in groups]
    record = {"machine": machine_facts(), "left": left, "cases": [], "ratios": {}}
    _warn_if_not_sm120(record["machine"])
    for bench, group in groups:
        rows = measure(
            bench.groups[group], samples, record["machine"]["copy_bytes_per_s"]
        )
        record["cases"] += [
            {"kernel": bench.kernel, "group": group, **row} for row in rows
        ]
        left.remove(group)
        print("\n".join(line(row) for row in rows), flush=True)
        _keep(record, out)
        torch.cuda.empty_cache()
    for kernel, bench in {bench.kernel: bench for bench, _ in groups}.items():
        record["ratios"][kernel] = _summary(bench, record["cases"])
    _keep(record, out)
    if out:
        print(f"raw   {out}", file=sys.stderr)
    right = all(row["correct"] for row in record["cases"])
    return int(Exit.DONE if right else Exit.NO)


def _keep(record: dict, out: Optional[Path]) -> None:
    if not out:
        return
    try:
        atomic.write(out, f"{json.dumps(record, indent=1)}\n".encode())
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            "the figures can't be written",
            where=f"{out}: {error.strerror or error}",
            state="the table has what was measured until now, and a file that was written is whole",
            next="make room, or name another --out, then measure the groups again that the table lacks",
        ) from None


def choose(
    chosen: Optional[list[str]], benches: Sequence[Bench]
) -> list[tuple[Bench, str]]:
    """The (benchmark, group) pairs that names of groups or of kernels stand for, each once."""
    known = {bench.kernel: [(bench, g) for g in bench.groups] for bench in benches}
    known |= {g: [(bench, g)] for bench in benches for g in bench.groups}
    names = [bench.kernel for bench in benches] if chosen is None else chosen
    benchnames.require_known(names, {b.kernel: tuple(b.groups) for b in benches})
    pairs = [pair for name in names for pair in known[name]]
    return list(
        {(bench.kernel, group): (bench, group) for bench, group in pairs}.values()
    )


def machine_facts() -> dict:
    """What a figure depends on: GPU, driver, software, kernel sources, copy bandwidth of this run."""
    properties = torch.cuda.get_device_properties(0)
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version",
        "--format=csv,noheader",
        "-i",
        "0",
    ]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "driver": driver or None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kernels_sha256": source_hashes(ROOT / "kernels"),
        "copy_bytes_per_s": gputime.copy_bandwidth(),
    }


def source_hashes(folder: Path) -> dict[str, str]:
    """sha256 of each kernel source, Python and CUDA."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.suffix in SOURCES
    }


def measure(cases: Sequence[BenchCase], samples: int, bandwidth: float) -> list[dict]:
    """Gate each case of a group, then time all their arms in turn."""
    rows, arms, facts = [], {}, {}
    for case in cases:
        prepared = case.prepare()
        row = _gated(case, prepared, bandwidth)
        rows.append(row)
        if row["correct"]:
            for arm, calls in prepared.arms().items():
                arms[case.name, arm] = calls
            facts[case.name] = prepared.facts
    for (name, arm), timing in gputime.time_arms(arms, samples).items():
        (row,) = (row for row in rows if row["case"] == name)
        row["timings"][arm] = asdict(timing)
    for row in rows:
        row["facts"] |= facts.get(row["case"], dict)()
    return rows


def _gated(case: BenchCase, prepared: Prepared, bandwidth: float) -> dict:
    row = {
        "case": case.name,
        "batch": case.batch,
        "bytes": case.moved,
        "flop": case.flop,
        "floor_us": case.moved / bandwidth * 1e6,
        "rotated_sets": prepared.rotated_sets,
        "correct": True,
        "facts": {},
        "timings": {},
    }
    try:
        row["facts"] = prepared.gate()
    except AssertionError as wrong:
        row |= {"correct": False, "why": str(wrong)}
    return row


def line(row: dict) -> str:
    """A row of the table. ``(2.00x)`` beside an arm: it takes twice our time."""
    if not row["correct"]:
        return f"{row['case']:<34} WRONG, not timed: {row['why']}"
    medians = {name: timing["median"] for name, timing in row["timings"].items()}
    ours = medians.pop("ours")
    flops = f" {row['flop'] / ours / 1e6:>4.0f} TFLOP/s" if row["flop"] else ""
    others = "".join(
        f"  {name} {us:,.2f} ({us / ours:,.2f}x)" for name, us in medians.items()
    )
    facts = "".join(f"  {name} {_short(fact)}" for name, fact in row["facts"].items())
    return (
        f"{row['case']:<34} floor {row['floor_us']:>7.2f}  ours {ours:>8.2f} us"
        f" {row['bytes'] / ours / 1e3:>5.0f} GB/s{flops} {row['floor_us'] / ours:>4.0%} of floor"
        f"{others}{facts}"
    )


def _short(fact) -> str:
    if isinstance(fact, dict):
        return " ".join(f"{name} {_short(value)}" for name, value in fact.items())
    return f"{fact:.3g}" if isinstance(fact, float) else str(fact)


def _summary(bench: Bench, rows: list[dict]) -> dict:
    mine = [row for row in rows if row["kernel"] == bench.kernel]
    summary = {what: by_arm for what, by_arm in bench.summarize(mine).items() if by_arm}
    for what, by_arm in summary.items():
        arms = ", ".join(f"{arm} {ratio:,.3f}" for arm, ratio in by_arm.items())
        print(f"{bench.kernel}: {what}: {arms}")
    return summary


def _warn_if_not_sm120(machine: dict) -> None:
    if not machine["capability"].startswith("12."):
        print(
            f"note: {machine['gpu']} has compute capability {machine['capability']}: read ratios between"
            " arms of this run, never as figures of an sm_120 card",
            file=sys.stderr,
        )
