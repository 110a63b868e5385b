"""The patched tree's own ``hc_pre`` of a decoder layer on the CPU, with the flag on and off."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import cuda_on_cpu
import sglang_tree
import stock
from kernels.hc_pre_ref import hc_pre_linear_ref, hc_split_sinkhorn_ref
from numeric import assert_bitwise_equal, assert_close

MODEL = "python/sglang/srt/models/deepseek_v4.py"
HC, DIM, EPS = 4, 256, 1e-6


class Layer:
    """What hc_pre uses of a decoder layer."""

    rms_norm_eps = hc_eps = EPS
    hc_mult, hc_sinkhorn_iters = HC, 20


@pytest.fixture
def layer():
    """A layer with the tree's hc_pre; ``layer.ran`` lists the launches of our kernel."""
    mhc = ModuleType("sglang.srt.layers.mhc")
    mhc.hc_split_sinkhorn = hc_split_sinkhorn_ref
    mhc.mhc_pre = mock.Mock(
        side_effect=lambda residual, **_: (
            torch.zeros(len(residual), HC, 1),
            torch.zeros(len(residual), HC, HC),
            residual[:, 0],
        )
    )
    with sglang_tree.on_sm120("layers.sm120.hc_pre_hook") as hook:
        # What a server does at start.
        os.environ["SGLANG_OPT_USE_TILELANG_MHC_PRE"] = "False"
        os.environ["SGLANG_OPT_DEEPGEMM_HC_PRENORM"] = "False"
        namespace = {
            "torch": torch,
            "F": F,
            "envs": hook.envs,
            "sm120_hc_pre": hook,
            "compile_in_capture_mode": lambda function: function,
            "_is_hip": False,
            "_MHC_POST_MULT_VALUE": 2.0,
        }
        one = Layer()
        one.ran, one.mhc, one.namespace = [], mhc, namespace
        one.hc_pre = stock.load_method(
            MODEL, "DeepseekV4DecoderLayer", "hc_pre", namespace=namespace
        ).__get__(one)

        def linear(x, fn, eps, *, weights, workspace):
            from kernels.hc_pre import plan

            out = torch.empty(x.shape[0], fn.shape[0])
            launch = plan(x, fn, eps, weights=weights, out=out, workspace=workspace)
            cuda_on_cpu.run(launch)
            one.ran.append(weights)
            return out

        def summed(x, w):
            # The interpreter rounds to bf16 wrongly.
            out = torch.empty(x.shape[0], x.shape[2])
            return hook_sum(x, w, out=out).bfloat16()

        hook_sum = hook.hc_weighted_sum
        stream = SimpleNamespace(cuda_stream=1)
        with (
            mock.patch.dict(sys.modules, {"sglang.srt.layers.mhc": mhc}),
            mock.patch.object(hook, "hc_pre_linear", linear),
            mock.patch.object(hook, "hc_weighted_sum", summed),
            mock.patch("torch.cuda.current_stream", lambda *_: stream),
            mock.patch("torch.cuda.is_current_stream_capturing", lambda: False),
        ):
            yield one


def inputs(rows, seed):
    gen = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, HC, DIM, generator=gen) * 3).bfloat16()
    fn = torch.randn((2 + HC) * HC, HC * DIM, generator=gen) * 0.02
    return x, fn, torch.rand(3, generator=gen), torch.randn((2 + HC) * HC) * 0.1


def expected(x, fn, scale, base, mixes):
    """Upstream's steps after the mixes."""
    pre, post, comb = hc_split_sinkhorn_ref(
        mixes.unsqueeze(1), scale, base, HC, 20, EPS
    )
    y = (pre.squeeze(1).unsqueeze(-1) * x.float()).sum(dim=1)
    return y.to(x.dtype), post.squeeze(1), comb.squeeze(1)


@pytest.mark.parametrize("rows", (0, 1, 19, 300))
def test_off_is_the_release_bit_for_bit(layer, release, rows, seed):
    os.environ["SGLANG_SM120_HC_PRE"] = "off"
    # The release's own function has no use for our names.
    theirs = {k: v for k, v in layer.namespace.items() if k != "sm120_hc_pre"}
    released = stock.load_method(
        MODEL, "DeepseekV4DecoderLayer", "hc_pre", namespace=theirs, place=release
    )
    given = inputs(rows, seed)
    *got, fused = layer.hc_pre(*given)
    *wanted, fused_there = released(layer, *given)
    assert not layer.ran and fused is fused_there is False
    for one, want in zip(got, wanted, strict=True):
        assert one.shape == want.shape and one.dtype == want.dtype
        assert_bitwise_equal(one, want)


@pytest.mark.parametrize("flag", ("auto", "on"))
@pytest.mark.parametrize("weights", ("split", "bf16"))
def test_on_gives_what_its_mixes_give(layer, flag, weights, seed):
    os.environ["SGLANG_SM120_HC_PRE"] = flag
    os.environ["SGLANG_SM120_HC_PRE_WEIGHTS"] = weights
    x, fn, scale, base = inputs(19, seed)
    mixes = []
    real = layer.mhc.hc_split_sinkhorn
    layer.mhc.hc_split_sinkhorn = lambda m, *rest: mixes.append(m) or real(m, *rest)
    *got, fused = layer.hc_pre(x, fn, scale, base)
    assert layer.ran == [weights] and fused is False
    reference = hc_pre_linear_ref(x.flatten(1), fn, EPS)
    tolerance = {"split": 3e-5, "bf16": 2e-2}[weights]
    assert_close(mixes[0].squeeze(1), reference.values, reference.magnitudes, tolerance)
    for one, want in zip(got, expected(x, fn, scale, base, mixes[0].squeeze(1))):
        assert one.shape == want.shape and one.dtype == want.dtype
        assert_bitwise_equal(one, want)


def test_an_update_of_the_weight_is_used(layer, seed):
    x, fn, scale, base = inputs(3, seed)
    before = layer.hc_pre(x, fn, scale, base)[0]
    fn.copy_(fn.flip(1))
    after = layer.hc_pre(x, fn, scale, base)[0]
    assert not torch.equal(before, after)


def test_no_rows_and_a_path_of_the_user(layer, seed):
    x, fn, scale, base = inputs(3, seed)
    assert layer.hc_pre(x[:0], fn, scale, base)[0].shape == (0, DIM)
    os.environ["SGLANG_OPT_USE_TILELANG_MHC_PRE"] = "1"
    layer.hc_pre(x, fn, scale, base)
    assert layer.mhc.mhc_pre.called and not layer.ran
