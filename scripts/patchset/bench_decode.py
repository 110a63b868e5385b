"""Benchmark of the sparse MLA attention: against the stock Triton kernel and FlashMLA."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from decode_cases import DecodeCase, assert_attention, make_decode, unwritten
from kernels import decode
from kernels.decode_ref import sparse_mla_decode_ref

from . import peers
from .benchcase import Arms, Bench, BenchCase, Prepared, ratios
from .decode_parts import exchanged_bytes

# More sets than other kernels get: a row of 640 keys is 0.4 MB.
L2_ROTATION_BYTES, MOST_SETS = 160 << 20, 400
# Rows that the gate compares; the reference goes row by row.
CHECKED_ROWS = 8
# The stock kernel reads a key once for each head: no case beyond so many pairs is worth its seconds.
STOCK_PAIRS = 64 * 64 * 640


def _rows(batch: int, heads: int, far: int, width: int = 0) -> DecodeCase:
    name = f"B{batch}-h{heads}-128+{far}" + (f"-width{width}" if width else "")
    lens = ((128,) * batch, (far,) * batch)
    # Layers of the c128 cache have pages of 2 keys.
    page = 64 if far in (512, 1_024) else 2
    return DecodeCase(name, *lens, heads, width or max(far, 64), far_page=page)


LONG = _rows(1, 16, 8_192)
NARROW, WIDE = (_rows(64, 16, 64, width) for width in (64, 8_256))
SKEWED = DecodeCase(
    "B64-h16-one128+8192-rest128+2",
    (128,) * 64,
    (8_192,) + (2,) * 63,
    width=8_256,
    far_page=2,
)
# A text of 40 tokens, as a server's first steps have it: what a launch costs whatever its keys.
SHORT = [
    DecodeCase(f"B64-h{heads}-40+10", (40,) * 64, (10,) * 64, heads)
    for heads in (16, 64)
]
SHAPES = {
    "decode-rows": [
        *(_rows(batch, 16, 512) for batch in (1, 4, 16, 64)),
        _rows(64, 16, 1_024),
    ],
    "decode-heads": [_rows(64, heads, 512) for heads in (8, 32, 64)],
    "decode-one-row": [_rows(1, 64, 512)],
    "decode-short": SHORT,
    "decode-long": [LONG, SKEWED],
    "decode-caps": [NARROW, WIDE],
    "decode-prefill": [_rows(2_048, 64, 512)],
    # Errors beside the stock kernel's.
    "decode-scores": [
        replace(_rows(4, 16, far), name=f"B4-h16-128+{far}-{scores}", scores=scores)
        for far in (512, 8_192)
        for scores in ("normal", "peaked", "flat")
    ],
}


def keys(case: DecodeCase) -> int:
    """Keys that a call reads."""
    return sum(case.near) + sum(case.far)


def work(case: DecodeCase) -> tuple[int, int]:
    """(bytes that must move, floating-point operations) of one call."""
    moved = keys(case) * (584 + 4) + len(case.near) * case.heads * 2 * 1_024
    return moved, keys(case) * case.heads * 2 * 2 * 512


def _bench_case(case: DecodeCase) -> BenchCase:
    return BenchCase(
        case.name,
        len(case.near),
        *work(case),
        partial(_prepare, case),
        exchanged_bytes(case),
    )


def _prepare(case: DecodeCase) -> Prepared:
    copies = max(1, min(MOST_SETS, -(-L2_ROTATION_BYTES // work(case)[0])))
    inputs = [make_decode(case, "cuda", seed) for seed in range(copies)]
    outputs = unwritten(inputs[0])
    workspace = decode.decode_workspace(case.heads, "cuda")
    ours = partial(_ours, outputs, workspace)
    return Prepared(
        gate=partial(_gate, inputs[0], ours, outputs, workspace),
        arms=partial(_arms, case, inputs, ours),
        facts=partial(_errors, case, inputs[0], ours),
        rotated_sets=copies,
    )


def _ours(outputs, workspace, inputs, **options):
    out, lse = outputs
    return decode.sparse_mla_decode(
        *inputs, out=out, lse=lse, workspace=workspace, **options
    )


def _gate(inputs, ours, outputs, workspace) -> dict:
    """Some rows against float64, shared out and not."""
    rows = torch.linspace(0, inputs.q.shape[0] - 1, CHECKED_ROWS).long().unique()
    some = _some(inputs, rows.tolist())
    worst = 0.0
    for num_splits in (1, None):
        out, lse = ours(inputs, num_splits=num_splits)
        worst = max(worst, assert_attention(some, (out[rows], lse[rows])))
    assert not workspace.counters.any(), "the workspace was not left zero"
    return {"worst error": worst}


def _some(inputs, rows: list[int]):
    by_row = ("q", "indices", "topk_length", "extra_indices", "extra_topk_length")
    return inputs._replace(**{name: getattr(inputs, name)[rows] for name in by_row})


def _arms(case: DecodeCase, inputs: list, ours) -> Arms:
    found = {
        "ours": [partial(ours, one) for one in inputs],
        "ours, not shared out": [partial(ours, one, num_splits=1) for one in inputs],
    }
    if case.heads * keys(case) <= STOCK_PAIRS:
        # A thousand times the time of its reads: the L2 cache does not matter to it.
        found |= peers.arms(peers.stock_attention(), inputs[:2], case.name)
    return found | peers.arms(peers.flash_mla(case.heads), inputs, case.name)


def _errors(case: DecodeCase, inputs, ours) -> dict:
    """Norm of the error over that of the result, of each kernel, for the cases that are about it."""
    if len(case.near) > CHECKED_ROWS:
        return {}
    kernels = {"ours": [partial(ours, inputs)]}
    for found in (peers.stock_attention(), peers.flash_mla(case.heads)):
        kernels |= peers.arms(found, [inputs], case.name)
    want = sparse_mla_decode_ref(*inputs).out
    return {
        "error": {
            name: float((call()[0].double() - want).norm() / want.norm())
            for name, (call,) in kernels.items()
        }
    }


def _summarize(rows: list[dict]) -> dict[str, dict[str, float]]:
    return {
        "one long row among 63 short / alone": ratios(rows, SKEWED.name, LONG.name),
        "index table for 1M / for 8K": ratios(rows, WIDE.name, NARROW.name),
    }


BENCH = Bench(
    "attention",
    {name: [_bench_case(case) for case in cases] for name, cases in SHAPES.items()},
    _summarize,
)
