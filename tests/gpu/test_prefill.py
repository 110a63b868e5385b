"""Rows in blocks on a real GPU: the same bits as all rows at once, in bounded memory, also captured."""

from __future__ import annotations

import pytest
import torch

from cases import IndexerCase, make_indexer
from kernels.indexer import paged_mqa_logits
from kernels.row_chunks import DeferredLogits, by_rows, rows_per_block
from numeric import assert_bitwise_equal

DEVICE = "cuda"
BUDGET = 256 << 20
LOGITS_PAGE_BYTES = 256


def logits_of(q, kv, weights, lens, table, _metadata, width, _clean):
    return paged_mqa_logits(q, kv, weights, lens, table, width, skip_below=512)


def chunk(rows, text, seed):
    """The last ``rows`` tokens of one prompt of ``text`` raw tokens."""
    lens = tuple((text - rows + 1 + row) // 4 for row in range(rows))
    case = IndexerCase(
        "chunk", lens, text // 4, pool=text // 256, tail="valid", one_request=True
    )
    return make_indexer(case, DEVICE, seed)


def arguments(inputs):
    q, kv, weights, lens, table, cap, _ = inputs
    return q, kv, weights, lens, table, None, cap, False


def peak_above(function) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    "rows,text,budget",
    [
        (8192, 8_192, BUDGET // 16),
        (8192, 131_072, BUDGET),
        (256, 1_048_576, BUDGET // 4),
    ],
)
def test_blocks_have_the_bits_of_the_whole_within_the_budget(rows, text, budget, seed):
    inputs = chunk(rows, text, seed)
    args = arguments(inputs)
    pages = inputs.page_table.shape[1]
    block = rows_per_block(rows, pages, LOGITS_PAGE_BYTES, budget)
    assert 4 * block <= rows
    lens = inputs.seq_lens.flatten()
    whole = logits_of(*args)
    reach = torch.arange(whole.shape[1], device=DEVICE)
    deferred = DeferredLogits(logits_of, args, block)
    for part in deferred.parts():
        live = (reach < lens[part, None]) & (lens[part, None] > 512)
        assert_bitwise_equal(
            torch.where(live, deferred.of(part), 0), torch.where(live, whole[part], 0)
        )
    del whole, live

    def select(scores, *_):
        scores[:, :1].sum()

    def run():
        scores = DeferredLogits(logits_of, args, block)
        by_rows(select)(scores, lens, inputs.page_table, lens[:, None], 64, None)

    run()
    assert peak_above(run) <= budget + (4 << 20)


def test_a_captured_graph_replays_the_blocks(seed):
    inputs = chunk(300, 131_072, seed)
    args = arguments(inputs)
    sums = torch.zeros(300, device=DEVICE)

    def select(scores, seq_lens, _table, out, *_):
        reach = torch.arange(scores.shape[1], device=DEVICE) < seq_lens[:, None]
        out.copy_(torch.where(reach & (seq_lens[:, None] > 512), scores, 0).sum(1))

    def run(block):
        scores = (
            logits_of(*args)
            if block is None
            else DeferredLogits(logits_of, args, block)
        )
        lens = inputs.seq_lens.flatten()
        by_rows(select)(scores, lens, inputs.page_table, sums, 64, None)

    stream = torch.cuda.Stream()
    # On a busy GPU the inputs may still be being written.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(64)
    for length in (30_000, 700, 0, 32_768):
        inputs.seq_lens.fill_(length)
        graph.replay()
        replayed = sums.clone()
        run(None)
        assert_bitwise_equal(replayed, sums)
