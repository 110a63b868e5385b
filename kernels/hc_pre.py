"""Hyper-connection pre-linear of DeepSeek-V4 on tensor cores, from the bf16 state, in one launch.

    out[t, n] = (sum_k x[t, k] * fn[n, k]) * rsqrt(mean_k(x[t, k]**2) + eps)

x is read once and never cast in memory: products on the tensor cores, with each float32 of fn as the sum of
two bf16, and squares beside them. K is spread over the GPU, and the program that finishes some rows last adds
up their parts. For few rows a program takes 512 values of K of 16 rows; for many it keeps 1,024 values of K of fn
in registers and lets its rows pass by in shared memory (``hc_pre_many.cuh``). fn is read as it is: a new weight
is used by the next launch, also of a captured graph.

CUDA C++ (``hc_pre.cu``): loads stay where they are ahead of the products, copies in the background go on while
a program adds up, and one warp may count while the others multiply.

Bytes moved: 2 * T * K read, 4 * N * K read; then 112 (N = 24) for each row and 512 values of K (1,024 for many
rows) written and read again in the L2.
Deterministic: K alone decides in which order is added up, so a row has the same bits whatever the number of
rows and whichever program is last.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

from .checks import Checks
from .config import sm_count
from .cuda_cpp import CudaKernel, CudaLaunch

ROWS = 16
LEAVES = 128
UNIT = 512
BLOCK = 2 * UNIT
WARPS = 8
# Of the kernel for many rows: tiles of x in shared memory, and the most tiles of a program.
STAGES = 2
MOST_TILES = 1024
WIDEST = 32
WEIGHTS = ("split", "bf16")
# From 256 rows on, the fewest at which both were measured, the kernel for many is the faster one on an H200.
FEW_ROWS = 255


@dataclass(frozen=True)
class HcPreWorkspace:
    """What the programs of one launch leave for each other.

    ``arrived`` int32: zero before the first launch, and left zero by each. ``partial`` f32: any contents,
    before and after.
    """

    arrived: torch.Tensor
    partial: torch.Tensor


class _Linear(Structure):
    """``Linear`` of hc_pre.cu."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "fn", "out", "partial", "arrived")),
        ("stride_x", c_int64),
        *((name, c_int32) for name in ("rows", "outputs", "width")),
        *((name, c_int32) for name in ("splits", "tiles", "each")),
        *((name, c_float) for name in ("eps", "inverse_width")),
    ]


