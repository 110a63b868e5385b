"""The hyper-connection pre-linear in float64, and what upstream makes of it: for comparison."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PreLinearReference(NamedTuple):
    """``values`` [T, N], and the size of their terms, which rounding errors are relative to."""

    values: torch.Tensor
    magnitudes: torch.Tensor


def hc_pre_linear_ref(
    x: torch.Tensor, fn: torch.Tensor, eps: float
) -> PreLinearReference:
    """``(x @ fn.T) * rsqrt(mean(x**2) + eps)`` in float64; ``magnitudes`` is the norm of the products.

    Arguments as for ``hc_pre_linear``.
    """
    x, fn = x.double(), fn.double()
    scale = (x.square().mean(1, keepdim=True) + eps).rsqrt()
    norms = x.square() @ fn.square().T
    return PreLinearReference((x @ fn.T) * scale, norms.sqrt() * scale)


class Mixes(NamedTuple):
    """``pre`` and ``post`` [T, H], ``comb`` [T, H, H]."""

    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


def hc_split_sinkhorn_ref(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    streams: int,
    iterations: int,
    eps: float,
) -> Mixes:
    """Upstream's TileLang kernel ``hc_split_sinkhorn`` on ``mixes`` [T, (2 + H) * H], in their type."""
    sizes = torch.tensor((streams, streams, streams * streams), device=mixes.device)
    pre, post, comb = (mixes * scale.repeat_interleave(sizes) + base).split(
        sizes.tolist(), -1
    )
    comb = comb.unflatten(-1, (streams, streams)).softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return Mixes(pre.sigmoid() + eps, 2 * post.sigmoid(), comb)
