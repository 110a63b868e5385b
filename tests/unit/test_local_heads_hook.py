"""Patch 0080's choice: when a rank attends on its own heads only, what is logged, what is refused."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest

import sglang_tree

HOOK = "layers.sm120.local_heads_hook"
FLAG, DECODE, PREFILL = (
    "SGLANG_SM120_LOCAL_HEADS",
    "SGLANG_SM120_DECODE",
    "SGLANG_SM120_PREFILL",
)


def server_args(tp=4, dp=1, cp=1, dp_attention=False, prefill_cp=False):
    return SimpleNamespace(
        tp_size=tp,
        dp_size=dp,
        attn_cp_size=cp,
        enable_dp_attention=dp_attention,
        enable_dsa_prefill_context_parallel=prefill_cp,
    )


@pytest.fixture
def hook():
    with sglang_tree.on_sm120(HOOK) as module:
        yield module


@pytest.fixture
def on_sm90():
    with sglang_tree.modules(HOOK, sm120=False) as (module,):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
        with (
            mock.patch.dict(os.environ, clean, clear=True),
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        ):
            yield module


@pytest.mark.parametrize(
    "flag,expected", [("auto", True), ("on", True), ("off", False)]
)
@pytest.mark.parametrize(
    "kernel",
    [{}, {DECODE: "off"}, {"SGLANG_SM120_TRITON_FLASHMLA": "0"}, {PREFILL: "off"}],
    ids=str,
)
def test_any_attention_of_sm_120_takes_any_number_of_heads(
    hook, flag, expected, kernel
):
    os.environ.update(kernel | {FLAG: flag})
    hook.check(server_args())
    assert hook.active(4) == expected


@pytest.mark.parametrize(
    "flag,others,expected",
    [
        ("auto", {DECODE: "on", PREFILL: "on"}, False),
        ("on", {DECODE: "on", PREFILL: "on"}, True),
        ("off", {}, False),
    ],
)
def test_another_card(on_sm90, flag, others, expected):
    os.environ.update(others | {FLAG: flag})
    on_sm90.check(server_args())
    assert on_sm90.active(4) == expected


@pytest.mark.parametrize(
    "others,why",
    [
        (
            {},
            "FlashMLA attends here, which takes 64 or 128 heads, as SGLANG_SM120_DECODE is not in use",
        ),
        ({DECODE: "off", PREFILL: "on"}, "FlashMLA attends here"),
        (
            {DECODE: "on"},
            "the sparse prefill kernel, which takes 64 or 128 heads, can run here, as"
            " SGLANG_SM120_PREFILL is not in use",
        ),
    ],
)
def test_on_where_flashmla_needs_all_heads_stops_the_server(on_sm90, others, why):
    os.environ.update(others | {FLAG: "on"})
    with pytest.raises(RuntimeError, match=f"{FLAG}=on cannot work: {why}"):
        on_sm90.check(server_args())


def test_an_sm_120_card_that_upstream_does_not_take_for_one_needs_our_kernel():
    """CUDA older than 12.8: upstream calls FlashMLA."""
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
        mock.patch.dict(os.environ, {FLAG: "auto", DECODE: "off"}),
        sglang_tree.modules(HOOK, sm120=False) as (module,),
    ):
        assert not module.active(4)
        os.environ[DECODE] = "auto"
        assert module.active(4)


@pytest.mark.parametrize("flag", ["auto", "on", "off"])
@pytest.mark.parametrize(
    "args,why",
    [
        (server_args(tp=1), "--tp-size 1"),
        (
            server_args(tp=4, dp=4, dp_attention=True),
            "--tp-size 4 with DP attention of the same size",
        ),
        (server_args(tp=4, cp=4, prefill_cp=True), "prefill context parallelism"),
    ],
)
def test_where_each_rank_has_all_heads_the_log_says_so(hook, args, why, flag, caplog):
    os.environ[FLAG] = flag
    with caplog.at_level("INFO"):
        hook.check(args)
        assert not hook.active(1) and not hook.active(1)
    assert caplog.messages == [
        f"sm_120 heads: nothing to do (each rank has all heads: {why})",
        "sm_120 heads: nothing to do (each rank has all heads)",
    ]


@pytest.mark.parametrize(
    "args",
    [server_args(tp=8, dp=2, dp_attention=True), server_args(tp=4, dp=2)],
    ids=["part of the ranks", "data parallelism without DP attention"],
)
def test_attention_over_part_of_the_ranks_has_heads_to_drop(hook, args, caplog):
    with caplog.at_level("INFO"):
        hook.check(args)
    assert caplog.messages == [
        f"sm_120 heads: attention on this rank's heads only ({FLAG}=auto, cuda 12.0)"
    ]


def test_a_bad_word_stops_the_server_whatever_its_size(hook):
    os.environ[FLAG] = "1"
    for tp in (1, 4):
        with pytest.raises(RuntimeError, match=f"{FLAG}='1': expected one of"):
            hook.check(server_args(tp=tp))
