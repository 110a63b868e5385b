"""Logits of DeepSeek-V4's sparse-attention indexer over a paged fp8 key cache.

    logit[b, s] = kscale[s] * sum_h relu(q[b, h] . k[s]) * w[b, h]

A fixed grid shares out the pages that the lengths ask for. So the cost follows the text and not the
width of the page table, one long row among short ones is spread over the whole GPU, and a captured
CUDA graph stays right when lengths change between replays.

Bytes moved per (row, key): 128 of e4m3 and 4 of scale read, 4 written; 2 * H * 128 flop.
Deterministic: a (row, key) logit is computed by one program in one order, so it has the same bits
whatever the batch, the grid or the width.
"""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .checks import Checks
from .config import (
    SM120,
    Launch,
    can_overlap_launches,
    has_large_sms,
    sm_count,
)
from .indexer_config import (
    CONFIGS,
    DIM,
    DOT_DTYPES,
    FEW_ROWS,
    FORMS,
    HEAD_COUNTS,
    PAGE,
    TOKEN_BYTES,
    form_for,
)
from .indexer_page import (
    load_page,
    load_q,
    load_row_and_page,
    load_weights,
    logits,
    store,
)
from .indexer_rows import find_row, page_ends, pages_of


@triton.jit(
    do_not_specialize=[
        "batch",
        "max_seq_len",
        "skip_below",
        "stride_len",
        "stride_table",
        "stride_out",
    ],
    do_not_specialize_on_alignment=["weights_ptr", "lens_ptr", "table_ptr", "out_ptr"],
)
def _paged_mqa_logits_kernel(
    q_ptr,
    kv_ptr,
    weights_ptr,
    lens_ptr,
    table_ptr,
    out_ptr,
    batch,
    max_seq_len,
    skip_below,
    stride_len,
    stride_table,
    stride_out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    LANES: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
    OVERLAP: tl.constexpr,
    FEW: tl.constexpr,
    FORM: tl.constexpr,
    LOOP_FORM: tl.constexpr,
):
    """Each program takes an equal share of the pages that all rows ask for.

    ``FEW``: one block has all rows, and their lengths lie side by side. ``FORM`` is that of a page by itself,
    ``LOOP_FORM`` that of several pages of a row.
    """
    if FEW:
        stride_len = 1
    # Ahead of the wait, so that the arguments are read by then; no memory that a kernel writes is.
    rows = 2 * tl.arange(0, LANES)
    lens_at = lens_ptr + rows.to(tl.int64) * stride_len
    if OVERLAP:
        # Launched while the kernel before may still run: nothing of it is read or overwritten before this.
        gdc_wait()
        gdc_launch_dependents()

    ends, more_ends, block_pages = page_ends(
        lens_at, rows, stride_len, batch, max_seq_len, skip_below, PAGE, PTX
    )
    total = block_pages
    if not FEW:
        for row0 in range(2 * LANES, batch, LANES):
            single = row0 + tl.arange(0, LANES)
            at = lens_ptr + single.to(tl.int64) * stride_len
            total += tl.sum(
                pages_of(at, single, batch, max_seq_len, skip_below, PAGE), 0
            )

    if total <= tl.num_programs(0):
        # At most one page each, found by a path of its own: no time for what only a longer share needs.
        work = tl.program_id(0)
        if work < total:
            row0 = 0
            if not FEW:
                while work >= block_pages:
                    work -= block_pages
                    row0 += 2 * LANES
                    later = row0 + rows
                    ends, more_ends, block_pages = page_ends(
                        lens_ptr + later.to(tl.int64) * stride_len,
                        later,
                        stride_len,
                        batch,
                        max_seq_len,
                        skip_below,
                        PAGE,
                        PTX,
                    )
            count, start = find_row(ends, more_ends, work)
            # 64 bits before the strides: row * width and page * bytes both pass 2**31.
            row = (row0 + count).to(tl.int64)
            index = work - start
            id = tl.load(table_ptr + row * stride_table + index)
            length = tl.minimum(tl.load(lens_ptr + row * stride_len), max_seq_len)
            key, scale, q, weight = load_row_and_page(
                q_ptr, kv_ptr, weights_ptr, row, id, HEADS, DIM, PAGE, PAGE_BYTES, FORM
            )
            logit = logits(key, scale, q, weight, DOT_DTYPE, FORM)
            store(out_ptr + row * stride_out, index, length, logit, PAGE, FORM, PTX)
    else:
        share = tl.cdiv(total, tl.num_programs(0))
        first = tl.program_id(0) * share
        last = tl.minimum(first + share, total)
        base = 0  # pages of the rows before row0
        row0 = 0
        while base < last:
            work = tl.maximum(first - base, 0)
            stop = tl.minimum(last - base, block_pages)
            while work < stop:
                count, start = find_row(ends, more_ends, work)
                row = (row0 + count).to(tl.int64)
                length = tl.minimum(tl.load(lens_ptr + row * stride_len), max_seq_len)
                row_table = table_ptr + row * stride_table
                row_out = out_ptr + row * stride_out
                index = work - start
                page_stop = tl.minimum(stop - start, tl.cdiv(length, PAGE))
                if page_stop - index == 1:
                    id = tl.load(row_table + index)
                    key, scale, q, weight = load_row_and_page(
                        q_ptr,
                        kv_ptr,
                        weights_ptr,
                        row,
                        id,
                        HEADS,
                        DIM,
                        PAGE,
                        PAGE_BYTES,
                        FORM,
                    )
                    logit = logits(key, scale, q, weight, DOT_DTYPE, FORM)
                    store(row_out, index, length, logit, PAGE, FORM, PTX)
                else:
                    q = load_q(q_ptr, row, HEADS, DIM, PAGE, LOOP_FORM)
                    weight = load_weights(weights_ptr, row, HEADS)
                    for index in tl.range(index, page_stop, num_stages=STAGES):
                        id = tl.load(row_table + index)
                        key, scale = load_page(
                            kv_ptr, id, DIM, PAGE, PAGE_BYTES, LOOP_FORM
                        )
                        logit = logits(key, scale, q, weight, DOT_DTYPE, LOOP_FORM)
                        store(row_out, index, length, logit, PAGE, LOOP_FORM, PTX)
                work = start + page_stop
            base += block_pages
            row0 += 2 * LANES
            if not FEW:
                if base < last:
                    later = row0 + rows
                    ends, more_ends, block_pages = page_ends(
                        lens_ptr + later.to(tl.int64) * stride_len,
                        later,
                        stride_len,
                        batch,
                        max_seq_len,
                        skip_below,
                        PAGE,
                        PTX,
                    )


def paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    max_seq_len: int,
    *,
    out: Optional[torch.Tensor] = None,
    fill_tail: bool = False,
    skip_below: int = 0,
    dot_dtype: str = "fp8",
    num_sms: Optional[int] = None,
) -> torch.Tensor:
    """Indexer logits at the cost of the actual lengths.

    ==========  ===========================  ========================================================
    q           e4m3   [B, 1, H, 128]        contiguous, H in 16, 32, 64, 128
    kv_cache    uint8  [pages, 64, 1, 132]   per page 64 x 128 e4m3 bytes, then 64 float32 scales; the
                                             page stride may be larger, a multiple of 16 bytes
    weights     f32    [B, H]                contiguous
    seq_lens    int32  [B] or [B, 1]         keys per row; <= 0 is an empty row
    page_table  int32  [B, P]                P >= ceil(max_seq_len / 64); may be a slice of columns
    out         f32    [B, max_seq_len]      unit column stride; allocated when None
    ==========  ===========================  ========================================================

    Only positions ``s < seq_len`` are written. ``fill_tail`` first sets all of ``out`` to -inf, at the
    cost of the whole width (for parity tests). Rows with ``seq_len <= skip_below`` are not computed:
    a top-k of that many takes all their keys, whatever the scores.

    ``dot_dtype``: ``fp8`` multiplies the stored bytes on the tensor cores; ``bf16`` gives the products
    of float32 exactly (e4m3 converts without loss); ``fp32`` is for the Triton interpreter, whose bf16
    dot is wrong. All accumulate in float32.

    ``num_sms`` sizes the grid; None asks the device. It changes no bit of the result.

    Returns ``out``. Raises ValueError on a bad shape, dtype, stride or alignment.
    """
    if out is None and q.dim() == 4:
        out = torch.empty(
            (q.shape[0], max_seq_len), dtype=torch.float32, device=q.device
        )
    launch = plan(
        q,
        kv_cache,
        weights,
        seq_lens,
        page_table,
        max_seq_len,
        out,
        skip_below=skip_below,
        dot_dtype=dot_dtype,
        num_sms=num_sms,
    )
    if fill_tail:
        out.fill_(float("-inf"))
    if out.numel() > 0:
        launch.run()
    return out


