"""The indexer's rows in blocks: how many, and that a block sees its own rows of everything."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.row_chunks import DeferredLogits, by_rows, rows_per_block

OURS, TORCH = (
    256,
    73_984,
)  # bytes for one page of one row: logits alone, the torch fallback


@pytest.mark.parametrize(
    "rows,pages,row_page_bytes,budget,block",
    [
        (64, 4097, OURS, 512 << 20, 64),  # decode at 1M: 67 MB
        (256, 4097, OURS, 512 << 20, 256),
        (8192, 512, OURS, 512 << 20, 4096),  # 8K rows of a 128K prompt: 1 GiB
        (8192, 4097, OURS, 512 << 20, 482),
        (8192, 32, TORCH, 512 << 20, 222),  # the fallback, an 8K prompt
        (8192, 4097, TORCH, 512 << 20, 1),
        (8192, 4097, TORCH, 1 << 20, 1),  # a row is the least
        (0, 10, OURS, 1 << 20, 0),
        (5, 0, OURS, 1 << 20, 5),
    ],
)
def test_blocks_fit_the_budget(rows, pages, row_page_bytes, budget, block):
    assert rows_per_block(rows, pages, row_page_bytes, budget) == block


def test_a_block_is_within_the_budget_and_no_more_blocks_than_needed(seed):
    draw = random.Random(seed)
    for _ in range(500):
        rows, pages = draw.randrange(1, 20_000), draw.randrange(1, 5_000)
        budget = draw.randrange(1, 1 << 32)
        block = rows_per_block(rows, pages, OURS, budget)
        most = max(1, budget // (pages * OURS))
        assert 1 <= block <= min(rows, most)
        assert -(-rows // block) == -(-rows // most)


def rows_of(count):
    """Arguments of a logits function whose rows can be told apart."""
    number = torch.arange(count, dtype=torch.float32)
    q = number[:, None, None, None]
    lens = torch.arange(count, dtype=torch.int32)[:, None]
    table = torch.arange(count, dtype=torch.int32)[:, None]
    return q, "cache", number[:, None], lens, table, None, 64, False


def logits_of(q, cache, weights, lens, table, metadata, width, clean):
    assert (cache, metadata, width, clean) == ("cache", None, 64, False)
    assert len(q) == len(weights) == len(lens) == len(table)
    return q[:, 0, 0] + weights + lens + table


@pytest.mark.parametrize("block", [1, 3, 7, 10])
def test_blocks_together_are_the_whole(block):
    args = rows_of(10)
    deferred = DeferredLogits(logits_of, args, block)
    parts = list(deferred.parts())
    assert [part.start for part in parts] == list(range(0, 10, block))
    together = torch.cat([deferred.of(part) for part in parts])
    assert torch.equal(together, logits_of(*args))


def test_one_block_of_logits_is_alive_at_a_time():
    alive, most = 0, 0

    class Block(torch.Tensor):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def counted(*args):
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        return logits_of(*args).as_subclass(Block)

    args = rows_of(10)
    lens, out = torch.arange(10, dtype=torch.int32), torch.zeros(
        10, 1, dtype=torch.int32
    )
    by_rows(lambda *_: None)(DeferredLogits(counted, args, 3), lens, args[4], out, 64)
    assert (alive, most) == (0, 1)


def select(scores, seq_lens, page_table, out, page_size, extra):
    assert page_size == 64
    out.copy_(scores[:, :1].int() * 100 + seq_lens[:, None] + page_table)
    if isinstance(extra, torch.Tensor):
        extra.copy_(out + 1)


@pytest.mark.parametrize("with_raw", [False, True])
def test_a_selection_by_rows_is_the_selection_at_once(with_raw):
    args = rows_of(10)
    lens, table = torch.arange(10, dtype=torch.int32), args[4]
    results = []
    for scores in (logits_of(*args), DeferredLogits(logits_of, args, 4)):
        out = torch.full((10, 1), -7, dtype=torch.int32)
        raw = torch.full((10, 1), -7, dtype=torch.int32) if with_raw else None
        by_rows(select)(scores, lens, table, out, 64, raw)
        results.append((out, raw))
    assert torch.equal(results[0][0], results[1][0])
    if with_raw:
        assert torch.equal(results[0][1], results[1][1])


def test_a_plan_is_made_anew_for_each_block_and_kept_for_the_whole():
    args = rows_of(10)
    lens, out = torch.arange(10, dtype=torch.int32), torch.zeros(
        10, 1, dtype=torch.int32
    )
    seen = []

    def planned(scores, seq_lens, page_table, out, page_size, plan):
        seen.append((seq_lens.tolist(), plan))

    replanned = by_rows(planned, lambda lens: ("plan of", lens.tolist()))
    replanned(logits_of(*args), lens, args[4], out, 64, "the given plan")
    assert seen == [(lens.tolist(), "the given plan")]
    seen.clear()
    replanned(DeferredLogits(logits_of, args, 6), lens, args[4], out, 64, "unused")
    assert [plan for _, plan in seen] == [
        ("plan of", [0, 1, 2, 3, 4, 5]),
        ("plan of", [6, 7, 8, 9]),
    ]
