"""Weighted sum of the hyper-connection streams of DeepSeek-V4, with the bits that torch gives, in one launch.

    out[t, d] = bf16(((w[t, 0] * x[t, 0, d] + w[t, 1] * x[t, 1, d]) + ...)), each step rounded to float32

Torch needs three launches for it and writes the float32 products.

Bytes moved: 2 * T * H * D read, 2 * T * D written.
"""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl

from .checks import Checks
from .config import Launch

# Eight bytes a thread and stream: what was fastest of five shapes on an H200, by little.
BLOCK = 1024
WARPS = 8
OUT_DTYPES = (torch.bfloat16, torch.float32)


@triton.jit
def _weighted_sum_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    STREAMS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < DIM
    total = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(STREAMS):
        at = x_ptr + (row * STREAMS + stream) * DIM + offs
        x = tl.load(at, mask=inside, other=0).to(tl.float32)
        total += tl.load(w_ptr + row * STREAMS + stream) * x
    tl.store(
        out_ptr + row * DIM + offs, total.to(out_ptr.dtype.element_ty), mask=inside
    )


def hc_weighted_sum(
    x: torch.Tensor, w: torch.Tensor, *, out: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """``(w[:, :, None] * x.float()).sum(1).to(torch.bfloat16)``, bit for bit.

    =====  ===============  =====================================================================
    x      bf16  [T, H, D]  contiguous
    w      f32   [T, H]     contiguous
    out    bf16  [T, D]     contiguous; allocated when None. Or f32, not rounded: for the Triton
                            interpreter, which rounds to bf16 wrongly
    =====  ===============  =====================================================================

    Returns ``out``. Raises ValueError on a bad shape, dtype, stride, alignment or device.
    """
    if out is None and x.dim() == 3:
        out = torch.empty(
            (x.shape[0], x.shape[2]), dtype=torch.bfloat16, device=x.device
        )
    launch = plan(x, w, out)
    if out.numel() > 0:
        launch.run()
    return out


def plan(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch that ``hc_weighted_sum`` runs for these arguments; checks them."""
    checks = Checks("hc_weighted_sum", "x", x.device)
    checks.expect(x.dim() == 3, "x shape", "[T, H, D]", tuple(x.shape))
    rows, streams, dim = x.shape
    checks.tensor("x", x, torch.bfloat16, x.shape)
    checks.tensor("w", w, torch.float32, (rows, streams))
    checks.expect(
        out.dtype in OUT_DTYPES, "out dtype", f"one of {OUT_DTYPES}", out.dtype
    )
    checks.tensor("out", out, out.dtype, (rows, dim))
    for name, tensor in (("x", x), ("w", w), ("out", out)):
        checks.contiguous(name, tensor)
        checks.aligned(name, tensor, 16)
    return Launch(
        kernel=_weighted_sum_kernel,
        grid=(rows, -(-dim // BLOCK)),
        args=dict(x_ptr=x, w_ptr=w, out_ptr=out, STREAMS=streams, DIM=dim, BLOCK=BLOCK),
        # A product and a sum in one instruction would round once, where torch rounds twice.
        options=dict(num_warps=WARPS, enable_fp_fusion=False),
    )
