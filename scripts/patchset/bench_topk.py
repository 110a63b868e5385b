"""Benchmark of the exact top-k: against SGLang's two kernels (times and recall) and torch.topk."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from kernels import topk
from kernels.topk_ref import topk_page_indices_ref
from numeric import assert_bitwise_equal
from topk_cases import WITHOUT_NAN, TopkCase, make_topk

from . import peers
from .benchcase import Arms, Bench, BenchCase, Prepared, ratios, rotated_sets

# Rows that the gate sorts, and rows that the recall is the worst of.
CHECKED_ROWS, RECALL_ROWS = 64, 8

CLOSE = ("normal", "narrow", "concentrated", "mean-100", "plateau")
LENGTHS = (512, 1_024, 2_048, 8_192, 16_384, 32_768, 131_072, 262_144)
CAPS = (2_048, 32_768, 262_144)
LONGEST = 262_144


def _even(batch: int, length: int, scores: str = "", cap: int = 0) -> TopkCase:
    """Rows of one length; of normally distributed scores, if nothing is said of them."""
    name = f"{batch}x{length}" + (f"-cap{cap}" if cap else "")
    name += f"-{scores}" if scores else ""
    return TopkCase(
        name, (length,) * batch, cap or length, scores or "normal", raw=False
    )


def _twice(batch: int, length: int) -> TopkCase:
    """The 1,024 best, which models with an index of that many ask for."""
    return replace(_even(batch, length), name=f"{batch}x{length}-k1024", k=1_024)


def _alone(length: int) -> TopkCase:
    return replace(_even(1, length), name=f"{length}-alone")


def _skewed(length: int) -> TopkCase:
    lens = (length,) + (128,) * 63
    return TopkCase(f"64-one{length}-rest128", lens, length, raw=False)


SHAPES = {
    "topk-lengths": [_even(b, n) for n in LENGTHS for b in (1, 16, 64)],
    "topk-1024": [
        _twice(b, n)
        for n in (1_024, 2_048, 8_192, 32_768, 131_072, LONGEST)
        for b in (1, 64)
    ],
    "topk-rows": [_even(2_048, n) for n in (512, 2_048, 8_192, 32_768)],
    "topk-caps": [
        _even(b, n, cap=cap) for b in (64, 1) for n in (512, 2_048) for cap in CAPS
    ],
    "topk-skewed": [
        case for n in (32_768, LONGEST) for case in (_skewed(n), _alone(n))
    ],
    # Times and recall of scores that lie ever closer together.
    "topk-recall": [
        _even(8, n, scores)
        for n in (8_192, 32_768, 131_072, LONGEST)
        for scores in CLOSE
    ],
    "topk-scores": [
        _even(b, n, scores)
        for b, n in ((1, LONGEST), (64, 8_192))
        for scores in WITHOUT_NAN
    ],
}


def moved(case: TopkCase) -> int:
    """Bytes that must move: each score of a row longer than k once, page ids, and the result."""
    scores = sum(length for length in case.lens if length > case.k)
    chosen = sum(min(length, case.k) for length in case.lens)
    return 4 * (scores + chosen + len(case.lens) * (case.k + 1))


def _bench_case(case: TopkCase) -> BenchCase:
    return BenchCase(case.name, len(case.lens), moved(case), 0, partial(_prepare, case))


def _prepare(case: TopkCase) -> Prepared:
    # From what is read, not from the width: cases of one length and several widths are timed alike.
    copies = min(16, rotated_sets(4 * sum(case.lens)))
    first = make_topk(case, "cuda")
    inputs = [first] + [
        first._replace(scores=first.scores.clone()) for _ in range(1, copies)
    ]
    workspace = topk.topk_workspace(*first.scores.shape, case.k, "cuda")
    return Prepared(
        gate=partial(_gate, first, workspace),
        arms=partial(_arms, case, inputs, workspace),
        facts=partial(_recall, case, first, workspace),
        rotated_sets=copies,
    )


def _gate(inputs, workspace) -> dict:
    """Set and order of the first rows, the last and some between, against a stable sort."""
    inputs.out_page_indices.fill_(-7)
    topk.topk_page_indices(*inputs, workspace=workspace)
    batch = inputs.scores.shape[0]
    rows = torch.linspace(0, batch - 1, min(batch, CHECKED_ROWS)).long().tolist()
    want = topk_page_indices_ref(
        inputs.scores[rows],
        inputs.seq_lens[rows],
        inputs.page_table[rows],
        inputs.out_page_indices.shape[1],
        inputs.page_size,
    )
    assert_bitwise_equal(inputs.out_page_indices[rows], want.page_indices)
    assert not workspace.arrived.any(), "the workspace was not left zero"
    return {"checked_rows": len(rows)}


def _arms(case: TopkCase, inputs: list, workspace) -> Arms:
    ours = {"ours": [partial(_ours, one, workspace) for one in inputs]}
    return ours | peers.arms(peers.topk_peers(case.lens, case.k), inputs, case.name)


def _ours(inputs, workspace) -> None:
    topk.topk_page_indices(*inputs, workspace=workspace)


def _recall(case: TopkCase, inputs, workspace) -> dict:
    """Share of the true top-k that each kernel finds in the worst row."""
    if min(case.lens) <= case.k:
        return {}
    kernels = {"ours": [partial(_ours, inputs, workspace)]}
    kernels |= peers.arms(peers.sglang_topk(), [inputs], case.name)
    recall = {}
    for name, (call,) in kernels.items():
        inputs.out_page_indices.fill_(-7)
        call()
        rows = range(min(len(case.lens), RECALL_ROWS))
        recall[name] = min(_recall_of_row(inputs, row) for row in rows)
    return {"recall": recall}


def _recall_of_row(inputs, row: int) -> float:
    length = int(inputs.seq_lens[row])
    table = inputs.page_table[row, : -(-length // 64)].long()
    page_of = torch.zeros(int(table.max()) + 1, dtype=torch.long, device=table.device)
    page_of[table] = torch.arange(len(table), device=table.device)
    found = inputs.out_page_indices[row].long()
    found = found[(found >= 0) & (found // 64 < len(page_of))].unique()
    positions = page_of[found // 64] * 64 + found % 64
    scores = inputs.scores[row, :length]
    k = inputs.out_page_indices.shape[1]
    lowest = scores.topk(k).values[-1]
    return int((scores[positions] >= lowest).sum()) / k


def _summarize(rows: list[dict]) -> dict[str, dict[str, float]]:
    summary = {}
    for batch, length in ((1, LONGEST), (64, 8_192)):
        names = {_even(batch, length, scores).name for scores in WITHOUT_NAN}
        group = [row["timings"] for row in rows if row["case"] in names]
        if len(group) >= len(names):
            summary[f"{batch} x {length}, worst scores / best"] = {
                arm: max(t[arm]["median"] for t in group)
                / min(t[arm]["median"] for t in group)
                for arm in set.intersection(*map(set, group))
            }
    for length in (32_768, LONGEST):
        summary[f"one {length} among 63 short / alone"] = ratios(
            rows, _skewed(length).name, _alone(length).name
        )
    for length in (512, 2_048):
        small, large = (_even(64, length, cap=cap).name for cap in (CAPS[0], CAPS[-1]))
        summary[f"64 x {length}, cap {CAPS[-1]} / cap {CAPS[0]}"] = ratios(
            rows, large, small
        )
    return summary


BENCH = Bench(
    "topk",
    {name: [_bench_case(case) for case in cases] for name, cases in SHAPES.items()},
    _summarize,
)
