"""Patch 0030's side of the indexer: when our kernel is used, what is logged, what metadata is built."""

from __future__ import annotations

import logging
import os
from unittest import mock

import pytest
import torch

import sglang_tree

HOOK = "layers.sm120.indexer_hook"
METADATA = "layers.attention.dsv4.metadata"


@pytest.fixture(autouse=True)
def clean_environment():
    names = (
        "SGLANG_SM120_INDEXER",
        "SGLANG_SM120_TORCH_INDEXER_BF16",
        "SGLANG_OPT_USE_TILELANG_INDEXER",
        "SGLANG_OPT_USE_AITER_INDEXER",
        "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH",
    )
    clean = {k: v for k, v in os.environ.items() if k not in names}
    with mock.patch.dict(os.environ, clean, clear=True):
        os.environ["SGLANG_OPT_USE_TOPK_V2"] = "0"
        yield


@pytest.fixture(params=[(12, 0), (9, 0)], ids=["sm_120", "sm_90"])
def capability(request):
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=request.param),
    ):
        yield request.param


@pytest.mark.parametrize("flag", ["auto", "on", "off"])
@pytest.mark.parametrize("other", [None, "TILELANG", "AITER"])
def test_precedence(capability, flag, other):
    os.environ["SGLANG_SM120_INDEXER"] = flag
    if other:
        os.environ[f"SGLANG_OPT_USE_{other}_INDEXER"] = "1"
    with sglang_tree.modules(HOOK) as (hook,):
        if flag == "on" and other:
            with pytest.raises(
                RuntimeError, match=f"conflicts with SGLANG_OPT_USE_{other}"
            ):
                hook.active()
            return
        on_by_default = flag == "auto" and capability == (12, 0) and not other
        assert hook.active() == (flag == "on" or on_by_default)


def test_one_log_line_whatever_the_number_of_calls(capability, caplog):
    with caplog.at_level(logging.INFO), sglang_tree.modules(HOOK) as (hook,):
        for _ in range(5):
            hook.active()
    (line,) = caplog.messages
    assert line.startswith("sm_120 indexer: ") and "SGLANG_SM120_INDEXER=auto" in line


def test_the_check_at_start_logs_the_path(capability, caplog):
    with caplog.at_level(logging.INFO), sglang_tree.modules(HOOK) as (hook,):
        hook.check(mock.Mock(enable_deepseek_v4_fp4_indexer=False))
    line, torch_indexer = caplog.messages
    assert line.startswith("sm_120 indexer: ")
    assert torch_indexer.startswith("sm_120 torch indexer: ")


@pytest.mark.parametrize(
    "ours,flag,path",
    [
        ("on", "on", "not used"),
        ("on", "off", "not used"),
        ("off", "on", "bf16 products"),
        ("off", "off", "upstream's float32 products"),
    ],
)
def test_the_check_at_start_logs_how_the_torch_indexer_multiplies(
    capability, ours, flag, path, caplog
):
    name = "SGLANG_SM120_TORCH_INDEXER_BF16"
    os.environ.update({"SGLANG_SM120_INDEXER": ours, name: flag})
    with caplog.at_level(logging.INFO), sglang_tree.modules(HOOK) as (hook,):
        hook.check(mock.Mock(enable_deepseek_v4_fp4_indexer=False))
    assert caplog.messages[1:] == [f"sm_120 torch indexer: {path} ({name}={flag})"]


@pytest.mark.parametrize("ours", ["auto", "on", "off"])
def test_a_bad_word_for_the_torch_indexer_stops_the_server(capability, ours):
    name = "SGLANG_SM120_TORCH_INDEXER_BF16"
    os.environ.update({"SGLANG_SM120_INDEXER": ours, name: "yes"})
    with sglang_tree.modules(HOOK) as (hook,):
        with pytest.raises(RuntimeError, match=f"{name}='yes': expected one of"):
            hook.check(mock.Mock(enable_deepseek_v4_fp4_indexer=False))


def test_the_check_at_start_knows_the_fp4_indexer(caplog):
    available = mock.patch("torch.cuda.is_available", return_value=True)
    card = mock.patch("torch.cuda.get_device_capability", return_value=(12, 0))
    with caplog.at_level(logging.INFO), available, card:
        with sglang_tree.modules(HOOK) as (hook,):
            hook.check(mock.Mock(enable_deepseek_v4_fp4_indexer=True))
    line = caplog.messages[0]
    assert "upstream's path" in line
    assert "yields to --enable-deepseek-v4-fp4-indexer" in line


def metadata_of(module):
    lens = torch.tensor([3], dtype=torch.int32)
    return module.PagedIndexerMetadata(256, torch.zeros(1, 1, dtype=torch.int32), lens)


def test_deep_gemm_is_needed_only_where_ours_does_not_run(capability):
    for flag, needs in (("on", False), ("off", True)):
        os.environ["SGLANG_SM120_INDEXER"] = flag
        with sglang_tree.modules(METADATA) as (metadata,):
            if needs:
                with pytest.raises(ModuleNotFoundError, match="deep_gemm"):
                    metadata_of(metadata)
            else:
                assert metadata_of(metadata).deep_gemm_metadata is None


def test_the_kernel_is_called_with_the_k_of_the_selection():
    with sglang_tree.modules(HOOK) as (hook,):
        with mock.patch.object(hook, "paged_mqa_logits") as kernel:
            hook.logits_fn(1024)("q", "kv", "w", "lens", "table", None, 4096, False)
    kernel.assert_called_once_with(
        "q", "kv", "w", "lens", "table", 4096, skip_below=1024
    )