def plan(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    max_seq_len: int,
    out: torch.Tensor,
    *,
    skip_below: int = 0,
    dot_dtype: str = "fp8",
    num_sms: Optional[int] = None,
    overlap: Optional[bool] = None,
    form: Optional[str] = None,
) -> Launch:
    """The launch that ``paged_mqa_logits`` runs for these arguments; checks them.

    ``overlap``: start while the kernel before still runs, and wait for it on the GPU; None: where the device
    of ``q`` can. ``form``: one of FORMS; None: that of the device of ``q``. Each is right on every device.
    """
    _check(q, kv_cache, weights, seq_lens, page_table, max_seq_len, out, dot_dtype)
    config = CONFIGS[dot_dtype]
    sms = sm_count(q.device) if num_sms is None else num_sms
    large = has_large_sms(q.device)
    if overlap is None:
        overlap = can_overlap_launches(q.device)
    programs = config.programs_per_large_sm if large else config.programs_per_sm
    if q.shape[2] == 128:
        # Twice the accumulators: no more than two fit an SM.
        programs = min(programs, 2)
    threads = programs * config.num_warps * 32
    few = q.shape[0] <= FEW_ROWS and seq_lens.stride(0) == 1
    if form is None:
        form = form_for(q.device, q.shape[2], dot_dtype, few)
    by_itself, in_a_loop = FORMS[form]
    return Launch(
        kernel=_paged_mqa_logits_kernel,
        grid=(programs * sms,),
        args=dict(
            q_ptr=q,
            kv_ptr=kv_cache,
            weights_ptr=weights,
            lens_ptr=seq_lens,
            table_ptr=page_table,
            out_ptr=out,
            batch=q.shape[0],
            max_seq_len=max_seq_len,
            skip_below=skip_below,
            stride_len=seq_lens.stride(0),
            stride_table=page_table.stride(0),
            stride_out=out.stride(0),
            HEADS=q.shape[2],
            DIM=DIM,
            PAGE=PAGE,
            PAGE_BYTES=kv_cache.stride(0),
            LANES=FEW_ROWS // 2,
            DOT_DTYPE=DOT_DTYPES[dot_dtype],
            STAGES=config.num_stages,
            # The interpreter knows no assembly.
            PTX=not triton.knobs.runtime.interpret,
            OVERLAP=overlap,
            FEW=few,
            FORM=by_itself,
            LOOP_FORM=in_a_loop,
        ),
        options=dict(
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            launch_pdl=overlap,
            # What each thread can have while all programs are resident. Left to itself the assembler
            # aims at more programs, and spills for them.
            maxnreg=min(255, SM120.registers_per_sm // threads // 8 * 8),
        ),
    )


def _check(
    q, kv_cache, weights, seq_lens, page_table, max_seq_len, out, dot_dtype
) -> None:
    checks = Checks("paged_mqa_logits", "q", q.device)
    expect = checks.expect
    expect(
        dot_dtype in DOT_DTYPES, "dot_dtype", f"one of {sorted(DOT_DTYPES)}", dot_dtype
    )
    expect(max_seq_len >= 0, "max_seq_len", ">= 0", max_seq_len)

    shape = tuple(q.shape)
    expect(
        len(shape) == 4
        and shape[1] == 1
        and shape[2] in HEAD_COUNTS
        and shape[3] == DIM,
        "q shape",
        f"[B, 1, H in {HEAD_COUNTS}, {DIM}]",
        shape,
    )
    batch, heads = shape[0], shape[2]
    checks.tensor("q", q, torch.float8_e4m3fn, shape)
    checks.contiguous("q", q)
    checks.aligned("q", q, 16)

    pages = kv_cache.shape[0]
    checks.tensor("kv_cache", kv_cache, torch.uint8, (pages, PAGE, 1, TOKEN_BYTES))
    stride = kv_cache.stride()
    expect(
        stride[1] == TOKEN_BYTES
        and stride[3] == 1
        and stride[0] >= PAGE * TOKEN_BYTES
        and stride[0] % 16 == 0,
        "kv_cache strides",
        f"(>= {PAGE * TOKEN_BYTES} and a multiple of 16, {TOKEN_BYTES}, any, 1)",
        stride,
    )
    checks.aligned("kv_cache", kv_cache, 16)

    checks.tensor("weights", weights, torch.float32, (batch, heads))
    checks.contiguous("weights", weights)
    checks.lengths("seq_lens", seq_lens, batch)
    checks.page_table("page_table", page_table, batch, -(-max_seq_len // PAGE))
    checks.tensor("out", out, torch.float32, (batch, max_seq_len))
    checks.unit_columns("out", out)
