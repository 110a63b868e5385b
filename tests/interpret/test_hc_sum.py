"""The weighted sum of the streams in the Triton interpreter: torch's bits before the last rounding."""

from __future__ import annotations

import pytest
import torch

from kernels.hc_sum import hc_weighted_sum
from numeric import assert_bitwise_equal


def make(rows, streams, dim, seed):
    gen = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, streams, dim, generator=gen) * 3).bfloat16()
    return x, torch.rand(rows, streams, generator=gen)


def by_torch(x, w):
    return (w.unsqueeze(-1) * x.float()).sum(dim=1)


def run(x, w):
    return hc_weighted_sum(x, w, out=torch.empty(x.shape[0], x.shape[2]))


@pytest.mark.parametrize(
    "rows,streams,dim", ((1, 4, 4_096), (5, 4, 1_024), (3, 2, 1_000), (2, 3, 8))
)
def test_the_bits_of_torch(rows, streams, dim, seed):
    x, w = make(rows, streams, dim, seed)
    assert_bitwise_equal(run(x, w), by_torch(x, w))


def test_no_rows(seed):
    x, w = make(3, 4, 64, seed)
    out = hc_weighted_sum(x[:0], w[:0])
    assert out.shape == (0, 64) and out.dtype == torch.bfloat16


def test_nan_stays_in_its_row(seed):
    x, w = make(3, 4, 64, seed)
    want = run(x, w)
    x[1, 2] = float("nan")
    got = run(x, w)
    assert_bitwise_equal(got[[0, 2]], want[[0, 2]])
    assert torch.isnan(got[1]).all()


BAD = {
    "x shape": lambda a: a | {"x": a["x"][0]},
    "x dtype": lambda a: a | {"x": a["x"].float()},
    "x strides": lambda a: a | {"x": a["x"].mT.contiguous().mT},
    "w shape": lambda a: a | {"w": a["w"][:2]},
    "w dtype": lambda a: a | {"w": a["w"].double()},
    "out dtype": lambda a: a | {"out": a["out"].half()},
    "out shape": lambda a: a | {"out": a["out"][:2]},
    "out device": lambda a: a | {"out": a["out"].to("meta")},
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what, seed):
    x, w = make(3, 4, 64, seed)
    bad = BAD[what]({"x": x, "w": w, "out": torch.empty(3, 64, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match=f"hc_weighted_sum: {what}: expected .*, got "):
        hc_weighted_sum(bad["x"], bad["w"], out=bad["out"])
