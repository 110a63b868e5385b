"""Logits of one row against one page of the indexer's key cache: the loads, the products and the store.

Device functions of ``indexer``'s kernel, which says what the tensors are. FORM is how keys get to the products:

``memory``   [PAGE, DIM], through shared memory, as they lie in the cache
``group``    [PAGE, DIM], by lanes: for a warpgroup's products (wgmma)
``warps``    [PAGE // 16, 16, DIM], by lanes: each warp multiplies 16 keys of its own (mma.sync)
"""

import triton
import triton.language as tl

from .indexer_lanes import (
    in_group_order,
    in_warps_order,
    keys_for_group,
    keys_for_warps,
    q_for_warps,
)


@triton.jit
def _as_dot_operand(x, DOT_DTYPE: tl.constexpr):
    # e4m3 to bf16 in one step is an instruction that sm_89 lacks; through float32 it has both.
    if DOT_DTYPE == tl.bfloat16:
        x = x.to(tl.float32)
    return x.to(DOT_DTYPE)


@triton.jit
def load_q(
    q_ptr,
    row,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    FORM: tl.constexpr,
):
    """q of a row, transposed: [DIM, HEADS], or [PAGE // 16, DIM, HEADS] for warps."""
    q = q_ptr + row * (HEADS * DIM)
    if FORM == "warps":
        return q_for_warps(q, HEADS, DIM, PAGE // 16)
    else:
        offs_head = tl.arange(0, HEADS)
        offs_dim = tl.arange(0, DIM)
        q = tl.load(q + (offs_head[:, None] * DIM + offs_dim[None, :]))
        if FORM == "group":
            q = in_group_order(q, HEADS, DIM)
        return tl.trans(q)


@triton.jit
def load_weights(weights_ptr, row, HEADS: tl.constexpr):
    """The weights [HEADS] of a row's heads."""
    return tl.load(weights_ptr + row * HEADS + tl.arange(0, HEADS))


@triton.jit
def keys_of_page(PAGE: tl.constexpr, FORM: tl.constexpr):
    """The numbers of a page's keys, in the shape of their logits: [PAGE], or [PAGE // 16, 16] for warps."""
    if FORM == "warps":
        return tl.arange(0, PAGE // 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    else:
        return tl.arange(0, PAGE)


@triton.jit
def _load_scales(page, DIM: tl.constexpr, PAGE: tl.constexpr, FORM: tl.constexpr):
    at = (page + PAGE * DIM).to(tl.pointer_type(tl.float32))
    return tl.load(at + keys_of_page(PAGE, FORM))


@triton.jit
def load_page(
    kv_ptr,
    id,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_BYTES,
    FORM: tl.constexpr,
):
    """Keys of the page of a number, and their scales in the shape of their logits.

    Line by line, for a loop, which keeps pages in shared memory until it comes to them.
    """
    offs_key = tl.arange(0, PAGE)
    offs_dim = tl.arange(0, DIM)
    page = kv_ptr + id.to(tl.int64) * PAGE_BYTES
    scale = _load_scales(page, DIM, PAGE, FORM)
    # As e4m3, not as bytes: reinterpreted after the load, they would pass through registers on their way from
    # shared memory to the products.
    key = page.to(tl.pointer_type(tl.float8e4nv))
    key = tl.load(key + offs_key[:, None] * DIM + offs_dim[None, :])
    if FORM == "warps":
        key = tl.reshape(in_warps_order(key, PAGE, DIM), (PAGE // 16, 16, DIM))
    elif FORM == "group":
        key = in_group_order(key, PAGE, DIM)
    return key, scale


@triton.jit
def load_page_by_lanes(
    kv_ptr,
    id,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_BYTES,
    FORM: tl.constexpr,
):
    """As ``load_page``, into the registers of the products: for a page by itself."""
    page = kv_ptr + id.to(tl.int64) * PAGE_BYTES
    scale = _load_scales(page, DIM, PAGE, FORM)
    key = page.to(tl.pointer_type(tl.float8e4nv))
    if FORM == "warps":
        return keys_for_warps(key, DIM, PAGE), scale
    else:
        return keys_for_group(key, DIM, PAGE), scale


@triton.jit
def load_row_and_page(
    q_ptr,
    kv_ptr,
    weights_ptr,
    row,
    id,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_BYTES,
    FORM: tl.constexpr,
):
    """All that one page's logits need, side by side: keys, scales, q and weights.

    For a page by itself, which has nothing to hide its loads behind but each other.
    """
    # The barriers hold the assembler to an order: left to itself it asks for weights and scales late.
    if FORM == "memory":
        # Passed while the page's number is on its way.
        weight = load_weights(weights_ptr, row, HEADS)
        tl.debug_barrier()
        q = load_q(q_ptr, row, HEADS, DIM, PAGE, FORM)
        key, scale = load_page(kv_ptr, id, DIM, PAGE, PAGE_BYTES, FORM)
    elif FORM == "warps":
        # Passed while the keys are; q, which all rows' programs read, is there before them.
        weight = load_weights(weights_ptr, row, HEADS)
        key, scale = load_page_by_lanes(kv_ptr, id, DIM, PAGE, PAGE_BYTES, FORM)
        tl.debug_barrier()
        q = load_q(q_ptr, row, HEADS, DIM, PAGE, FORM)
    else:
        # Here late is well: behind q's stores to shared memory and before the keys are there.
        weight = load_weights(weights_ptr, row, HEADS)
        q = load_q(q_ptr, row, HEADS, DIM, PAGE, FORM)
        key, scale = load_page_by_lanes(kv_ptr, id, DIM, PAGE, PAGE_BYTES, FORM)
    return key, scale, q, weight


@triton.jit
def logits(key, scale, q, weight, DOT_DTYPE: tl.constexpr, FORM: tl.constexpr):
    """The row's logits [PAGE], or [PAGE // 16, 16] for warps, of what the loads gave."""
    key = _as_dot_operand(key, DOT_DTYPE)
    q = _as_dot_operand(q, DOT_DTYPE)
    score = tl.dot(key, q, input_precision="ieee")  # [..., HEADS]
    if FORM == "warps":
        return tl.sum(tl.maximum(score, 0.0) * weight[None, None, :], 2) * scale
    else:
        return tl.sum(tl.maximum(score, 0.0) * weight[None, :], 1) * scale


@triton.jit
def store(
    row_out,
    index,
    length,
    logit,
    PAGE: tl.constexpr,
    FORM: tl.constexpr,
    PTX: tl.constexpr,
):
    """Write a page's logits as far as the row goes."""
    position = index * PAGE + keys_of_page(PAGE, FORM)
    if PTX:
        # From the registers in which the products left them. Triton's own store spreads them over all threads
        # first, for whole lines, through shared memory and past two barriers.
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,f,r",
            [
                (row_out + position).to(tl.int64),
                logit,
                (position < length).to(tl.int32),
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(row_out + position, logit, mask=position < length)
