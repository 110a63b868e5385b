"""The attention on a real GPU: errors beside the stock kernel's, graphs, determinism, memory, addresses."""

from __future__ import annotations

import pytest
import torch

import compile_gate
import stock
from decode_cases import (
    DECODE_EDGES,
    SCORES,
    UNWRITTEN,
    DecodeCase,
    assert_attention,
    make_decode,
    unwritten,
)
from kernels.config import has_large_sms
from kernels.cuda_cpp import CudaKernel
from kernels.decode import decode_workspace, plan, sparse_mla_decode
from kernels.decode_ref import sparse_mla_decode_ref
from numeric import assert_bitwise_equal

DEVICE = "cuda"


def run(inputs, workspace=None, **options):
    out, lse = unwritten(inputs)
    if workspace is None:
        workspace = decode_workspace(inputs.q.shape[2], DEVICE)
        workspace.partials.fill_(float("nan"))
    got = sparse_mla_decode(*inputs, out=out, lse=lse, workspace=workspace, **options)
    torch.cuda.synchronize()
    assert got[0] is out and got[1] is lse
    assert not workspace.counters.any(), "the workspace was not left zero"
    return out, lse


@pytest.mark.parametrize("num_splits", (None, 1, 3))
@pytest.mark.parametrize("case", DECODE_EDGES, ids=lambda case: case.name)
def test_edges(case, num_splits, seed):
    inputs = make_decode(case, DEVICE, seed)
    assert_attention(inputs, run(inputs, num_splits=num_splits))


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(
    "heads,rows", ((8, 70), (16, 70), (32, 70), (64, 70), (64, 50))
)
def test_scores_and_scales(scores, heads, rows, seed):
    far = (512, 3) * (rows // 2)
    case = DecodeCase("s", (128,) * rows, far, heads=heads, scores=scores)
    inputs = make_decode(case, DEVICE, seed)
    assert_attention(inputs, run(inputs))


@pytest.mark.parametrize("keys", (513, 8_192))
@pytest.mark.parametrize("num_splits", (None, 1, 2, 7, 40, 132))
def test_long_rows(keys, num_splits, seed):
    case = DecodeCase("long", (128, 60), (keys, 0), far_page=2, width=8_256)
    inputs = make_decode(case, DEVICE, seed)
    assert_attention(inputs, run(inputs, num_splits=num_splits))


@pytest.mark.parametrize("scores", ("normal", "peaked", "flat"))
@pytest.mark.parametrize("far", (512, 8_192))
def test_errors_are_not_above_the_stock_kernels(scores, far, seed):
    """On rows enough: with peaked scores both round the same values, and the stock kernel's errors are larger by its
    second rounding, of one cache's result, which shows only in rows where both caches have weight.
    """
    module = stock.attention_module("flash_mla_sm120_triton.py")
    rows = 64
    case = DecodeCase(
        "e", (128,) * rows, (far,) * rows, scores=scores, width=far, e4m3=True
    )
    inputs = make_decode(case, DEVICE, seed)
    want = sparse_mla_decode_ref(*inputs).out

    def error(out):
        return ((out.double() - want).norm() / want.norm()).item()

    theirs, _ = module.flash_mla_sparse_decode_triton(*inputs)
    assert error(run(inputs)[0]) <= error(theirs)


@pytest.mark.parametrize("heads,rows", ((16, 32), (64, 32), (64, 48), (64, 136)))
def test_the_same_bits_a_thousand_times(heads, rows, seed):
    """Shared out rows among whole ones, each replay after the outputs were overwritten."""
    far = (8_192, 512, 3, 0) * (rows // 4)
    case = DecodeCase("bits", (128,) * rows, far, heads=heads, width=8_192, far_page=2)
    inputs = make_decode(case, DEVICE, seed)
    workspace = decode_workspace(heads, DEVICE)
    want = run(inputs, workspace)
    assert_attention(inputs, want)
    out, lse = unwritten(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla_decode(*inputs, out=out, lse=lse, workspace=workspace)
    differs = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1_000):
        out.fill_(UNWRITTEN)
        lse.fill_(UNWRITTEN)
        graph.replay()
        differs += (out != want[0]).sum() + (lse != want[1]).sum()
    assert int(differs) == 0
    assert not workspace.counters.any()


@pytest.mark.parametrize("rows", (4, 50, 80, 200))
def test_a_heads_bits_are_the_same_with_other_heads(rows, seed):
    """All 64 heads and each half of them, none shared out: few rows, more and many. Where an SM has 100 KB, the tiles
    of 16 and of 32 heads are not of one length.
    """
    far = tuple((37 * row) % 700 for row in range(rows))
    inputs = make_decode(DecodeCase("h", (128,) * rows, far, heads=64), DEVICE, seed)
    whole = run(inputs, num_splits=1)
    assert_attention(inputs, whole)
    for half in (slice(0, 32), slice(32, 64)):
        part = inputs._replace(
            q=inputs.q[:, :, half], attn_sink=inputs.attn_sink[half].contiguous()
        )
        got = run(part, num_splits=1)
        assert_attention(part, got)
        if not has_large_sms(inputs.q.device):
            continue
        for one, all_heads in zip(got, whole):
            want = all_heads.reshape(rows, 64, -1)[:, half].reshape(one.shape)
            assert_bitwise_equal(one, want)


def test_capture_at_one_length_replay_at_others(seed):
    rows, width = 5, 2_048
    case = DecodeCase("capture", (128,) * rows, (width,) * rows, width=width)
    inputs = make_decode(case, DEVICE, seed)
    workspace = decode_workspace(16, DEVICE)
    run(inputs, workspace)
    loaded = CudaKernel.function.cache_info().currsize
    out, lse = unwritten(inputs)
    inputs.extra_topk_length.fill_(75)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla_decode(*inputs, out=out, lse=lse, workspace=workspace)
    assert CudaKernel.function.cache_info().currsize == loaded, "compiled in capture"
    for length in (300, 0, width, 1, 64, 65, 511, 513, 1_000):
        inputs.extra_topk_length.fill_(length)
        inputs.extra_topk_length[1] = width - length
        inputs.topk_length.fill_(min(length, 128))
        out.fill_(UNWRITTEN)
        lse.fill_(UNWRITTEN)
        graph.replay()
        assert_attention(inputs, (out, lse))
        assert not workspace.counters.any()


def test_the_width_changes_nothing(seed):
    case = DecodeCase("w", (128, 3, 128), (512, 0, 40), far_page=2)
    narrow = make_decode(case, DEVICE, seed)
    wide = narrow._replace(
        extra_indices=torch.full(
            (3, 1, 8_256), 2**31 - 1, dtype=torch.int32, device=DEVICE
        )
    )
    wide.extra_indices[..., :512] = narrow.extra_indices
    for got, want in zip(run(wide), run(narrow)):
        assert_bitwise_equal(got, want)


def test_launches_that_overlap_keep_their_order(seed):
    """Each launch may start while the one before runs; all use one workspace."""
    workspace = decode_workspace(16, DEVICE)
    cases = [
        DecodeCase("a", (128,) * 3, (2_000, 512, 3), width=2_000),
        DecodeCase("b", (5, 128, 128), (3, 2_000, 512), width=2_000),
    ]
    both = [make_decode(case, DEVICE, seed) for case in cases]
    want = [run(inputs, workspace) for inputs in both]
    outputs = [unwritten(inputs) for inputs in both]
    for _ in range(50):
        for out, lse in outputs:
            out.fill_(UNWRITTEN)
        for _ in range(3):
            for inputs, (out, lse) in zip(both, outputs):
                sparse_mla_decode(*inputs, out=out, lse=lse, workspace=workspace)
        for got, first in zip(outputs, want):
            assert_bitwise_equal(got[0], first[0])
            assert_bitwise_equal(got[1], first[1])


def test_on_a_side_stream(seed):
    inputs = make_decode(DecodeCase("stream", (128,), (512,)), DEVICE, seed)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = sparse_mla_decode(*inputs)
    stream.synchronize()
    assert_attention(inputs, got)


@pytest.mark.parametrize("heads", (16, 64))
def test_nothing_is_allocated_with_a_workspace(heads, seed):
    case = DecodeCase("memory", (128,) * 8, (512,) * 8, heads=heads)
    inputs = make_decode(case, DEVICE, seed)
    workspace = decode_workspace(heads, DEVICE)
    out, lse = run(inputs, workspace)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sparse_mla_decode(*inputs, out=out, lse=lse, workspace=workspace)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before


def test_thousands_of_rows(seed):
    rows = 3_000
    far = tuple((7 * row) % 513 for row in range(rows))
    case = DecodeCase("prefill", (128,) * rows, far, heads=64)
    inputs = make_decode(case, DEVICE, seed)
    out, lse = run(inputs)
    for part in (slice(0, 8), slice(1_500, 1_508), slice(rows - 8, rows)):
        some = {
            name: getattr(inputs, name)[part]
            for name in ("q", "indices", "topk_length")
            + ("extra_indices", "extra_topk_length")
        }
        assert_attention(inputs._replace(**some), (out[part], lse[part]))
    whole = run(inputs, num_splits=1)
    assert (out.float() - whole[0].float()).abs().max() < 0.1


@pytest.mark.parametrize("heads,rows", ((16, 1), (64, 50), (64, 136)))
def test_pages_past_two_to_the_31_bytes(heads, rows, seed):
    case = DecodeCase("far", (100,) * rows, (300,) * rows, heads=heads, far_page=2)
    small = make_decode(case, DEVICE, seed)
    pages, stride = small.extra_k_cache.shape[0], small.extra_k_cache.stride(0)
    skipped = 2**32 // stride + 5
    flat = torch.empty((skipped + pages) * stride, dtype=torch.uint8, device=DEVICE)
    shape = (skipped + pages, 2, 1, 584)
    cache = flat.as_strided(shape, small.extra_k_cache.stride())
    flat[skipped * stride :] = small.extra_k_cache.as_strided((pages * stride,), (1,))
    indices = small.extra_indices.clone()
    indices[..., :300] += 2 * skipped
    far = small._replace(extra_k_cache=cache, extra_indices=indices)
    for got, want in zip(run(far), run(small)):
        assert_bitwise_equal(got, want)


@pytest.mark.parametrize("heads,rows", ((16, 4), (64, 4), (64, 50), (64, 200)))
def test_jit_builds_what_the_compile_gate_saw(heads, rows, seed):
    from cuda.bindings import driver

    case = DecodeCase("gate", (4,) * rows, None, heads=heads)
    inputs = make_decode(case, DEVICE, seed)
    out, lse = unwritten(inputs)
    workspace = decode_workspace(heads, DEVICE)
    launch = plan(*inputs, out=out, lse=lse, workspace=workspace)
    major, minor = torch.cuda.get_device_capability()
    expected = compile_gate.compile_cuda_for(launch, 10 * major + minor)
    function = launch.kernel.function(torch.cuda.current_device())
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert driver.cuFuncGetAttribute(attribute, function)[1] == expected.registers


def test_a_nan_stays_in_its_row_and_head(seed):
    case = DecodeCase("nan", (128,) * 6, (512,) * 6, heads=40, sink=False)
    inputs = make_decode(case, DEVICE, seed)
    want = run(inputs)
    bad = inputs._replace(q=inputs.q.clone())
    bad.q[2, 0, 35, 7] = float("nan")
    for got, clean in zip(run(bad), want):
        got, clean = got.reshape(6, 40, -1), clean.reshape(6, 40, -1)
        assert got[2, 35].isnan().all()
        got[2, 35] = clean[2, 35]
        assert_bitwise_equal(got, clean)
