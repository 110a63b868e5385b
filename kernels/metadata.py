"""Per-step metadata of the compressed caches: where each token writes, how many entries each row reads.

    c4:   out_loc = raw // 4 if len % 4 == 0 else 0      entries = len // 4     position = pos & ~3
    c128: out_loc = raw // 128 if len % 128 == 0 else 0  entries = len // 128   position = pos & ~127
    c128_page_indices[b, t] = page_table[b, t // n] * n + t % n for t < entries, n = page_size // 128

The width of the table is a run-time value and only the entries that a row reads are written. Upstream
compiles one kernel for each width, of which prefill has one per 256 tokens, and fills the whole width.

Bytes: 12 to 20 read and 28 written for a row, 4 written for an entry.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .checks import Checks
from .config import Launch

C128 = 128
# Indices in a row are read by attention kernels in tiles of this many.
WIDTH_MULTIPLE = 64
BLOCK = 1024


class CompressionMetadata(NamedTuple):
    """int32 [B] each, but ``c128_page_indices``: int32 [B, W], W a multiple of 64.

    A row of ``c128_page_indices`` holds max(len // 128, 1) entries, -1 for the one of a row without
    any; what follows is not written.
    """

    c4_out_loc: torch.Tensor
    c4_positions: torch.Tensor
    c4_lens: torch.Tensor
    c4_lens_clamp1: torch.Tensor
    c128_out_loc: torch.Tensor
    c128_positions: torch.Tensor
    c128_lens_clamp1: torch.Tensor
    c128_page_indices: torch.Tensor


@triton.jit(
    do_not_specialize=["capacity", "stride_scalars", "stride_table", "stride_indices"],
    do_not_specialize_on_alignment=[
        "lens_ptr",
        "positions_ptr",
        "raw_out_loc_ptr",
        "table_ptr",
    ],
)
def _compression_metadata_kernel(
    lens_ptr,
    positions_ptr,
    raw_out_loc_ptr,
    table_ptr,
    scalars_ptr,
    indices_ptr,
    capacity,
    stride_scalars,
    stride_table,
    stride_indices,
    PER_PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lens_ptr + row).to(tl.int32)
    position = tl.load(positions_ptr + row).to(tl.int32)
    raw_out_loc = tl.load(raw_out_loc_ptr + row).to(tl.int32)

    # One value a row each, in the order of CompressionMetadata.
    c128_len = length // 128
    c4_slot = tl.where(length % 4 == 0, raw_out_loc // 4, 0)
    c128_slot = tl.where(length % 128 == 0, raw_out_loc // 128, 0)
    scalar = scalars_ptr + row
    tl.store(scalar, c4_slot)
    tl.store(scalar + stride_scalars, position & -4)
    tl.store(scalar + 2 * stride_scalars, length // 4)
    tl.store(scalar + 3 * stride_scalars, tl.maximum(length // 4, 1))
    tl.store(scalar + 4 * stride_scalars, c128_slot)
    tl.store(scalar + 5 * stride_scalars, position & -128)
    tl.store(scalar + 6 * stride_scalars, tl.maximum(c128_len, 1))

    # Attention clamps a length of 0 to 1 and knows the missing entry by its -1.
    real = tl.minimum(c128_len, capacity)
    written = tl.minimum(tl.maximum(real, 1), stride_indices)
    row_table = table_ptr + row * stride_table
    row_indices = indices_ptr + row * stride_indices
    for start in range(0, written, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        page = tl.load(row_table + entry // PER_PAGE, mask=entry < real, other=0)
        index = tl.where(entry < real, page * PER_PAGE + entry % PER_PAGE, -1)
        tl.store(row_indices + entry, index, mask=entry < written)


def compression_metadata(
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    raw_out_loc: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> CompressionMetadata:
    """Metadata of one step or chunk.

    ============  ==========  ======================================================================
    seq_lens      int [B]     raw tokens of each row, this one included
    positions     int [B]     raw position of each row's token
    raw_out_loc   int [B]     cache slot that the token is written to
    page_table    int32 [B,P] pages of ``page_size`` raw tokens; may be a slice of columns
    page_size     int         a multiple of 128
    ============  ==========  ======================================================================

    Entries past a row's length, and the pages of the table there, are neither read nor written. Raises
    ValueError on a bad shape, dtype or stride.
    """
    launch, result = plan(seq_lens, positions, raw_out_loc, page_table, page_size)
    if seq_lens.shape[0]:
        launch.run()
    return result


def plan(
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    raw_out_loc: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> tuple[Launch, CompressionMetadata]:
    """The launch that ``compression_metadata`` runs, and the tensors that it fills."""
    _check(seq_lens, positions, raw_out_loc, page_table, page_size)
    batch, pages = page_table.shape
    per_page = page_size // C128
    width = _round_up(per_page * pages, WIDTH_MULTIPLE)
    device = seq_lens.device
    # Rows start at multiples of 16 bytes, as separate tensors would: other kernels compile for that.
    scalars = torch.empty((7, _round_up(batch, 4)), dtype=torch.int32, device=device)
    indices = torch.empty((batch, width), dtype=torch.int32, device=device)
    launch = Launch(
        kernel=_compression_metadata_kernel,
        grid=(batch,),
        args=dict(
            lens_ptr=seq_lens,
            positions_ptr=positions,
            raw_out_loc_ptr=raw_out_loc,
            table_ptr=page_table,
            scalars_ptr=scalars,
            indices_ptr=indices,
            capacity=per_page * pages,
            stride_scalars=scalars.stride(0),
            stride_table=page_table.stride(0),
            stride_indices=width,
            PER_PAGE=per_page,
            BLOCK=BLOCK,
        ),
        options=dict(num_warps=4),
    )
    return launch, CompressionMetadata(*scalars[:, :batch], indices)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _check(seq_lens, positions, raw_out_loc, page_table, page_size) -> None:
    checks = Checks("compression_metadata", "seq_lens", seq_lens.device)
    checks.expect(
        page_size > 0 and page_size % C128 == 0,
        "page_size",
        f"a positive multiple of {C128}",
        page_size,
    )
    shape = tuple(seq_lens.shape)
    checks.expect(len(shape) == 1, "seq_lens shape", "[B]", shape)
    vectors = dict(seq_lens=seq_lens, positions=positions, raw_out_loc=raw_out_loc)
    for name, tensor in vectors.items():
        checks.expect(
            tensor.dtype in (torch.int32, torch.int64),
            f"{name} dtype",
            "int32 or int64",
            tensor.dtype,
        )
        checks.tensor(name, tensor, tensor.dtype, shape)
        checks.contiguous(name, tensor)
    checks.page_table("page_table", page_table, shape[0], 0)
