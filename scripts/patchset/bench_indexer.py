"""Benchmark of the indexer's logits: against the stock function, DeepGEMM and TileLang."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from typing import Callable, Sequence
from unittest import mock

import torch

from cases import IndexerCase, decode_case, make_indexer
from kernels import indexer
from kernels.config import Launch
from kernels.indexer_ref import paged_mqa_logits_ref
from numeric import assert_close

from . import peer_compile, peers
from .benchcase import Arms, Bench, BenchCase, Prepared, ratios, rotated_sets

TOPK = 512
# Two warps are no warpgroup, so their products are mma.sync on sm_90 too, as all are on sm_120: the arm whose machine
# code comes nearest to that card's. Triton widens fp8 to f16 for it there, and keys take this card's way to it.
TWO_WARPS = replace(indexer.CONFIGS["fp8"], num_warps=2)
WITH_TWO_WARPS = (
    "B64-text512-cap131072",
    "B64-text8192-cap8192",
    "B64-text131072-cap131072",
    "B64-one131072-rest512-cap131072",
    "rows2048-text131072",
)
# The fp8 tensor cores of sm_90 keep fewer bits while they accumulate.
TOLERANCE = 1e-3

CAPS = (8_192, 131_072, 1_048_576)
SHAPES = {
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


def work(case: IndexerCase) -> tuple[int, int]:
    """(bytes that must move, floating-point operations) of one call."""
    keys = sum(case.lens)
    read = max(case.lens) if case.one_request else keys
    moved = read * 132 + keys * 4 + len(case.lens) * case.heads * 132
    return moved, keys * case.heads * 256


def _bench_case(case: IndexerCase) -> BenchCase:
    return BenchCase(case.name, len(case.lens), *work(case), partial(_prepare, case))


def _prepare(case: IndexerCase) -> Prepared:
    copies = rotated_sets(work(case)[0])
    inputs = [make_indexer(case, "cuda", seed) for seed in range(copies)]
    # The layers of one step share lengths, page table and the logits buffer; cache, q and weights are
    # their own.
    first = inputs[0]
    shared = {name: getattr(first, name) for name in ("seq_lens", "page_table", "out")}
    inputs = [first, *(one._replace(**shared) for one in inputs[1:])]
    return Prepared(
        gate=partial(_gate, case, first),
        arms=partial(_arms, case, inputs),
        rotated_sets=copies,
    )


def _gate(case: IndexerCase, inputs) -> dict:
    found = {"error": _error(inputs, partial(_ours, inputs, 0))}
    if case.name in WITH_TWO_WARPS:
        found["error of two warps"] = _error(inputs, two_warps(inputs).run)
    return found


def _error(inputs, call: Callable) -> float:
    """Compare up to four rows with float64; the error is the worst relative to the terms' size."""
    inputs.out.fill_(float("nan"))
    call()
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


def _arms(case: IndexerCase, inputs: list) -> Arms:
    ours = {
        "ours": [partial(_ours, one, 0) for one in inputs],
        "ours, served": [partial(_ours, one, TOPK) for one in inputs],
    }
    if case.name in WITH_TWO_WARPS:
        ours["ours, two warps"] = [two_warps(one).run for one in inputs]
    room = 0.8 * torch.cuda.mem_get_info()[0]
    return ours | peers.arms(
        peers.logits_peers(len(case.lens), case.cap, room), inputs, case.name
    )


def _ours(inputs, skip_below: int) -> None:
    indexer.paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=skip_below)


def two_warps(inputs) -> Launch:
    """The launch of ``TWO_WARPS`` on these inputs."""
    # A server has no choice of configurations, so ``plan`` takes none.
    with mock.patch.dict(indexer.CONFIGS, fp8=TWO_WARPS):
        return indexer.plan(*inputs.args, inputs.out)


def _summarize(rows: list[dict]) -> dict[str, dict[str, float]]:
    small, large = (decode_case(64, 512, cap).name for cap in (CAPS[0], CAPS[-1]))
    return {"text 512, cap 1M / cap 8K": ratios(rows, large, small)}


def _compile_peers(groups: Sequence[str], seconds: float) -> None:
    name = "TileLang"
    if not importlib.util.find_spec("tilelang") or not peers.is_wanted(name):
        return
    shapes = [(len(case.lens), case.cap) for group in groups for case in SHAPES[group]]
    try:
        peer_compile.compile_tilelang(shapes, seconds)
    except (RuntimeError, TimeoutError) as why:
        peers.leave_out(name)
        print(f"note: {name} is left out: {why}", file=sys.stderr)


BENCH = Bench(
    "indexer",
    {name: [_bench_case(case) for case in cases] for name, cases in SHAPES.items()},
    _summarize,
    _compile_peers,
)
