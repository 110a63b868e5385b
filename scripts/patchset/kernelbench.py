"""Time kernels against what they replace, on the GPU of this machine.

A case whose result is wrong gets no time: the gate comes first. Needs torch and triton.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
import triton  # noqa: E402

from cases import IndexerCase, decode_case, make_indexer  # noqa: E402
from kernels import indexer  # noqa: E402
from kernels.indexer_ref import paged_mqa_logits_ref  # noqa: E402
from numeric import assert_close  # noqa: E402
from stock import call_stock, indexer_functions  # noqa: E402

from . import gputime, peers  # noqa: E402
from .errors import Exit, Failure  # noqa: E402

L2_ROTATION_BYTES = 160 << 20
TOPK = 512
# The fp8 tensor cores of sm_90 keep fewer bits while they accumulate.
TOLERANCE = 1e-3
# The stock function gathers, widens and multiplies the whole width: bytes per (row, position).
STOCK_BYTES = 1160

CAPS = (8_192, 131_072, 1_048_576)
# Cases of one group are timed in turn, so that the ratio between them is one of one run.
INDEXER = {
    "text512": [decode_case(64, 512, cap, pool=4096) for cap in CAPS],
    "few512": [decode_case(batch, 512, 131_072, pool=4096) for batch in (1, 16)],
    "full8k": [decode_case(batch, 8_192, 8_192) for batch in (1, 16, 64)],
    "full128k": [decode_case(batch, 131_072, 131_072) for batch in (1, 16, 64)],
    "full1m": [decode_case(8, 1_048_576, 1_048_576)],
    "skewed": [
        IndexerCase(
            "B64-one131072-rest512-cap131072",
            (32_768,) + (128,) * 63,
            32_768,
            tail="valid",
        )
    ],
    # The last 2,048 rows of a prompt of 128K tokens: one request, so one list of pages for all rows.
    "prefill": [
        IndexerCase(
            "rows2048-text131072",
            tuple((131_072 - 2_047 + row) // 4 for row in range(2_048)),
            32_768,
            pool=512,
            tail="valid",
            one_request=True,
        )
    ],
}


def run(groups: list[str] | None, out: Path | None, samples: int) -> int:
    """Time the chosen groups (None: all) and return the exit code.

    The table goes to stdout, the raw figures to ``out``. A wrong result is exit code 1.
    """
    unknown = sorted(set(groups or []) - set(INDEXER))
    if unknown:
        raise Failure(
            Exit.USAGE,
            f"no case {', '.join(unknown)}",
            state="nothing was measured",
            next=f"name some of these with --case: {', '.join(INDEXER)}",
        )
    if not torch.cuda.is_available():
        raise Failure(
            Exit.ENVIRONMENT,
            f"torch {torch.__version__} sees no CUDA GPU",
            where=sys.executable,
            state="nothing was measured",
            next="on a GPU host: PYTHON=/path/to/python scripts/bench.sh kernel",
        )
    record = {"machine": machine_facts(), "cases": []}
    _warn_if_not_sm120(record["machine"])
    bandwidth = record["machine"]["copy_bytes_per_s"]
    for name in groups or INDEXER:
        rows = measure_indexer(INDEXER[name], samples, bandwidth)
        record["cases"] += rows
        print("\n".join(_line(row) for row in rows), flush=True)
        torch.cuda.empty_cache()
    record["cap_ratios"] = _cap_ratios(record["cases"])
    for arm, ratio in record["cap_ratios"].items():
        print(f"time at a 1M cap / at an 8K cap, text 512, {arm}: {ratio:.3f}")
    if out:
        out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"raw   {out}", file=sys.stderr)
    return int(all(row["correct"] for row in record["cases"]) is False)


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
        "kernels_sha256": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted((ROOT / "kernels").glob("*.py"))
        },
        "copy_bytes_per_s": gputime.copy_bandwidth(),
    }


def measure_indexer(cases: list, samples: int, bandwidth: float) -> list[dict]:
    """Gate each case of a group, then time all their arms in turn: ours with every row computed, ours
    as served (short rows skipped), and the stock function where its temporaries fit the GPU.
    """
    rows, arms = [], {}
    for case in cases:
        row, inputs = _gated(case, bandwidth)
        rows.append(row)
        if row["correct"]:
            arms |= {
                (case.name, arm): calls for arm, calls in _arms(case, inputs).items()
            }
    for (case, arm), timing in gputime.time_arms(arms, samples).items():
        (row,) = (row for row in rows if row["case"] == case)
        row["timings"][arm] = asdict(timing)
    return rows


def work(case: IndexerCase) -> tuple[int, int]:
    """(bytes that must move, floating-point operations) of one call."""
    keys = sum(case.lens)
    read = max(case.lens) if case.one_request else keys
    moved = read * 132 + keys * 4 + len(case.lens) * case.heads * 132
    return moved, keys * case.heads * 256


def _gated(case: IndexerCase, bandwidth: float) -> tuple[dict, list]:
    moved, flop = work(case)
    copies = max(1, min(48, -(-L2_ROTATION_BYTES // moved)))
    inputs = [make_indexer(case, "cuda", seed) for seed in range(copies)]
    # The layers of one step share lengths, page table and the logits buffer; cache, q and weights are
    # their own.
    first = inputs[0]
    shared = {name: getattr(first, name) for name in ("seq_lens", "page_table", "out")}
    inputs = [first, *(one._replace(**shared) for one in inputs[1:])]
    row = {
        "case": case.name,
        "batch": len(case.lens),
        "bytes": moved,
        "flop": flop,
        "floor_us": moved / bandwidth * 1e6,
        "rotated_sets": copies,
        "error": None,
        "correct": True,
        "timings": {},
    }
    try:
        row["error"] = _gate(inputs[0])
    except AssertionError as wrong:
        row |= {"correct": False, "why": str(wrong)}
    return row, inputs


def _arms(case: IndexerCase, inputs: list) -> dict[str, list]:
    arms = {
        "ours": [_call(one, 0) for one in inputs],
        "ours, served": [_call(one, TOPK) for one in inputs],
    }
    if len(case.lens) * case.cap * STOCK_BYTES < 0.8 * torch.cuda.mem_get_info()[0]:
        (function,) = indexer_functions("fp8_paged_mqa_logits_torch_sm120")
        arms["stock"] = [lambda: call_stock(function, inputs[0])]
    for name, prepare in peers.logits_peers():
        try:
            calls = [prepare(one) for one in inputs]
            calls[0]()
            torch.cuda.synchronize()
        except Exception as error:
            first = (str(error).strip() or repr(error)).splitlines()[0]
            print(f"note: {name} on {case.name}: {first[:160]}", file=sys.stderr)
        else:
            arms[name] = calls
    return arms


def _cap_ratios(rows: list[dict]) -> dict[str, float]:
    """Time at the largest cap over time at the smallest, for one text, by arm."""
    small, large = (decode_case(64, 512, cap).name for cap in (CAPS[0], CAPS[-1]))
    timings = {row["case"]: row["timings"] for row in rows}
    if small not in timings or large not in timings:
        return {}
    return {
        arm: timings[large][arm]["median"] / timing["median"]
        for arm, timing in timings[small].items()
        if arm in timings[large]
    }


def _call(inputs, skip_below: int):
    def call():
        indexer.paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=skip_below)

    return call


def _gate(inputs) -> float:
    """Compare up to four rows with float64; returns the worst error relative to the terms' size."""
    indexer.paged_mqa_logits(*inputs.args, out=inputs.out)
    batch = inputs.q.shape[0]
    worst = 0.0
    for row in sorted({0, 1 % batch, batch // 2, batch - 1}):
        part = slice(row, row + 1)
        reference = paged_mqa_logits_ref(
            inputs.q[part],
            inputs.kv_cache,
            inputs.weights[part],
            inputs.seq_lens[part],
            inputs.page_table[part],
            inputs.max_seq_len,
        )
        want = torch.where(
            torch.isneginf(reference.values), float("nan"), reference.values
        )
        worst = max(
            worst, assert_close(inputs.out[part], want, reference.magnitudes, TOLERANCE)
        )
    return worst


def _line(row: dict) -> str:
    if not row["correct"]:
        return f"{row['case']:<34} WRONG, not timed: {row['why']}"
    medians = {name: timing["median"] for name, timing in row["timings"].items()}
    ours, served, stock = (
        medians.get(name) for name in ("ours", "ours, served", "stock")
    )
    gain = (
        f"{stock / ours:>8.1f}x {stock / served:>8.1f}x"
        if stock
        else f"{'-':>9} {'-':>9}"
    )
    others = "".join(
        f"{name} {us:.2f} us ({ours / us:.2f}x)  "
        for name, us in medians.items()
        if name not in ("ours", "ours, served", "stock")
    )
    return (
        f"{row['case']:<34} floor {row['floor_us']:>7.2f}  ours {ours:>8.2f} us"
        f" ({row['bytes'] / ours / 1e3:>6.0f} GB/s, {row['floor_us'] / ours:>4.0%} of floor)"
        f"  served {served:>8.2f} us  stock {stock or float('nan'):>10.1f} us  {gain}"
        f"  {others}error {row['error']:.1e}"
    )


def _warn_if_not_sm120(machine: dict) -> None:
    if not machine["capability"].startswith("12."):
        print(
            f"note: {machine['gpu']} has compute capability {machine['capability']}: read ratios between"
            " arms of this run, never as figures of an sm_120 card",
            file=sys.stderr,
        )
