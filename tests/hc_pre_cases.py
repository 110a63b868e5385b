"""Named inputs of the hyper-connection pre-linear that tests and benchmarks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

EPS = 1e-6
# Of the norm of the products: seen 1.2e-5 and 7.7e-3 on an H200.
TOLERANCE = {"split": 3e-5, "bf16": 2e-2}


@dataclass(frozen=True)
class HcPreCase:
    """One call. ``row_padding``: extra columns between rows; ``size``: of the values of x."""

    name: str
    rows: int
    width: int = 1_024
    outputs: int = 24
    row_padding: int = 0
    size: float = 3.0


class HcPreInputs(NamedTuple):
    """Arguments of ``hc_pre_linear`` in order."""

    x: torch.Tensor
    fn: torch.Tensor
    eps: float


def make_hc_pre(case: HcPreCase, device="cpu", seed: int = 0) -> HcPreInputs:
    """Draw the inputs of ``case``; what lies between rows is NaN."""
    gen = torch.Generator(device=device).manual_seed(seed)
    stride = case.width + case.row_padding
    buffer = torch.full(
        (case.rows, stride), float("nan"), dtype=torch.bfloat16, device=device
    )
    x = buffer[:, : case.width]
    shape = (case.rows, case.width)
    x.copy_(torch.randn(shape, generator=gen, device=device) * case.size)
    fn = torch.randn((case.outputs, case.width), generator=gen, device=device) * 0.02
    return HcPreInputs(x, fn, EPS)


# Around tiles of 16 rows; widths of two leaves, of part of a unit, of one and of three; outputs around eights.
HC_PRE_EDGES = (
    HcPreCase("one-row", 1),
    HcPreCase("model", 3, 16_384),
    *(HcPreCase(f"rows-{n}", n) for n in (15, 16, 17, 33, 300)),
    *(HcPreCase(f"width-{n}", 19, n) for n in (128, 384, 512, 640, 1_536)),
    HcPreCase("width-more-than-16-splits", 5, 17 * 1_024),
    *(HcPreCase(f"outputs-{n}", 19, outputs=n) for n in (1, 8, 9, 20, 25, 32)),
    HcPreCase("padded-rows", 18, row_padding=8),
    HcPreCase("small", 18, size=1e-4),
    HcPreCase("large", 18, size=1e4),
)
