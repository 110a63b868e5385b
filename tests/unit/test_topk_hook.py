"""Patch 0050's side: when the exact top-k runs, what a server refuses, which workspace a call gets."""

from __future__ import annotations

import os
import sys
import weakref
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import sglang_tree

HOOK = "layers.sm120.topk_hook"


@pytest.fixture
def hook():
    with sglang_tree.on_sm120(HOOK) as module:
        yield module


@pytest.mark.parametrize(
    "flag,expected", [("auto", True), ("on", True), ("off", False)]
)
def test_the_flag(hook, flag, expected):
    os.environ["SGLANG_SM120_TOPK"] = flag
    assert hook.active() == expected


def test_the_torch_version_of_the_user_comes_first(hook):
    os.environ["SGLANG_TOPK_TRANSFORM_512_TORCH"] = "1"
    assert not hook.active()
    os.environ["SGLANG_SM120_TOPK"] = "on"
    with pytest.raises(
        RuntimeError, match="conflicts with SGLANG_TOPK_TRANSFORM_512_TORCH=1"
    ):
        hook.check(SimpleNamespace())


def test_a_python_without_the_compiler_is_refused_at_start(hook):
    compiler_check = sys.modules[hook.check_compiled.__module__]
    with mock.patch.object(compiler_check, "_has_bindings", return_value=False):
        with pytest.raises(
            RuntimeError, match="install SGLang's own requirement cuda-python"
        ):
            hook.check(SimpleNamespace())
        os.environ["SGLANG_SM120_TOPK"] = "off"
        hook.check(SimpleNamespace())


@pytest.fixture
def streams(hook):
    """Calls of select on CPU tensors; returns (stream, capturing) setters and the workspaces given."""
    state = SimpleNamespace(stream=1, capturing=False, given=[])

    def kernel(*_args, workspace):
        state.given.append(workspace)

    def select(rows, width, k=512):
        scores = torch.empty(rows, width, device="meta")
        out = torch.empty(rows, k, dtype=torch.int32, device="meta")
        hook.select(scores, None, None, out, 64)
        return state.given[-1]

    state.select = select
    with (
        mock.patch.object(hook, "topk_page_indices", kernel),
        mock.patch(
            "torch.cuda.current_stream",
            lambda *_: SimpleNamespace(cuda_stream=state.stream),
        ),
        mock.patch("torch.cuda.is_current_stream_capturing", lambda: state.capturing),
    ):
        yield state


def test_a_workspace_is_used_again_while_it_is_large_enough(streams):
    first = streams.select(64, 262_144)
    assert streams.select(64, 262_144) is first
    assert streams.select(1, 100) is first
    assert streams.select(32, 262_144) is first


def test_one_that_is_too_small_is_replaced_by_a_power_of_two(streams):
    small = streams.select(8, 1_024)
    large = streams.select(60, 262_144)
    assert large is not small and large.arrived.numel() == 64
    wide = streams.select(200, 1_024)
    assert wide.arrived.numel() == 256
    assert wide.maxima.numel() == large.maxima.numel()
    assert streams.select(64, 262_144) is wide


def test_an_outgrown_one_is_kept_only_for_a_graph_that_uses_it(hook, streams):
    eager = weakref.ref(streams.select(8, 1_024).arrived)
    streams.select(64, 262_144)
    streams.given.clear()
    assert eager() is None
    streams.capturing = True
    used = weakref.ref(streams.select(64, 262_144).arrived)
    streams.select(64, 262_144)
    streams.capturing = False
    streams.select(500, 262_144)
    streams.given.clear()
    assert used() is not None and len(hook._WORKSPACES._captured) == 1


def test_a_long_prompt_in_chunks_makes_few(streams):
    for pages in range(8, 4_097, 8):
        streams.select(2_048, 64 * pages)
    made = {id(one) for one in streams.given}
    assert len(made) <= 10


def test_streams_and_ks_do_not_share(streams):
    first = streams.select(8, 100_000)
    assert streams.select(8, 100_000, k=1_024) is not first
    streams.stream = 2
    assert streams.select(8, 100_000) is not first
    streams.stream = 1
    assert streams.select(8, 100_000) is first


def test_what_is_made_inside_a_capture_belongs_to_that_graph(streams):
    eager = streams.select(8, 1_024)
    streams.capturing = True
    assert streams.select(4, 1_024) is eager
    captured = streams.select(64, 262_144)
    assert captured is not eager
    streams.capturing = False
    assert streams.select(8, 1_024) is eager
    assert streams.select(64, 262_144) is not captured
