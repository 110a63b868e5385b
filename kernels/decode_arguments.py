"""The argument of the attention kernel, ``Arguments`` of decode.cu, and what its tensors have to be."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Optional

import torch

from .checks import Checks

DIMS = 512
KEY_BYTES = 576
SCALE_BYTES = 8
MAX_HEADS = 128


class Cache(Structure):
    """``Cache`` of decode.cu."""

    _fields_ = [
        *((name, c_void_p) for name in ("pages", "indices", "lengths")),
        *((f"stride_{name}", c_int64) for name in ("indices", "length")),
        *((name, c_int32) for name in ("page_bytes", "page_bits", "width", "unused")),
    ]


class Arguments(Structure):
    """``Arguments`` of decode.cu."""

    _fields_ = [
        *((name, Cache) for name in ("near", "far")),
        *((name, c_void_p) for name in ("q", "sink", "out", "lse")),
        *((name, c_void_p) for name in ("partials", "counters")),
        *((f"stride_q_{name}", c_int64) for name in ("row", "head")),
        ("scale_log2", c_float),
        *((name, c_int32) for name in ("rows", "heads", "groups", "whole")),
    ]


def cache_argument(
    checks: Checks,
    prefix: str,
    pages: torch.Tensor,
    indices: torch.Tensor,
    lengths: Optional[torch.Tensor],
    batch: int,
) -> Cache:
    """One of the two caches with the keys that the rows attend to; raises ValueError on what the kernel can't read."""
    name = f"{prefix}k_cache"
    token = KEY_BYTES + SCALE_BYTES
    checks.expect(
        pages.dim() == 4 and tuple(pages.shape[2:]) == (1, token),
        f"{name} shape",
        f"[pages, page, 1, {token}]",
        tuple(pages.shape),
    )
    page, stride = pages.shape[1], pages.stride(0)
    checks.expect(
        page > 0 and page & (page - 1) == 0,
        f"{name} page size",
        "a power of two",
        page,
    )
    checks.expect(
        pages.dtype in (torch.uint8, torch.float8_e4m3fn),
        f"{name} dtype",
        "torch.uint8 or torch.float8_e4m3fn",
        pages.dtype,
    )
    checks.tensor(name, pages, pages.dtype, pages.shape)
    checks.expect(
        stride >= page * token and stride % 16 == 0,
        f"{name} strides",
        f"a multiple of 16 from {page * token} up for the pages",
        stride,
    )
    checks.aligned(name, pages, 16)

    name = f"{prefix}indices"
    width = indices.shape[-1] if indices.dim() else 0
    checks.expect(
        tuple(indices.shape) in ((batch, 1, width), (batch, width)),
        f"{name} shape",
        f"[{batch}, 1, K] or [{batch}, K]",
        tuple(indices.shape),
    )
    checks.tensor(name, indices, torch.int32, indices.shape)
    checks.expect(
        indices.stride(-1) == 1 or width <= 1,
        f"{name} strides",
        "unit column stride",
        indices.stride(),
    )
    if lengths is not None:
        checks.tensor(f"{prefix}topk_length", lengths, torch.int32, (batch,))
    return Cache(
        pages=pages.data_ptr(),
        indices=indices.data_ptr(),
        lengths=None if lengths is None else lengths.data_ptr(),
        page_bytes=stride,
        stride_indices=indices.stride(0),
        stride_length=0 if lengths is None else lengths.stride(0),
        width=width,
        page_bits=page.bit_length() - 1,
    )


def check_q(checks: Checks, q: torch.Tensor) -> None:
    """Raises ValueError unless q is as ``sparse_mla_decode`` says."""
    checks.expect(
        q.dim() == 4
        and q.shape[1] == 1
        and 1 <= q.shape[2] <= MAX_HEADS
        and q.shape[3] == DIMS,
        "q shape",
        f"[B, 1, H in 1..{MAX_HEADS}, {DIMS}]",
        tuple(q.shape),
    )
    checks.tensor("q", q, torch.bfloat16, q.shape)
    checks.expect(
        q.stride(3) == 1 and q.stride(0) % 8 == 0 and q.stride(2) % 8 == 0,
        "q strides",
        "multiples of 8, and unit for the dims",
        q.stride(),
    )
    checks.aligned("q", q, 16)


def check_workspace(checks: Checks, workspace, values: int, counters: int) -> None:
    """Raises ValueError unless the workspace has room for so many floats and counters."""
    checks.expect(workspace is not None, "workspace", "a DecodeWorkspace", None)
    for name, tensor, dtype, size in (
        ("workspace.partials", workspace.partials, torch.float32, values),
        ("workspace.counters", workspace.counters, torch.int32, counters),
    ):
        got = tensor.numel()
        checks.expect(got >= size, f"{name} size", f">= {size}", got)
        checks.tensor(name, tensor, dtype, tensor.shape)
        checks.contiguous(name, tensor)