def tiles(rows: int) -> int:
    """Tiles of 16 rows: integers of ``HcPreWorkspace.arrived`` that a call uses."""
    return -(-rows // ROWS)


def partial_floats(rows: int, width: int, outputs: int) -> int:
    """Floats of ``HcPreWorkspace.partial`` that a call uses."""
    return tiles(rows) * _splits(rows, width, outputs) * ROWS * _columns(outputs)


def hc_pre_workspace(
    rows: int, width: int, outputs: int, device: torch.device | str
) -> HcPreWorkspace:
    """Workspace for calls of up to ``rows`` rows. One launch at a time may use it: one per stream."""
    floats = max(
        partial_floats(count, width, outputs) for count in (rows, min(rows, FEW_ROWS))
    )
    return HcPreWorkspace(
        arrived=torch.zeros(tiles(rows), dtype=torch.int32, device=device),
        partial=torch.empty(floats, dtype=torch.float32, device=device),
    )


def hc_pre_linear(
    x: torch.Tensor,
    fn: torch.Tensor,
    eps: float,
    *,
    weights: str = "split",
    out: Optional[torch.Tensor] = None,
    workspace: Optional[HcPreWorkspace] = None,
) -> torch.Tensor:
    """Mixes of the hyper-connections before a block.

    =====  ===============  ==========================================================================
    x      bf16  [T, K]     unit column stride, row stride a multiple of 8; K a multiple of 128
    fn     f32   [N, K]     contiguous, N <= 32
    out    f32   [T, N]     contiguous; allocated when None
    =====  ===============  ==========================================================================

    ``weights``: ``split`` multiplies fn as the sum of two bf16, which keeps 16 bits of its mantissa; ``bf16``
    rounds it to one, which keeps 8. Sums are float32.

    ``workspace``: from ``hc_pre_workspace`` for at least T rows of K values and N outputs; allocated when
    None.

    Returns ``out``. Raises ValueError on a bad shape, dtype, stride, alignment or device.
    """
    if x.dim() == 2 and fn.dim() == 2:
        rows, outputs = x.shape[0], fn.shape[0]
        if out is None:
            out = torch.empty((rows, outputs), dtype=torch.float32, device=x.device)
        if workspace is None:
            workspace = hc_pre_workspace(rows, x.shape[1], outputs, x.device)
    launch = plan(x, fn, eps, weights=weights, out=out, workspace=workspace)
    if x.shape[0] > 0:
        _checks(x).expect(x.is_cuda, "x device", "a CUDA device", x.device)
        launch.run(x.device)
    return out


def plan(
    x: torch.Tensor,
    fn: torch.Tensor,
    eps: float,
    *,
    weights: str = "split",
    out: torch.Tensor,
    workspace: HcPreWorkspace,
) -> CudaLaunch:
    """The launch that ``hc_pre_linear`` runs for these arguments; checks them."""
    _check(x, fn, weights, out, workspace)
    rows, width = x.shape
    outputs = fn.shape[0]
    splits = _splits(rows, width, outputs)
    few = _few(rows, outputs)
    # For many rows, tiles are shared out to as many programs as fit the GPU at once.
    each = -(-tiles(rows) // max(1, sm_count(x.device) // splits))
    each = min(max(1, each), MOST_TILES)
    return CudaLaunch(
        kernel=kernel(rows, outputs, weights),
        grid=splits * (tiles(rows) if few else -(-tiles(rows) // each)),
        block=32 * (WARPS if few else WARPS + 1),
        argument=_Linear(
            x=x.data_ptr(),
            fn=fn.data_ptr(),
            out=out.data_ptr(),
            partial=workspace.partial.data_ptr(),
            arrived=workspace.arrived.data_ptr(),
            stride_x=x.stride(0),
            rows=rows,
            outputs=outputs,
            width=width,
            splits=splits,
            tiles=tiles(rows),
            each=each,
            eps=eps,
            inverse_width=1 / width,
        ),
        tensors=(x, fn, out, workspace),
        overlap=True,
    )


def kernel(rows: int, outputs: int, weights: str) -> CudaKernel:
    """The kernel for this many rows and outputs.

    All row counts on one side of ``FEW_ROWS`` have the same one, as have outputs of as many eights.
    """
    few = _few(rows, outputs)
    eights = -(-outputs // 8)
    constants = dict(N_TILES=eights, SPLIT=int(weights == "split"), MANY=int(not few))
    shared_bytes = 4 * WARPS * ROWS * _columns(outputs) + 16
    if not few:
        # Two sets of sums, and what is kept of the tiles that a program was the last of.
        shared_bytes = 2 * shared_bytes + 2 * STAGES * ROWS * BLOCK + MOST_TILES
    return CudaKernel(
        source=Path(__file__).with_name("hc_pre.cu"),
        name="hc_pre_few" if few else "hc_pre_many",
        constants=tuple(constants.items()),
        shared_bytes=shared_bytes,
    )


def _few(rows: int, outputs: int) -> bool:
    """Whether the kernel for few rows runs. A block of K of more outputs does not fit the other's registers."""
    return rows <= FEW_ROWS or outputs > 24


def _splits(rows: int, width: int, outputs: int) -> int:
    """Programs that share a row."""
    return -(-width // (UNIT if _few(rows, outputs) else BLOCK))


def _columns(outputs: int) -> int:
    """Floats that a row takes in a partial sum: its products, and four sums of squares."""
    return -(-outputs // 8) * 8 + 4


def _checks(x: torch.Tensor) -> Checks:
    return Checks("hc_pre_linear", "x", x.device)


def _check(x, fn, weights, out, workspace) -> None:
    checks = _checks(x)
    checks.expect(weights in WEIGHTS, "weights", f"one of {WEIGHTS}", weights)
    checks.expect(
        x.dim() == 2 and x.shape[1] > 0 and x.shape[1] % LEAVES == 0,
        "x shape",
        f"[T, K a multiple of {LEAVES}]",
        tuple(x.shape),
    )
    rows, width = x.shape
    checks.expect(
        fn.dim() == 2 and 0 < fn.shape[0] <= WIDEST and fn.shape[1] == width,
        "fn shape",
        f"[N <= {WIDEST}, {width}]",
        tuple(fn.shape),
    )
    outputs = fn.shape[0]
    checks.tensor("x", x, torch.bfloat16, (rows, width))
    checks.unit_columns("x", x)
    checks.expect(
        (x.stride(0) % 8 == 0 and x.stride(0) < 2**31) or rows <= 1,
        "x strides",
        "a multiple of 8, below 2**31, between rows",
        x.stride(),
    )
    checks.tensor("fn", fn, torch.float32, (outputs, width))
    checks.contiguous("fn", fn)
    checks.tensor("out", out, torch.float32, (rows, outputs))
    checks.contiguous("out", out)
    checks.aligned("x", x, 16)
    checks.aligned("fn", fn, 16)
    for name, tensor, dtype, size in (
        ("arrived", workspace.arrived, torch.int32, tiles(rows)),
        (
            "partial",
            workspace.partial,
            torch.float32,
            partial_floats(rows, width, outputs),
        ),
    ):
        name = f"workspace.{name}"
        checks.expect(
            tensor.numel() >= size, f"{name} size", f">= {size}", tensor.numel()
        )
        checks.tensor(name, tensor, dtype, tensor.shape)
