"""Sparse MLA attention over DeepSeek-V4's paged fp8 caches, on the tensor cores, in one launch.

A row attends to the keys of two caches that its indices name: the sliding window's and, where a layer has
one, the compressed cache's. All heads share one key of 512 dims, which is the value too; so up to 32 heads
are one side of the matrix products, and a key is gathered once for all of them.

The keys of all rows are a list of tiles, cut into equal shares for programs that all run at once: a long row
among short ones is many programs' work, and nothing depends on the width of the index tables. A row that is
no longer than a share is not cut. Where there are programs enough, each row begins with a program of its own,
so that none merges parts of two rows, and all that rows which are not cut leave over are the others'. Of a row
that several programs had, each that finds all parts there within a few microseconds merges a slice, and the
last to arrive what is left, always in the same order. No program depends on another.

CUDA C++ (``decode.cu``), because Triton widens the keys through shared memory. From compute capability 9.0 on,
a program of 32 heads has warps that only gather, through the copy engine, and give most of their registers to
the others.

Bytes moved per row and head group: 584 a key, 2 * 1,024 a head for q and the output; and per row that is
shared out, 2 * 2,048 a head and part. Deterministic: which program finishes last changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

import torch

from .checks import Checks
from .config import has_copy_engine, has_large_sms, sm_count
from .cuda_cpp import CudaKernel, CudaLaunch
from .decode_arguments import (
    DIMS,
    KEY_BYTES,
    MAX_HEADS,
    SCALE_BYTES,
    Arguments,
    Cache,
    cache_argument,
    check_q,
    check_workspace,
)

COUNTERS = 2
# Keys of a row that one program does as soon as several would have merged their parts.
SMALL_ROW = 256
# Programs of a launch: as many as may share one row.
MAX_PROGRAMS = 512
# Of a thread that only gathers. All begin with as many, and the others then have what these give back.
GATHER_REGISTERS = 40


@dataclass(frozen=True)
class DecodeConfig:
    """Launch shape of the attention kernel.

    Heads of a program in tiles of 16, keys of a tile, tiles in shared memory, steps of the loops over scores
    and values that the compiler unrolls, programs that share an SM, warps that share the dims of a score, threads
    that multiply; warps beside them that only gather, by the copy engine, and the registers that those keep. Without
    such warps all threads gather too.
    """

    m_tiles: int
    tile: int
    stages: int
    score_unroll: int
    value_unroll: int
    programs_per_sm: int = 1
    dim_warps: int = 4
    threads: int = 256
    gather_warps: int = 0
    gather_registers: int = 0

    @property
    def heads(self) -> int:
        """Heads of one program."""
        return 16 * self.m_tiles

    @property
    def block_threads(self) -> int:
        """Threads of one program."""
        return self.threads + 32 * self.gather_warps

    @property
    def partial_values(self) -> int:
        """Floats of a partial result: ``PARTIAL`` of decode.cu."""
        return self.heads * (DIMS + 2) + 4

    def programs(self, device: torch.device) -> int:
        """Programs that ``device`` runs at once."""
        return min(self.programs_per_sm * sm_count(device), MAX_PROGRAMS)

    def shared_bytes(self) -> int:
        """Shared memory of a block: ``Shared`` of decode.cu."""
        warps = self.threads // 32
        stage = self.tile * (KEY_BYTES + 16 + SCALE_BYTES + 4) + 16
        scores = (self.tile + 8 * (self.tile <= 64)) * 4 * self.dim_warps
        heads = self.heads * (scores + (self.tile + 8) * 2 + 3 * 4)
        rest = 2 * warps * self.tile + 4 * (MAX_HEADS + warps + 5)
        apart = 48 + 8 * self.stages + 12
        used = -(-(self.stages * stage + heads + rest) // 16) * 16 + apart
        return -(-used // 16) * 16


FEW_HEADS = DecodeConfig(1, tile=64, stages=2, score_unroll=2, value_unroll=4)
# Of 32 heads: without a copy engine; with it; with over 200 KB of shared memory to an SM too; and there for many rows.
# `COPIED` is sm_120's, and was measured on an H200 only, where it takes 0.91 of what `PLAIN` takes.
PLAIN = DecodeConfig(2, tile=32, stages=3, score_unroll=2, value_unroll=2)
COPIED = replace(PLAIN, gather_warps=4, gather_registers=GATHER_REGISTERS)
LARGE = replace(COPIED, tile=64, stages=2, value_unroll=4)
LARGE_MANY = replace(LARGE, tile=128)
CONFIGS = (FEW_HEADS, PLAIN, COPIED, LARGE, LARGE_MANY)


@dataclass(frozen=True)
class DecodeWorkspace:
    """What the programs of one launch leave for each other.

    ``counters`` int32: zero before the first launch, and left zero by each. ``partials`` float32: any
    contents, before and after.
    """

    partials: torch.Tensor
    counters: torch.Tensor


def config_for(batch: int, heads: int, device: torch.device) -> DecodeConfig:
    """The launch shape for a number of rows and heads on a device.

    32 heads to a program read and widen a key once for all of them; 16 give twice the programs, which is
    faster while the GPU has a multiprocessor for each. Tiles of 128 keys save a quarter of what a tile costs beside
    its products, but are coarse to share out. Whether rows are many for them depends on no head: ranks that have
    17 heads and more of a row take tiles of one length.
    """
    programs = sm_count(device)
    if heads <= 16 or batch * -(-heads // 16) <= programs:
        return FEW_HEADS
    if has_large_sms(device):
        return LARGE_MANY if 2 * batch > programs else LARGE
    return COPIED if has_copy_engine(device) else PLAIN


def decode_workspace(heads: int, device: torch.device | str) -> DecodeWorkspace:
    """Workspace for calls with ``heads`` heads, of any number of rows and keys.

    One launch at a time may use it: one per stream. 64 KiB for each multiprocessor of the GPU for up to 16
    heads, 129 KiB for more.
    """
    device = torch.device(device)
    config = FEW_HEADS if heads <= 16 else PLAIN
    programs = config.programs(device)
    return DecodeWorkspace(
        partials=torch.empty(
            programs * 2 * config.partial_values, dtype=torch.float32, device=device
        ),
        counters=torch.zeros(programs * COUNTERS, dtype=torch.int32, device=device),
    )


def sparse_mla_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: Optional[torch.Tensor],
    attn_sink: Optional[torch.Tensor],
    head_dim_v: int,
    softmax_scale: Optional[float],
    extra_k_cache: Optional[torch.Tensor] = None,
    extra_indices: Optional[torch.Tensor] = None,
    extra_topk_length: Optional[torch.Tensor] = None,
    *,
    num_splits: Optional[int] = None,
    out: Optional[torch.Tensor] = None,
    lse: Optional[torch.Tensor] = None,
    workspace: Optional[DecodeWorkspace] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row's heads to the keys that its indices name, in one cache or in two.

    ===========================  ===================================================================
    q                            bf16 [B, 1, H, 512], H in 1..128; rows and heads may be strided, by
                                 multiples of 8 elements
    k_cache, extra_k_cache       uint8 or float8_e4m3fn [pages, page, 1, 584], page a power of two;
                                 ``stride(0)`` is the bytes of a page: page * 576 of keys (448 e4m3 and
                                 64 bf16 each), then page * 8 of scales (7 UE8M0 and a pad each)
    indices, extra_indices       int32 [B, 1, K] or [B, K], unit column stride; -1 is no key
    topk_length, extra_...       int32 [B], or None: K. A key counts when its column is below the
                                 length and its index is not negative
    attn_sink                    f32 [H] or None: a logit beside the scores, without a value
    head_dim_v                   512: the whole key is the value
    softmax_scale                factor of the scores; None: 512 ** -0.5
    num_splits                   programs for each row and head group, at most and on average; 1: none is
                                 shared out; None: as many as the GPU runs at once
    out, lse                     bf16 [B, 1, H, 512] and f32 [B, H, 1], contiguous; allocated when None
    workspace                    from ``decode_workspace`` for H heads; allocated when None
    ===========================  ===================================================================

    Returns ``out`` and ``lse``, the logarithm of the sum of the exponentials of a row's scores without the
    sink. Without any key: 0 and -inf. Indices and keys beyond a length are not read; a NaN in q stays in its
    row and head, one in a key in the rows that attend to it. Of the scales of one row's keys
    for the same 64 dims, one below 2**-32 of the largest counts as 0.

    A row's bits depend on the lengths in the batch, never on a width. None shared out, and with over 200 KB of
    shared memory to an SM, those of a head don't depend on the other heads; but with more rows than half the SMs,
    they depend on whether there are over 16. Needs compute capability 8.9.

    Raises ValueError on a bad shape, dtype, stride, alignment or device.
    """
    if out is None and q.dim() == 4:
        out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    if lse is None and q.dim() == 4:
        shape = (q.shape[0], q.shape[2], 1)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if workspace is None and num_splits != 1 and q.dim() == 4:
        workspace = decode_workspace(q.shape[2], q.device)
    launch = plan(
        q,
        k_cache,
        indices,
        topk_length,
        attn_sink,
        head_dim_v,
        softmax_scale,
        extra_k_cache,
        extra_indices,
        extra_topk_length,
        num_splits=num_splits,
        out=out,
        lse=lse,
        workspace=workspace,
    )
    if q.shape[0] > 0:
        checks = Checks("sparse_mla_decode", "q", q.device)
        checks.expect(q.is_cuda, "q device", "a CUDA device", q.device)
        launch.run(q.device)
    return out, lse


