"""Benchmark of the hyper-connection pre-linear and weighted sum: against the stock function, eager and compiled."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F

from hc_pre_cases import TOLERANCE, HcPreCase, make_hc_pre
from kernels import hc_pre, hc_sum
from kernels.hc_pre_ref import hc_pre_linear_ref, hc_split_sinkhorn_ref
from numeric import assert_bitwise_equal, assert_close
from stock import load_method

from .benchcase import Arms, Bench, BenchCase, Prepared, rotated_sets

WIDTH, OUTPUTS, STREAMS = 16_384, 24, 4
ROWS = (1, 16, 64, 256, 1_024, 2_048, 8_192)
SUM_ROWS = (1, 16, 64, 2_048)
# Rows that the gate compares with float64.
CHECKED_ROWS = 2_048


def moved(rows: int) -> int:
    """Bytes that must move in the linear: the state, the weight and the mixes once."""
    return 2 * rows * WIDTH + 4 * OUTPUTS * (WIDTH + rows)


def moved_by_sum(rows: int) -> int:
    """Bytes that must move in the weighted sum: the state and its weights, and the result."""
    return 2 * rows * (WIDTH + WIDTH // STREAMS) + 4 * rows * STREAMS


def _linear_case(rows: int) -> BenchCase:
    # Both halves of the weight.
    flop = 2 * 2 * rows * WIDTH * OUTPUTS
    return BenchCase(
        f"rows{rows}", rows, moved(rows), flop, partial(_prepare_linear, rows)
    )


def _sum_case(rows: int) -> BenchCase:
    return BenchCase(
        f"rows{rows}-sum", rows, moved_by_sum(rows), 0, partial(_prepare_sum, rows)
    )


def _prepare_linear(rows: int) -> Prepared:
    copies = rotated_sets(moved(rows))
    case = HcPreCase("bench", rows, WIDTH, OUTPUTS)
    inputs = [make_hc_pre(case, "cuda", seed) for seed in range(copies)]
    workspace = hc_pre.hc_pre_workspace(rows, WIDTH, OUTPUTS, "cuda")
    out = torch.empty(rows, OUTPUTS, device="cuda")
    return Prepared(
        gate=partial(_gate_linear, inputs[0], out, workspace),
        arms=partial(_linear_arms, inputs, out, workspace),
        facts=partial(_mixes, inputs[0]),
        rotated_sets=copies,
    )


def _gate_linear(inputs, out, workspace) -> dict:
    """The first rows against float64, with both kinds of weights; the error is of the products' norm."""
    part = inputs._replace(x=inputs.x[:CHECKED_ROWS])
    reference = hc_pre_linear_ref(*part)
    errors = {}
    for weights in hc_pre.WEIGHTS:
        hc_pre.hc_pre_linear(*inputs, weights=weights, out=out, workspace=workspace)
        errors[weights] = assert_close(
            out[:CHECKED_ROWS],
            reference.values,
            reference.magnitudes,
            TOLERANCE[weights],
        )
    assert not workspace.arrived.any(), "the workspace was not left zero"
    return {"error": errors}


def _linear_arms(inputs: list, out, workspace) -> Arms:
    def ours(weights: str) -> list[Callable]:
        return [
            partial(
                hc_pre.hc_pre_linear,
                *one,
                weights=weights,
                out=out,
                workspace=workspace,
            )
            for one in inputs
        ]

    arms = {"ours": ours("split"), "ours, bf16": ours("bf16")}
    # As a server runs it outside and inside of a capture.
    for name, decorate in (("stock", lambda f: f), ("stock compiled", torch.compile)):
        torch._dynamo.reset()
        function = stock_linear(inputs[0].eps, decorate)
        states = [one.x.view(-1, STREAMS, WIDTH // STREAMS) for one in inputs]
        calls = [partial(function, x, one.fn) for x, one in zip(states, inputs)]
        calls[0]()
        arms[name] = calls
    return arms


def _mixes(inputs) -> dict:
    """Largest errors of what upstream makes of the products (sigmoid, Sinkhorn), against float64."""
    part = inputs._replace(x=inputs.x[:CHECKED_ROWS])
    gen = torch.Generator(device="cuda").manual_seed(1)
    scale = torch.ones(3, device="cuda", dtype=torch.float64)
    base = torch.randn(OUTPUTS, generator=gen, device="cuda", dtype=torch.float64)

    def mixes(linear):
        return hc_split_sinkhorn_ref(
            linear.double(), scale, base, STREAMS, 20, part.eps
        )

    want = mixes(hc_pre_linear_ref(*part).values)
    state = part.x.view(-1, STREAMS, WIDTH // STREAMS)
    stock = stock_linear(part.eps, lambda f: f)(state, part.fn)[1].squeeze(1)
    linears = {"stock": stock} | {
        weights: hc_pre.hc_pre_linear(*part, weights=weights)
        for weights in hc_pre.WEIGHTS
    }
    return {
        f"mixes, {name}": {
            field: float((got - exact).abs().max())
            for field, got, exact in zip(want._fields, mixes(linear), want)
        }
        for name, linear in linears.items()
    }


def stock_linear(eps: float, decorate: Callable) -> Callable:
    """``hc_pre_torch_impl`` of the tree, as ``decorate`` leaves it."""
    namespace = {
        "F": F,
        "torch": torch,
        "self": SimpleNamespace(rms_norm_eps=eps),
        "compile_in_capture_mode": decorate,
    }
    return load_method(
        "python/sglang/srt/models/deepseek_v4.py",
        "DeepseekV4DecoderLayer",
        "hc_pre",
        "hc_pre_torch_impl",
        namespace=namespace,
    )


def _prepare_sum(rows: int) -> Prepared:
    copies = rotated_sets(moved_by_sum(rows))
    case = HcPreCase("bench", rows, WIDTH, OUTPUTS)
    states = [
        make_hc_pre(case, "cuda", seed).x.view(rows, STREAMS, -1)
        for seed in range(copies)
    ]
    weights = torch.rand(rows, STREAMS, device="cuda")
    return Prepared(
        gate=partial(_gate_sum, states[0], weights),
        arms=partial(_sum_arms, states, weights),
        rotated_sets=copies,
    )


def _stock_sum(x, weights):
    """What upstream does after the mixes, on a state that is float32 already."""
    return (weights.unsqueeze(-1) * x).sum(dim=1).to(torch.bfloat16)


def _gate_sum(x, weights) -> dict:
    assert_bitwise_equal(
        hc_sum.hc_weighted_sum(x, weights), _stock_sum(x.float(), weights)
    )
    return {}


def _sum_arms(states: list, weights) -> Arms:
    out = torch.empty_like(states[0][:, 0])
    wide = [x.float() for x in states]
    return {
        "ours": [partial(hc_sum.hc_weighted_sum, x, weights, out=out) for x in states],
        "stock": [partial(_stock_sum, x, weights) for x in wide],
    }


LINEAR = Bench("hc_pre", {"hc-pre-rows": [_linear_case(rows) for rows in ROWS]})
SUM = Bench("hc_sum", {"hc-sum-rows": [_sum_case(rows) for rows in SUM_ROWS]})
