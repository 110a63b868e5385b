"""Rows and their pages: how many each row of the indexer has to score, running sums over them, and the row of a page.

Device functions of ``indexer``'s kernel. A block is the rows that the lanes of a warp hold, two each: so each warp
sums up by itself, and a reduction is no barrier on the way to the first load.
"""

import triton
import triton.language as tl


@triton.jit
def pages_of(lens_at, rows, batch, max_seq_len, skip_below, PAGE: tl.constexpr):
    """The pages that each of ``rows`` has to score; ``lens_at`` is where their lengths are."""
    length = tl.load(lens_at, mask=rows < batch, other=0)
    length = tl.minimum(length, max_seq_len)
    # Unsigned, so that the division is a shift and no more; what a negative length gives is not taken.
    pages = ((length + (PAGE - 1)).to(tl.uint32) // PAGE).to(tl.int32)
    return tl.where(length > tl.maximum(skip_below, 0), pages, 0)


@triton.jit
def _running_sums(x, PTX: tl.constexpr):
    """Each lane's sum over the lanes of a warp up to and with itself."""
    if PTX:
        # A shuffle says whether there was a lane to take from, so each step adds by that and compares nothing.
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b32 a, b; mov.b32 a, $1;"
            " shfl.sync.up.b32 b|p, a, 1, 0, -1; @p add.s32 a, a, b;"
            " shfl.sync.up.b32 b|p, a, 2, 0, -1; @p add.s32 a, a, b;"
            " shfl.sync.up.b32 b|p, a, 4, 0, -1; @p add.s32 a, a, b;"
            " shfl.sync.up.b32 b|p, a, 8, 0, -1; @p add.s32 a, a, b;"
            " shfl.sync.up.b32 b|p, a, 16, 0, -1; @p add.s32 a, a, b;"
            " mov.b32 $0, a; }",
            "=r,r",
            [x],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        return tl.cumsum(x, 0)


@triton.jit
def page_ends(
    lens_at,
    rows,
    stride_len,
    batch,
    max_seq_len,
    skip_below,
    PAGE: tl.constexpr,
    PTX: tl.constexpr,
):
    """Running sums over the pages of a block: up to and with each lane's first row, then its second; the sum of all.

    ``rows`` are the first ones of the lanes, ``lens_at`` where their lengths are.
    """
    pages = pages_of(lens_at, rows, batch, max_seq_len, skip_below, PAGE)
    more_at = lens_at + stride_len
    more = pages_of(more_at, rows + 1, batch, max_seq_len, skip_below, PAGE)
    more_ends = _running_sums(pages + more, PTX)
    return more_ends - more, more_ends, tl.sum(pages + more, 0)


@triton.jit
def find_row(ends, more_ends, work):
    """How many rows of a block end at or before its page ``work``, and where the last of them ends."""
    ended = ends <= work
    more_ended = more_ends <= work
    count = tl.sum(ended.to(tl.int32) + more_ended.to(tl.int32), 0)
    start = tl.maximum(tl.where(ended, ends, 0), tl.where(more_ended, more_ends, 0))
    return count, tl.max(start, 0)
