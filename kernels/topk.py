"""Exact top-512 of DeepSeek-V4's indexer, with the page-table transform, in one launch.

A key can be among the K largest only if its group of neighbours (32 for K = 512, 16 for 1,024) is among
the K groups with the largest maxima. So a long row is read once, spread over the whole GPU, and leaves one
maximum per group; the program that finishes a row last selects K groups by their maxima, reads their
keys again and selects K of those. A row of at most 16,384 keys is selected by one program, and of a row of
at most K keys no score is read. No program waits for another.

A selection keeps its keys in registers and first drops what is below a floor: of the largest of every two
neighbours, the K-th. Of the few keys left it counts those of an interval that holds the K-th largest in a
histogram in shared memory, and goes on with the bin that holds it, until that is one value or few keys: one or
two rounds. Where most keys would lie in a few bins, the outliers above them are counted apart and the bins are of
the others' interval; a bin that is gone on with is cut to what its keys take up, so that a few values, each many
times, are soon one. No step takes longer because keys are sorted.

CUDA C++ (``topk.cu``), because Triton has no atomics on shared memory: the same plan in Triton, exact too,
took 1.7 to 2.1 times as long on an H200.

Bytes moved per key: 4 read, 1/8 written; then 4 * 16,384 read again per row.
Deterministic: which program finishes a row last changes nothing that it computes.
"""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

from .checks import Checks
from .config import sm_count
from .cuda_cpp import CudaKernel, CudaLaunch


