"""Logits of one row against one page of the indexer's key cache: the loads, and the products.

Device functions of ``indexer``'s kernel, which says what the tensors are.
"""

import triton
import triton.language as tl


@triton.jit
def _as_dot_operand(x, DOT_DTYPE: tl.constexpr):
    # e4m3 to bf16 in one step is an instruction that sm_89 lacks; through float32 it has both.
    if DOT_DTYPE == tl.bfloat16:
        x = x.to(tl.float32)
    return x.to(DOT_DTYPE)


@triton.jit
def load_row(q_ptr, weights_ptr, row, HEADS: tl.constexpr, DIM: tl.constexpr):
    """q [HEADS, DIM] and the heads' weights [HEADS] of a row."""
    offs_head = tl.arange(0, HEADS)
    offs_dim = tl.arange(0, DIM)
    offs = offs_head[:, None] * DIM + offs_dim[None, :]
    q = tl.load(q_ptr + row * (HEADS * DIM) + offs)
    return q, tl.load(weights_ptr + row * HEADS + offs_head)


@triton.jit
def load_page(kv_ptr, id, DIM: tl.constexpr, PAGE: tl.constexpr, PAGE_BYTES):
    """Keys [PAGE, DIM], as bytes, and their scales [PAGE] of the page of a number."""
    offs_key = tl.arange(0, PAGE)
    offs_dim = tl.arange(0, DIM)
    page = kv_ptr + id.to(tl.int64) * PAGE_BYTES
    scale = tl.load((page + PAGE * DIM).to(tl.pointer_type(tl.float32)) + offs_key)
    key = tl.load(page + offs_key[:, None] * DIM + offs_dim[None, :])
    return key, scale


@triton.jit
def logits(key, scale, q, weight, DOT_DTYPE: tl.constexpr):
    """The row's logits [PAGE], of what ``load_page`` and ``load_row`` gave."""
    key = _as_dot_operand(key.to(tl.float8e4nv, bitcast=True), DOT_DTYPE)
    q_t = tl.trans(_as_dot_operand(q, DOT_DTYPE))
    score = tl.dot(key, q_t, input_precision="ieee")  # [PAGE, HEADS]
    return tl.sum(tl.maximum(score, 0.0) * weight[None, :], 1) * scale
