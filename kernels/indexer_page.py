"""Logits of one row against one page of the indexer's key cache: the loads, the products and the store.

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
def load_q(q_ptr, row, HEADS: tl.constexpr, DIM: tl.constexpr):
    """q [HEADS, DIM] of a row."""
    offs_head = tl.arange(0, HEADS)
    offs_dim = tl.arange(0, DIM)
    offs = offs_head[:, None] * DIM + offs_dim[None, :]
    return tl.load(q_ptr + row * (HEADS * DIM) + offs)


@triton.jit
def load_weights(weights_ptr, row, HEADS: tl.constexpr):
    """The weights [HEADS] of a row's heads."""
    return tl.load(weights_ptr + row * HEADS + tl.arange(0, HEADS))


@triton.jit
def load_page(kv_ptr, id, DIM: tl.constexpr, PAGE: tl.constexpr, PAGE_BYTES):
    """Keys [PAGE, DIM] and their scales [PAGE] of the page of a number."""
    offs_key = tl.arange(0, PAGE)
    offs_dim = tl.arange(0, DIM)
    page = kv_ptr + id.to(tl.int64) * PAGE_BYTES
    scale = tl.load((page + PAGE * DIM).to(tl.pointer_type(tl.float32)) + offs_key)
    # As e4m3, not as bytes: reinterpreted after the load, they would pass through registers on their way from
    # shared memory to the products.
    key = page.to(tl.pointer_type(tl.float8e4nv))
    key = tl.load(key + offs_key[:, None] * DIM + offs_dim[None, :])
    return key, scale


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
):
    """All that one page's logits need, side by side: keys, scales, q and weights.

    For a share of one page, which has nothing to hide its loads behind but each other.
    """
    weight = load_weights(weights_ptr, row, HEADS)
    # Passed while the page's number is on its way. Without it the assembler loads the weights only once q and the
    # keys are there.
    tl.debug_barrier()
    q = load_q(q_ptr, row, HEADS, DIM)
    key, scale = load_page(kv_ptr, id, DIM, PAGE, PAGE_BYTES)
    return key, scale, q, weight


@triton.jit
def logits(key, scale, q, weight, DOT_DTYPE: tl.constexpr):
    """The row's logits [PAGE], of what the loads gave."""
    key = _as_dot_operand(key, DOT_DTYPE)
    q_t = tl.trans(_as_dot_operand(q, DOT_DTYPE))
    score = tl.dot(key, q_t, input_precision="ieee")  # [PAGE, HEADS]
    return tl.sum(tl.maximum(score, 0.0) * weight[None, :], 1) * scale


@triton.jit
def store(row_out, index, length, logit, PAGE: tl.constexpr, PTX: tl.constexpr):
    """Write a page's logits as far as the row goes."""
    position = index * PAGE + tl.arange(0, PAGE)
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