@dataclass(frozen=True)
class TopkConfig:
    """Launch shape of the top-k kernel.

    A row of at most 2**``log_tile`` keys is selected by one program, which keeps them in registers;
    2**``log_bins`` is the size of its histogram.
    """

    threads: int
    log_tile: int
    log_bins: int
    programs_per_sm: int

    def shared_bytes(self, k: int) -> int:
        """Shared memory of a block: ``Shared`` of topk.cu."""
        candidates = 2 * 4 * self.threads
        bins = max(2**self.log_bins, 4 * self.threads)
        warps = self.threads // 32
        rest = 4 + 2 * 32 + 4 * 4 + 2 + 4 * warps + self.threads + 11
        size = 4 * (candidates + bins + k + rest)
        return -(-size // 16) * 16


# Two programs on an SM are what registers allow without spills, 64 for each thread; K = 1,024 takes more.
CONFIGS = {
    512: TopkConfig(threads=512, log_tile=14, log_bins=11, programs_per_sm=2),
    1024: TopkConfig(threads=512, log_tile=14, log_bins=11, programs_per_sm=1),
}


@dataclass(frozen=True)
class TopkWorkspace:
    """What the programs of one launch leave for each other.

    ``arrived`` int32 [rows]: zero before the first launch, and left zero by each. ``maxima`` int32: any
    contents, before and after.
    """

    arrived: torch.Tensor
    maxima: torch.Tensor


class _Rows(Structure):
    """``Rows`` of topk.cu."""

    _fields_ = [
        *((name, c_void_p) for name in ("scores", "lengths", "table", "out", "raw")),
        *((name, c_void_p) for name in ("arrived", "maxima")),
        *((f"stride_{name}", c_int64) for name in ("scores", "length", "table")),
        ("stride_maxima", c_int64),
        *((name, c_int32) for name in ("batch", "width", "page_bits", "quads")),
    ]


def topk_workspace(
    batch: int, max_seq_len: int, k: int, device: torch.device | str
) -> TopkWorkspace:
    """Workspace for calls of up to ``batch`` rows of up to ``max_seq_len`` scores.

    One launch at a time may use it: one per stream. At most 1/32 of the scores' bytes (K = 512; 1/16 for
    1,024), and none for rows of at most 16,384 scores.
    """
    checks = _checks(torch.device(device))
    checks.expect(k in CONFIGS, "k", f"one of {tuple(CONFIGS)}", k)
    return TopkWorkspace(
        arrived=torch.zeros(batch, dtype=torch.int32, device=device),
        maxima=torch.empty(
            batch * row_maxima(max_seq_len, k), dtype=torch.int32, device=device
        ),
    )


def row_maxima(width: int, k: int) -> int:
    """Integers for the maxima of a row's groups, of K groups to a tile; and for those of its groups of
    groups, if the former don't fit a tile either."""
    tile = 2 ** CONFIGS[k].log_tile
    total, count = 0, width
    while count > tile:
        count = -(-count // (tile // k))
        total += -(-count // 4) * 4
    return total


def _widest(out_page_indices: torch.Tensor) -> int:
    """Scores of a row whose maxima of maxima still fit a tile: 2**24 for K = 512, 2**22 for 1,024."""
    k = out_page_indices.shape[-1]
    if k not in CONFIGS:
        return 2**24
    tile = 2 ** CONFIGS[k].log_tile
    return tile * (tile // k) ** 2


def topk_page_indices(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: Optional[torch.Tensor] = None,
    *,
    workspace: Optional[TopkWorkspace] = None,
) -> None:
    """Where the K largest of each row's first ``seq_len`` scores are in the paged cache.

    ================  =====================  ========================================================
    scores            f32    [B, S]          unit column stride; rows may be strided; S <= 2**24, or 2**22
                                             for K = 1,024
    seq_lens          int32  [B] or [B, 1]   scores per row; <= 0 is an empty row
    page_table        int32  [B, P]          P >= ceil(S / page_size); may be a slice of columns
    out_page_indices  int32  [B, K]          contiguous, K = 512 or 1,024
    out_raw_indices   int32  [B, K]          contiguous, optional: the positions themselves
    ================  =====================  ========================================================

    ``page_size`` is a power of two; position ``i`` becomes
    ``page_table[i // page_size] * page_size + i % page_size``.

    A row of at most K scores gives all its positions in order, then -1; its scores are not read. A longer
    one gives the positions of its K largest in ascending order, ties at the boundary to the lowest
    positions: set and order are functions of the scores alone. Exact for every distribution; -0.0 equals
    0.0, -inf is the smallest value. With NaN inside, K distinct positions of the row: one with the sign
    bit clear counts as larger than +inf, one with it set as smaller than -inf. Nothing beyond a length is
    read, of the scores or of the page table.

    ``workspace``: from ``topk_workspace`` for at least B rows of S scores; allocated when None.

    Raises ValueError on a bad shape, dtype, stride or device.
    """
    if workspace is None and scores.dim() == 2 and out_page_indices.dim() == 2:
        k = out_page_indices.shape[1]
        if k in CONFIGS:
            workspace = topk_workspace(*scores.shape, k, scores.device)
    launch = plan(
        scores,
        seq_lens,
        page_table,
        out_page_indices,
        page_size,
        out_raw_indices,
        workspace=workspace,
    )
    if scores.shape[0] > 0:
        _checks(scores.device).expect(
            scores.is_cuda, "scores device", "a CUDA device", scores.device
        )
        launch.run(scores.device)


def plan(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: Optional[torch.Tensor] = None,
    *,
    workspace: Optional[TopkWorkspace],
) -> CudaLaunch:
    """The launch that ``topk_page_indices`` runs for these arguments; checks them."""
    checks = _checks(scores.device)
    _check(
        checks,
        scores,
        seq_lens,
        page_table,
        out_page_indices,
        page_size,
        out_raw_indices,
    )
    batch, width = scores.shape
    k = out_page_indices.shape[1]
    sms = sm_count(scores.device)
    # Maxima are aligned in any case: their rows are multiples of four integers.
    aligned = scores.data_ptr() % 16 == 0 and (batch <= 1 or scores.stride(0) % 4 == 0)
    # A second program on each SM costs its launch, and helps where each has several rows. Where no row is so
    # long that programs share it, there is one for each row at most.
    programs = min(CONFIGS[k].programs_per_sm, max(1, -(-batch // sms))) * sms
    if width <= 2 ** CONFIGS[k].log_tile:
        programs = max(1, min(programs, batch))
    outputs = (out_page_indices, out_raw_indices)
    quads = page_size >= 4 and all(
        out is None or out.data_ptr() % 16 == 0 for out in outputs
    )
    _check_workspace(checks, workspace, batch, batch * row_maxima(width, k))
    return CudaLaunch(
        kernel=kernel(k, aligned),
        grid=programs,
        block=CONFIGS[k].threads,
        argument=_Rows(
            scores=scores.data_ptr(),
            lengths=seq_lens.data_ptr(),
            table=page_table.data_ptr(),
            out=out_page_indices.data_ptr(),
            raw=None if out_raw_indices is None else out_raw_indices.data_ptr(),
            arrived=workspace.arrived.data_ptr(),
            maxima=workspace.maxima.data_ptr(),
            stride_scores=scores.stride(0),
            stride_length=seq_lens.stride(0),
            stride_table=page_table.stride(0),
            stride_maxima=row_maxima(width, k),
            batch=batch,
            width=width,
            page_bits=page_size.bit_length() - 1,
            quads=quads,
        ),
        tensors=(
            scores,
            seq_lens,
            page_table,
            out_page_indices,
            out_raw_indices,
            workspace,
        ),
        overlap=True,
    )


def kernel(k: int, aligned: bool = True) -> CudaKernel:
    """The kernel for K = 512 or 1,024, for rows that start at multiples of 16 bytes or anywhere: all that is
    compiled; every other argument is read at run time."""
    config = CONFIGS[k]
    constants = dict(
        K=k,
        ALIGNED=int(aligned),
        THREADS=config.threads,
        LOG_TILE=config.log_tile,
        LOG_BINS=config.log_bins,
        # Loads of single keys take more registers.
        PROGRAMS_PER_SM=config.programs_per_sm if aligned else 1,
        SHARED_BYTES=config.shared_bytes(k),
    )
    return CudaKernel(
        source=Path(__file__).with_name("topk.cu"),
        name="topk_page_indices",
        constants=tuple(constants.items()),
        shared_bytes=config.shared_bytes(k),
    )


def _checks(device: torch.device) -> Checks:
    return Checks("topk_page_indices", "scores", device)


def _check(
    checks, scores, seq_lens, page_table, out_page_indices, page_size, out_raw_indices
) -> None:
    limit = _widest(out_page_indices)
    checks.expect(
        scores.dim() == 2 and scores.shape[1] <= limit,
        "scores shape",
        f"[B, S <= {limit}]",
        tuple(scores.shape),
    )
    batch, width = scores.shape
    checks.tensor("scores", scores, torch.float32, (batch, width))
    checks.unit_columns("scores", scores)
    checks.lengths("seq_lens", seq_lens, batch)
    checks.expect(
        page_size > 0 and page_size & (page_size - 1) == 0,
        "page_size",
        "a power of two",
        page_size,
    )
    checks.page_table("page_table", page_table, batch, -(-width // page_size))

    shape = tuple(out_page_indices.shape)
    checks.expect(
        len(shape) == 2 and shape[0] == batch and shape[1] in CONFIGS,
        "out_page_indices shape",
        f"[{batch}, K in {tuple(CONFIGS)}]",
        shape,
    )
    checks.tensor("out_page_indices", out_page_indices, torch.int32, shape)
    checks.contiguous("out_page_indices", out_page_indices)
    if out_raw_indices is not None:
        checks.tensor("out_raw_indices", out_raw_indices, torch.int32, shape)
        checks.contiguous("out_raw_indices", out_raw_indices)


def _check_workspace(checks, workspace, batch, maxima) -> None:
    for name, tensor, size in (
        ("workspace.arrived", workspace.arrived, batch),
        ("workspace.maxima", workspace.maxima, maxima),
    ):
        checks.expect(
            tensor.numel() >= size, f"{name} size", f">= {size}", tensor.numel()
        )
        checks.tensor(name, tensor, torch.int32, tensor.shape)
