"""Patch 0045's side: whose metadata function runs, and that a table is padded only when it must be."""

from __future__ import annotations

import ast
import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import sglang_tree
import stock

BACKEND = "python/sglang/srt/layers/attention/deepseek_v4_backend.py"


@pytest.fixture
def hook():
    with sglang_tree.on_sm120("layers.sm120.metadata_hook") as module:
        yield module


def test_off_is_upstreams_function_itself(hook):
    os.environ["SGLANG_SM120_METADATA"] = "off"
    stock_function = object()
    assert hook.pick(stock_function) is stock_function


@pytest.mark.parametrize("flag", ["auto", "on"])
def test_ours_takes_upstreams_arguments(hook, flag):
    os.environ["SGLANG_SM120_METADATA"] = flag
    with mock.patch.object(hook, "compression_metadata", return_value="eight") as ours:
        picked = hook.pick(None)
        got = picked("lens", "pos", "loc", "table", 256, compute_page_indices=True)
    assert got == "eight"
    ours.assert_called_once_with("lens", "pos", "loc", "table", 256)


def test_another_card_keeps_upstreams_unless_asked(hook):
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        assert hook.pick("upstream") == "upstream"


@pytest.mark.parametrize(
    "name,value",
    [("SGLANG_SM120_TRITON_FLASHMLA", "0"), ("SGLANG_SM120_PREFILL", "off")],
)
def test_it_gives_way_where_upstream_reads_past_the_lengths(hook, name, value):
    os.environ[name] = value
    assert hook.pick("upstream") == "upstream"
    os.environ["SGLANG_SM120_METADATA"] = "on"
    with pytest.raises(RuntimeError, match=f"METADATA=on conflicts with {name}"):
        hook.check(SimpleNamespace())


def test_on_another_card_needs_prefill_on_too(hook):
    os.environ["SGLANG_SM120_METADATA"] = "on"
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        with pytest.raises(RuntimeError, match="SGLANG_SM120_PREFILL not in use"):
            hook.check(SimpleNamespace())
        os.environ["SGLANG_SM120_PREFILL"] = "on"
        hook.check(SimpleNamespace())
        assert hook.pick("upstream") != "upstream"


def test_a_bad_word_stops_the_server(hook):
    os.environ["SGLANG_SM120_METADATA"] = "yes"
    with pytest.raises(RuntimeError, match="SGLANG_SM120_METADATA='yes': expected"):
        hook.check(SimpleNamespace())


def test_the_backend_asks_the_hook():
    source = (stock.tree() / BACKEND).read_text()
    (call,) = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and "sm120_metadata.pick" in ast.unparse(node.func)
        and isinstance(node.func, ast.Call)
    ]
    assert call.startswith("sm120_metadata.pick(_init_compression_metadata_triton)(")


def test_a_table_that_needs_no_padding_is_not_copied():
    namespace = {
        "F": F,
        "PAGE_INDEX_ALIGNED_SIZE": 64,
        "ceil_align": lambda n, multiple: -(-n // multiple) * multiple,
    }
    (pad,) = stock.load_functions(BACKEND, ["_pad_last_dim"], namespace)
    aligned, short = torch.zeros(2, 128), torch.zeros(2, 100)
    assert pad(aligned) is aligned
    assert pad(short).shape == (2, 128) and (pad(short)[:, 100:] == -1).all()
    assert pad(None) is None
