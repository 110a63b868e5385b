"""Comparison of a kernel's output with a float64 reference: anomalies first, then errors."""

from __future__ import annotations

import torch


def assert_same_anomalies(got: torch.Tensor, want: torch.Tensor) -> None:
    """NaN, +inf and -inf stand at the same places in both."""
    for name, test in (
        ("nan", torch.isnan),
        ("+inf", torch.isposinf),
        ("-inf", torch.isneginf),
    ):
        differs = test(got) != test(want)
        if differs.any():
            where = differs.nonzero()[0].tolist()
            raise AssertionError(
                f"{name} at different places, {int(differs.sum())} in all; first at {where}:"
                f" got {got[tuple(where)].item()}, want {want[tuple(where)].item()}"
            )


def assert_close(
    got: torch.Tensor, want: torch.Tensor, magnitude: torch.Tensor, tol: float
) -> float:
    """Each |got - want| <= tol * magnitude, where ``magnitude`` is what rounding is relative to.

    Returns the largest ratio of error to magnitude that was seen.
    """
    assert_same_anomalies(got, want)
    finite = torch.isfinite(want)
    error = torch.where(finite, got.double() - want, 0).abs()
    ratio = torch.where(finite, error / magnitude.clamp_min(1e-30), 0)
    worst = float(ratio.max()) if ratio.numel() else 0.0
    if worst > tol:
        where = (ratio == ratio.max()).nonzero()[0].tolist()
        raise AssertionError(
            f"error {worst:.3e} of the magnitude, above {tol:.1e}, at {where}:"
            f" got {got[tuple(where)].item()}, want {want[tuple(where)].item()};"
            f" {int((ratio > tol).sum())} of {int(finite.sum())} above"
        )
    return worst


def assert_bitwise_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    """Same bytes; names the first element that differs."""
    same = got.contiguous().view(torch.uint8) == want.contiguous().view(torch.uint8)
    if not same.all():
        byte = int((~same.flatten()).nonzero()[0])
        element = byte // got.element_size()
        where = torch.unravel_index(torch.tensor(element), got.shape)
        where = tuple(int(i) for i in where)
        raise AssertionError(
            f"differs at {where}: got {got[where].item()}, want {want[where].item()}"
        )
