"""Patch 0040's side: when logits are put off, and what a server refuses at start."""

from __future__ import annotations

import ast
import os
from types import SimpleNamespace

import pytest
import torch

import sglang_tree
import stock

HOOK = "layers.sm120.prefill_hook"


@pytest.fixture
def hook():
    with sglang_tree.on_sm120(HOOK) as module:
        yield module


def call(hook, rows=4096, pages=512, fn=None, metadata=None, q=None):
    """What logits() gives for a call of this size; the logits function only names its rows."""
    q = torch.empty(rows, 1, 64, 128, device="meta") if q is None else q
    table = torch.empty(rows, pages, dtype=torch.int32, device="meta")
    fn = fn or (lambda q, *_: f"logits of {len(q)} rows")
    return hook.logits(fn, q, None, q, q, table, metadata, 64 * pages, False)


def ours():
    def fn(q, *_):
        return f"logits of {len(q)} rows"

    fn.row_page_bytes = 256
    return fn


def test_a_call_within_the_budget_runs_at_once(hook):
    assert call(hook, fn=ours()) == "logits of 4096 rows"


def test_a_call_past_the_budget_is_put_off(hook):
    deferred = call(hook, rows=8192, fn=ours())
    assert list(deferred.parts()) == [
        slice(0, 4096),
        slice(4096, 8192),
    ]


def test_the_torch_fallback_counts_what_it_really_holds(hook):
    deferred = call(hook, rows=8192, pages=32)
    most = (512 << 20) // (32 * 73_984)
    blocks = -(-8192 // most)
    assert deferred.rows_per_block == -(-8192 // blocks) <= most


def test_the_budget_is_the_users(hook):
    os.environ["SGLANG_SM120_LOGITS_MB"] = "64"
    assert call(hook, fn=ours()).rows_per_block == 512


@pytest.mark.parametrize("word", ["0", "-1", "", "1.5", "512MB", "many"])
def test_a_budget_that_is_no_size_stops_the_server(hook, word):
    os.environ["SGLANG_SM120_LOGITS_MB"] = word
    with pytest.raises(
        RuntimeError, match=f"SGLANG_SM120_LOGITS_MB='{word}': expected"
    ):
        hook.check(SimpleNamespace())


def test_off_never_puts_off(hook):
    os.environ["SGLANG_SM120_PREFILL"] = "off"
    assert call(hook, rows=100_000) == "logits of 100000 rows"


def test_a_schedule_of_the_whole_batch_is_not_cut(hook):
    metadata = torch.empty(1)
    assert call(hook, rows=100_000, metadata=metadata) == "logits of 100000 rows"


def test_the_fp4_indexer_is_not_cut(hook):
    pair = (torch.empty(3), torch.empty(3))
    assert call(hook, rows=100_000, q=pair, fn=lambda q, *_: q) is pair


def test_sparse_prefill_is_refused_where_ours_is_active(hook):
    os.environ["SGLANG_OPT_FLASHMLA_SPARSE_PREFILL"] = "1"
    with pytest.raises(RuntimeError, match="sm_90 and sm_100 only. Unset it, or set"):
        hook.check(SimpleNamespace())
    os.environ["SGLANG_SM120_PREFILL"] = "off"
    hook.check(SimpleNamespace())


def test_the_sparse_prefill_kernel_is_behind_the_flag():
    path = "python/sglang/srt/layers/attention/deepseek_v4_backend.py"
    tree = ast.parse((stock.tree() / path).read_text())
    guards = [
        ast.unparse(node.test)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and "_forward_prefill_sparse" in ast.unparse(node.body[0])
    ]
    (guard,) = guards
    assert guard.endswith("and (not sm120_prefill.active())")