def plan(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: Optional[torch.Tensor],
    attn_sink: Optional[torch.Tensor],
    head_dim_v: int,
    softmax_scale: Optional[float],
    extra_k_cache: Optional[torch.Tensor] = None,
    extra_indices: Optional[torch.Tensor] = None,
    extra_topk_length: Optional[torch.Tensor] = None,
    *,
    num_splits: Optional[int] = None,
    out: torch.Tensor,
    lse: torch.Tensor,
    workspace: Optional[DecodeWorkspace],
) -> CudaLaunch:
    """The launch that ``sparse_mla_decode`` runs for these arguments; checks them."""
    checks = Checks("sparse_mla_decode", "q", q.device)
    check_q(checks, q)
    batch, _, heads, _ = q.shape
    checks.expect(head_dim_v == DIMS, "head_dim_v", str(DIMS), head_dim_v)
    checks.expect(
        num_splits is None or num_splits >= 1, "num_splits", ">= 1 or None", num_splits
    )
    if attn_sink is not None:
        checks.tensor("attn_sink", attn_sink, torch.float32, (heads,))
        checks.contiguous("attn_sink", attn_sink)
    checks.tensor("out", out, torch.bfloat16, q.shape)
    checks.contiguous("out", out)
    checks.tensor("lse", lse, torch.float32, (batch, heads, 1))
    checks.contiguous("lse", lse)
    checks.expect(
        (extra_k_cache is None) == (extra_indices is None),
        "extra_k_cache, extra_indices",
        "both or none",
        (type(extra_k_cache).__name__, type(extra_indices).__name__),
    )
    near = cache_argument(checks, "", k_cache, indices, topk_length, batch)
    far = Cache()
    if extra_k_cache is not None:
        far = cache_argument(
            checks, "extra_", extra_k_cache, extra_indices, extra_topk_length, batch
        )

    config = config_for(batch, heads, q.device)
    groups = -(-heads // config.heads)
    programs = config.programs(q.device)
    grid = min(programs, max(1, batch * groups) * (num_splits or programs))
    shared_out = num_splits != 1
    if shared_out:
        values = grid * 2 * config.partial_values
        check_workspace(checks, workspace, values, grid * COUNTERS)
    scale = DIMS**-0.5 if softmax_scale is None else softmax_scale
    return CudaLaunch(
        kernel=kernel(config),
        grid=grid,
        block=config.block_threads,
        argument=Arguments(
            near=near,
            far=far,
            q=q.data_ptr(),
            sink=None if attn_sink is None else attn_sink.data_ptr(),
            out=out.data_ptr(),
            lse=lse.data_ptr(),
            partials=workspace.partials.data_ptr() if shared_out else None,
            counters=workspace.counters.data_ptr() if shared_out else None,
            stride_q_row=q.stride(0),
            stride_q_head=q.stride(2),
            scale_log2=scale * 1.4426950408889634,
            rows=batch,
            heads=heads,
            groups=groups,
            whole=SMALL_ROW // config.tile if shared_out else 2**31 - 1,
        ),
        tensors=(
            *(q, k_cache, indices, topk_length, attn_sink),
            *(extra_k_cache, extra_indices, extra_topk_length, out, lse, workspace),
        ),
        overlap=True,
    )


def kernel(config: DecodeConfig) -> CudaKernel:
    """The kernel of a launch shape: all that is compiled; every other argument is read at run time."""
    constants = dict(
        THREADS=config.threads,
        GATHER_WARPS=config.gather_warps,
        GATHER_REGISTERS=config.gather_registers,
        M_TILES=config.m_tiles,
        TILE=config.tile,
        STAGES=config.stages,
        PROGRAMS_PER_SM=config.programs_per_sm,
        DIM_WARPS=config.dim_warps,
        SCORE_UNROLL=config.score_unroll,
        VALUE_UNROLL=config.value_unroll,
        MAX_PROGRAMS=MAX_PROGRAMS,
        SHARED_BYTES=config.shared_bytes(),
    )
    return CudaKernel(
        source=Path(__file__).with_name("decode.cu"),
        name="sparse_mla_decode",
        constants=tuple(constants.items()),
        shared_bytes=config.shared_bytes(),
        arch_specific=config.gather_warps > 0,
    )
