"""The indexer's search for the row of a page, on the CPU, against torch's sums."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.indexer_rows import find_row, page_ends

LANES = 32
MOST = 2**31 - 1


@triton.jit
def _ends_kernel(
    lens_ptr, stride_len, batch, max_seq_len, skip_below, work, ends_ptr, found_ptr
):
    lanes = tl.arange(0, 32)
    rows = 2 * lanes
    ends, more_ends, total = page_ends(
        lens_ptr + rows.to(tl.int64) * stride_len,
        rows,
        stride_len,
        batch,
        max_seq_len,
        skip_below,
        64,
        False,
    )
    tl.store(ends_ptr + rows, ends)
    tl.store(ends_ptr + rows + 1, more_ends)
    count, start = find_row(ends, more_ends, work)
    tl.store(found_ptr, count)
    tl.store(found_ptr + 1, start)
    tl.store(found_ptr + 2, total)


def ends_of(lens, max_seq_len, skip_below=0, work=0, stride=1):
    spread = torch.full((len(lens) * stride,), 999, dtype=torch.int32)
    spread[::stride] = torch.tensor(lens, dtype=torch.int32)
    ends = torch.empty(2 * LANES, dtype=torch.int32)
    found = torch.empty(3, dtype=torch.int32)
    _ends_kernel[(1,)](
        spread, stride, len(lens), max_seq_len, skip_below, work, ends, found
    )
    return ends, found.tolist()


def ends_wanted(lens, max_seq_len, skip_below=0):
    lens = torch.tensor(lens + [0] * (2 * LANES - len(lens))).clamp(max=max_seq_len)
    pages = torch.where(lens > max(skip_below, 0), (lens + 63) // 64, 0)
    return pages.cumsum(0).int()


@pytest.mark.parametrize("stride", (1, 3))
@pytest.mark.parametrize("skip_below", (-5, 0, 512))
@pytest.mark.parametrize("rows", (1, 2, 31, 63, 64))
def test_sums_of_each_row(rows, skip_below, stride, seed):
    draw = torch.Generator().manual_seed(seed + rows)
    lens = torch.randint(-70, 1200, (rows,), generator=draw).tolist()
    ends, (_, _, total) = ends_of(lens, 1000, skip_below, stride=stride)
    want = ends_wanted(lens, 1000, skip_below)
    assert torch.equal(ends, want)
    assert total == want[-1]


@pytest.mark.parametrize(
    "lens", ([MOST], [0, MOST], [-(2**31), 1, MOST], [MOST - 63, 64, 65])
)
def test_the_longest_and_the_most_negative_length(lens):
    assert torch.equal(ends_of(lens, MOST)[0], ends_wanted(lens, MOST))


def test_each_page_finds_its_row():
    lens = [0, 1, 64, 65, 0, 0, 200, -3, 5]
    rows = [row for row, n in enumerate(lens) for _ in range((max(n, 0) + 63) // 64)]
    for work, row in enumerate(rows):
        _, (count, start, _) = ends_of(lens, 256, work=work)
        assert (count, start) == (row, rows.index(row))
