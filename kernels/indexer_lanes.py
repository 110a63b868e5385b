"""Keys and q by lanes: each byte is loaded by the lane whose register the products take it from.

Device functions of ``indexer``'s kernel. So loaded, keys pass no shared memory and no barrier on their way to the
products. There a quad of lanes holds a row, each lane 4 bytes of each 16. That would be loads of 4 bytes: a lane
loads 16 that lie together instead, and keys' and q's bytes change places alike.

A tile is [4, 8, warps, ..., 16], its dimensions in the order in which Triton gives them to lanes, to warps and to
registers: the quad's 64 bytes of a row, eight rows, a warp's own ones, what more each lane has, and the 16 bytes.
Another layout would be right as well, but would exchange bytes through shared memory.
"""

import triton
import triton.language as tl


@triton.jit
def _load(row_ptr, rows, DIM: tl.constexpr):
    """[4, 8, warps, rows per lane, DIM // 64, 16] bytes of ``rows`` [1, 8, warps, rows per lane, 1, 1]."""
    quad = tl.arange(0, 4)[:, None, None, None, None, None]
    half = tl.arange(0, DIM // 64)[None, None, None, None, :, None]
    byte = tl.arange(0, 16)[None, None, None, None, None, :]
    return tl.load(row_ptr + (rows * DIM + half * 64 + quad * 16 + byte))


@triton.jit
def _load_keys(page, DIM: tl.constexpr, PAGE: tl.constexpr):
    low = tl.arange(0, 8)[None, :, None, None, None, None]
    warp = tl.arange(0, PAGE // 16)[None, None, :, None, None, None]
    high = tl.arange(0, 2)[None, None, None, :, None, None]
    return _load(page, warp * 16 + high * 8 + low, DIM)


@triton.jit
def keys_for_warps(page, DIM: tl.constexpr, PAGE: tl.constexpr):
    """The keys at ``page``: [PAGE // 16, 16, DIM], the bytes in the order of ``in_warps_order``."""
    key = _load_keys(page, DIM, PAGE)
    key = tl.reshape(key, (4, 8, PAGE // 16, 2, DIM // 64, 4, 4))
    key = tl.permute(key, (2, 3, 1, 4, 5, 0, 6))
    return tl.reshape(key, (PAGE // 16, 16, DIM))


@triton.jit
def in_warps_order(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Rows [ROWS, DIM]: each 64 bytes' four fours of a lane become a four of each 16."""
    x = tl.reshape(x, (ROWS, DIM // 64, 4, 4, 4))
    return tl.reshape(tl.permute(x, (0, 1, 3, 2, 4)), (ROWS, DIM))


@triton.jit
def q_for_warps(q, HEADS: tl.constexpr, DIM: tl.constexpr, WARPS: tl.constexpr):
    """The row's q at ``q``: [WARPS, DIM, HEADS], for each warp its own, in the order of ``in_warps_order``."""
    low = tl.arange(0, 8)[None, :, None, None, None, None]
    warp = tl.zeros([1, 1, WARPS, 1, 1, 1], tl.int32)
    high = tl.arange(0, HEADS // 8)[None, None, None, :, None, None]
    q = _load(q, high * 8 + low + warp, DIM)
    q = tl.reshape(q, (4, 8, WARPS, HEADS // 8, DIM // 64, 4, 4))
    q = tl.permute(q, (2, 3, 1, 4, 5, 0, 6))
    return tl.permute(tl.reshape(q, (WARPS, HEADS, DIM)), (0, 2, 1))


@triton.jit
def keys_for_group(page, DIM: tl.constexpr, PAGE: tl.constexpr):
    """The keys at ``page``: [PAGE, DIM], the bytes in the order of ``in_group_order``.

    Of a quad's 64 bytes two lanes have the first 32 and two the others. Each exchanges 8 of its 16 for 8 of the
    lane two from it, so that every lane has 8 of each 32. A product adds up 32 bytes at once: they are those of
    memory's order, and so the sums have the same bits (tests/gpu/test_indexer.py).
    """
    key = _load_keys(page, DIM, PAGE)
    key = tl.reshape(key, (2, 2, 8, PAGE // 16, 2, DIM // 64, 2, 2, 4))
    key = tl.permute(key, (3, 4, 2, 5, 0, 7, 6, 1, 8))
    return tl.reshape(key, (PAGE, DIM))


@triton.jit
def in_group_order(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Rows [ROWS, DIM]: in each 32 bytes the first and the last of three bits that number its fours change places."""
    x = tl.reshape(x, (ROWS, DIM // 32, 2, 2, 2, 4))
    return tl.reshape(tl.permute(x, (0, 1, 4, 3, 2, 5)), (ROWS, DIM))
