"""Patch 0060's side: which kernel attends, with which arguments, and what a server refuses."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from attention_call import forward, inputs, process

FLAG, USERS = "SGLANG_SM120_DECODE", "SGLANG_SM120_TRITON_FLASHMLA"
OURS, FLASHMLA = "ours", "FlashMLA"
TRITON, TORCH = "upstream's Triton kernel", "upstream's torch version"

# (capability, flag, the user's setting): who attends. None: the server does not start.
ROWS = {
    ((12, 0), "auto", None): OURS,
    ((12, 0), "auto", "1"): OURS,
    ((12, 0), "auto", "0"): TORCH,
    ((12, 0), "on", None): OURS,
    ((12, 0), "on", "1"): OURS,
    ((12, 0), "on", "0"): None,
    ((12, 0), "off", None): TRITON,
    ((12, 0), "off", "1"): TRITON,
    ((12, 0), "off", "0"): TORCH,
    ((12, 1), "auto", None): OURS,
    ((12, 1), "off", None): TRITON,
    ((9, 0), "auto", None): FLASHMLA,
    ((9, 0), "auto", "0"): FLASHMLA,
    ((9, 0), "on", None): OURS,
    ((9, 0), "on", "1"): OURS,
    ((9, 0), "on", "0"): None,
    ((9, 0), "off", None): FLASHMLA,
    ((9, 0), "off", "0"): FLASHMLA,
    ((10, 0), "auto", None): FLASHMLA,
    ((10, 0), "on", None): OURS,
    ((8, 0), "auto", None): FLASHMLA,
    ((8, 0), "on", None): None,
}


def environment(flag, users):
    return {FLAG: flag} | ({USERS: users} if users is not None else {})


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("row", [row for row, who in ROWS.items() if who], ids=str)
def test_who_attends(row, ratio):
    capability, flag, users = row
    with process(capability, **environment(flag, users)) as backend:
        assert forward(backend, ratio, inputs(ratio)) == f"output of {ROWS[row]}"
        assert [name for name, _, _ in backend.calls] == [ROWS[row]]


@pytest.mark.parametrize("row", [row for row, who in ROWS.items() if not who], ids=str)
def test_on_where_it_cannot_work_stops_the_server(row):
    capability, flag, users = row
    why = (
        f"{FLAG}=on conflicts with {USERS}=0: unset one of the two"
        if users == "0"
        else f"{FLAG}=on needs compute capability 8.9 or newer"
    )
    with process(capability, **environment(flag, users)) as backend:
        with pytest.raises(RuntimeError, match=why):
            backend.decode_hook.check(SimpleNamespace())


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize(
    "flag,users,who",
    [("off", None, TRITON), ("off", "0", TORCH), ("auto", None, OURS)],
)
def test_the_kernels_get_the_layers_own_tensors(flag, users, who, ratio):
    """Off is upstream bit for bit: its own functions, called with what the layer gave."""
    given = inputs(ratio)
    with process((12, 0), **environment(flag, users)) as backend:
        forward(backend, ratio, given)
    ((_, args, kwargs),) = backend.calls
    q, cache, indices, lens, sink, head_dim_v, scale, *extra = args
    assert (head_dim_v, scale) == (512, 512**-0.5)
    assert q.data_ptr() == given.q.data_ptr() and q.shape == (2, 1, 16, 512)
    assert indices.data_ptr() == given.swa_indices.data_ptr()
    assert lens is given.swa_lens and sink is given.sink
    assert cache.shape == (3, 256, 1, 584) and cache.stride(0) == 149_760
    extra_cache, extra_indices, extra_lens = extra
    if ratio:
        assert extra_cache.shape == (3, 256 // ratio, 1, 584)
        assert extra_cache.stride(0) == 37_440
        assert extra_indices.data_ptr() == given.extra_indices.data_ptr()
        assert extra_lens is given.extra_lens
    else:
        assert extra == [None, None, None]
    assert kwargs.keys() == ({"num_splits", "workspace"} if who == OURS else set())


def test_off_leaves_flashmla_its_arguments():
    given = inputs(4)
    with process((9, 0), **{FLAG: "off"}) as backend:
        forward(backend, 4, given)
    ((name, args, kwargs),) = backend.calls
    assert name == FLASHMLA and not args
    assert kwargs["tile_scheduler_metadata"] == "FlashMLA's schedule"
    assert kwargs["attn_sink"] is given.sink
    assert sorted(kwargs) == [
        "attn_sink",
        "block_table",
        "cache_seqlens",
        "extra_indices_in_kvcache",
        "extra_k_cache",
        "extra_topk_length",
        "head_dim_v",
        "indices",
        "is_fp8_kvcache",
        "k_cache",
        "q",
        "softmax_scale",
        "tile_scheduler_metadata",
        "topk_length",
    ]


def test_flashmlas_schedule_is_made_only_where_it_attends():
    for capability, flag, made in [
        ((9, 0), "auto", True),
        ((9, 0), "on", False),
        ((12, 0), "off", False),
    ]:
        with process(capability, **{FLAG: flag}) as backend:
            assert (backend._create_flashmla_metadata() is not None) == made


def test_the_path_is_logged_once(caplog):
    with caplog.at_level("INFO"), process((12, 0), **{USERS: "0"}) as backend:
        backend.decode_hook.check(SimpleNamespace())
        for _ in range(2):
            forward(backend, 0, inputs(0))
    assert caplog.messages == [
        f"sm_120 attention: upstream's path ({FLAG}=auto yields to {USERS}=0)"
    ]


def test_a_python_without_the_compiler_is_refused_at_start():
    for flag in ("auto", "on", "off"):
        with process((12, 0), **{FLAG: flag}) as backend:
            check = backend.decode_hook.check
            compiler = sys.modules[check.__globals__["check_compiled"].__module__]
            with mock.patch.object(compiler, "_has_bindings", return_value=False):
                if flag == "off":
                    check(SimpleNamespace())
                    continue
                with pytest.raises(
                    RuntimeError,
                    match=f"{FLAG}={flag}, cuda 12.0: the attention kernel is compiled with cuda.bindings"
                    f".* or set {FLAG}=off",
                ):
                    check(SimpleNamespace())


@pytest.fixture
def workspace_of():
    """The workspace that the kernel gets for a number of heads and rows on a stream."""
    with process((12, 0)) as backend:

        def workspace_of(heads, rows=1, num_splits=None, stream=1, capturing=False):
            backend.stream.cuda_stream = stream
            backend.stream.capturing = capturing
            q = torch.empty(rows, 1, heads, 512, device="meta")
            backend.decode_hook.attend(q, *[None] * 9, num_splits=num_splits)
            return backend.calls[-1][2]["workspace"]

        yield workspace_of


def test_one_workspace_serves_a_streams_batches_and_graphs(workspace_of):
    first = workspace_of(16)
    assert first.heads == 16 and workspace_of(16, rows=64) is first
    assert workspace_of(16, rows=8, capturing=True) is first
    assert workspace_of(16, stream=2) is not first


def test_other_numbers_of_heads_have_their_own(workspace_of):
    first = workspace_of(16)
    assert workspace_of(64) is not first
    assert workspace_of(16) is first


def test_what_is_made_inside_a_capture_belongs_to_that_graph(workspace_of):
    captured = workspace_of(16, capturing=True)
    assert workspace_of(16) is not captured


def test_one_split_needs_no_workspace(workspace_of):
    assert workspace_of(16, num_splits=1) is None
