"""Patch 0090's side: when our hc_pre runs, what a server refuses, which counters a call gets."""

from __future__ import annotations

import logging
import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import sglang_tree

HOOK = "layers.sm120.hc_pre_hook"
BF16 = torch.bfloat16
TILELANG, DEEP_GEMM = (
    "SGLANG_OPT_USE_TILELANG_MHC_PRE",
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM",
)


@pytest.fixture
def hook():
    with sglang_tree.on_sm120(HOOK) as module:
        compiler_check = sys.modules[module.check_compiled.__module__]
        with mock.patch.object(compiler_check, "_has_bindings", return_value=True):
            yield module


@pytest.fixture
def on_an_h200(hook):
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        yield hook


def server_args(**changes):
    return SimpleNamespace(**({"dtype": "auto"} | changes))


@pytest.mark.parametrize(
    "flag,expected", [("auto", True), ("on", True), ("off", False)]
)
def test_the_flag(hook, flag, expected):
    os.environ["SGLANG_SM120_HC_PRE"] = flag
    hook.check(server_args())
    assert hook.active(BF16) == expected


@pytest.mark.parametrize("name", (TILELANG, DEEP_GEMM))
def test_a_path_of_the_user_comes_first(hook, name, caplog):
    os.environ[name] = "1"
    with caplog.at_level(logging.INFO):
        assert not hook.active(BF16)
    assert (
        f"upstream's path (SGLANG_SM120_HC_PRE=auto yields to {name}=1)" in caplog.text
    )
    hook.check(server_args())
    os.environ["SGLANG_SM120_HC_PRE"] = "on"
    with pytest.raises(RuntimeError, match=f"conflicts with {name}=1"):
        hook.check(server_args())


def test_what_the_server_turns_off_is_no_conflict(hook):
    os.environ["SGLANG_SM120_HC_PRE"] = "on"
    os.environ[TILELANG] = os.environ[DEEP_GEMM] = "False"
    hook.check(server_args())
    assert hook.active(BF16)


def test_off_sm120_on_names_the_defaults_that_come_first(on_an_h200):
    hook = on_an_h200
    hook.check(server_args())
    assert not hook.active(BF16)
    os.environ["SGLANG_SM120_HC_PRE"] = "on"
    with pytest.raises(
        RuntimeError, match=f"=on needs {TILELANG}=0 and {DEEP_GEMM}=0 on this card"
    ):
        hook.check(server_args())
    os.environ[TILELANG] = "0"
    with pytest.raises(RuntimeError, match=f"=on needs {DEEP_GEMM}=0 on this card"):
        hook.check(server_args())
    os.environ[DEEP_GEMM] = "0"
    hook.check(server_args())
    assert hook.active(BF16)


@pytest.mark.parametrize("dtype", ("half", "float16", "float", "float32"))
def test_a_model_in_another_type_is_upstreams(hook, dtype):
    hook.check(server_args(dtype=dtype))
    assert not hook.active(torch.float16)
    os.environ["SGLANG_SM120_HC_PRE"] = "on"
    with pytest.raises(RuntimeError, match="conflicts with activations of torch.float"):
        hook.check(server_args(dtype=dtype))
    with pytest.raises(RuntimeError, match="activations of torch.float16"):
        hook.active(torch.float16)


def test_a_python_without_the_compiler_is_refused_at_start(hook):
    compiler_check = sys.modules[hook.check_compiled.__module__]
    with mock.patch.object(compiler_check, "_has_bindings", return_value=False):
        with pytest.raises(
            RuntimeError, match="install SGLang's own requirement cuda-python"
        ):
            hook.check(server_args())
        os.environ["SGLANG_SM120_HC_PRE"] = "off"
        hook.check(server_args())


def test_a_word_that_is_none_stops_the_server(hook):
    os.environ["SGLANG_SM120_HC_PRE_WEIGHTS"] = "fp8"
    for flag in ("auto", "off"):
        os.environ["SGLANG_SM120_HC_PRE"] = flag
        with pytest.raises(
            RuntimeError, match="SGLANG_SM120_HC_PRE_WEIGHTS='fp8': expected one of"
        ):
            hook.check(server_args())


@pytest.mark.parametrize("flag,lines", [("on", 1), ("off", 0)])
def test_the_weights_are_logged_where_ours_runs(hook, flag, lines, caplog):
    os.environ["SGLANG_SM120_HC_PRE"] = flag
    os.environ["SGLANG_SM120_HC_PRE_WEIGHTS"] = "bf16"
    compiler_check = sys.modules[hook.check_compiled.__module__]
    compiled = mock.patch.object(compiler_check, "_has_bindings", return_value=True)
    off = {name: "0" for name in hook.EARLIER}
    with caplog.at_level("INFO"), compiled, mock.patch.dict(os.environ, off):
        hook.check(server_args())
    said = "sm_120 hc_pre weights: bf16 (SGLANG_SM120_HC_PRE_WEIGHTS=bf16)"
    assert caplog.messages.count(said) == lines


@pytest.mark.parametrize("weights", ("split", "bf16"))
def test_mixes_passes_the_flag_and_the_shapes_on(hook, weights):
    os.environ["SGLANG_SM120_HC_PRE_WEIGHTS"] = weights
    seen = []

    def kernel(x, fn, eps, *, weights, workspace):
        seen.append((tuple(x.shape), eps, weights, workspace.partial.numel()))
        return x.new_empty(x.shape[0], fn.shape[0], dtype=torch.float32)

    x = torch.empty(20, 4, 256, dtype=BF16, device="meta")
    fn = torch.empty(24, 1_024, device="meta")
    with (
        mock.patch.object(hook, "hc_pre_linear", kernel),
        mock.patch.object(
            hook._COUNTERS, "get", lambda _device, size: seen.append(size)
        ),
    ):
        assert hook.mixes(x, fn, 1e-5).shape == (20, 1, 24)
    assert seen == [1_024, ((20, 1_024), 1e-5, weights, 2 * 2 * 16 * 28)]


def test_the_counters_of_a_stream_are_zero_and_used_again(hook):
    stream = SimpleNamespace(cuda_stream=1)
    with (
        mock.patch("torch.cuda.current_stream", lambda *_: stream),
        mock.patch("torch.cuda.is_current_stream_capturing", lambda: False),
    ):
        counters = hook._COUNTERS.get(torch.device("cpu"), 1_024)
        assert not counters.any() and counters.dtype == torch.int32
        assert hook._COUNTERS.get(torch.device("cpu"), 4) is counters
