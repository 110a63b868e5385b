"""The top-k on a real GPU: exactness, graphs, determinism, memory, addresses."""

from __future__ import annotations

import pytest
import torch

import compile_gate
from kernels import topk
from kernels.cuda_cpp import CudaKernel
from kernels.topk import plan, topk_page_indices, topk_workspace
from kernels.topk_ref import topk_page_indices_ref
from numeric import assert_bitwise_equal
from topk_cases import (
    TOPK_EDGES,
    UNWRITTEN,
    WITHOUT_NAN,
    TopkCase,
    few_scores,
    make_topk,
)

DEVICE = "cuda"


def run(inputs, workspace=None):
    k = inputs.out_page_indices.shape[1]
    if workspace is None:
        workspace = topk_workspace(*inputs.scores.shape, k, DEVICE)
        workspace.maxima.fill_(-77)
    topk_page_indices(*inputs, workspace=workspace)
    torch.cuda.synchronize()
    assert not workspace.arrived.any(), "the workspace was not left zero"


def reference(inputs):
    k = inputs.out_page_indices.shape[1]
    return topk_page_indices_ref(*inputs[:3], k, inputs.page_size)


def assert_exact(inputs, want=None):
    want = want or reference(inputs)
    if inputs.out_raw_indices is not None:
        assert_bitwise_equal(inputs.out_raw_indices, want.raw_indices)
    assert_bitwise_equal(inputs.out_page_indices, want.page_indices)


@pytest.mark.parametrize("case", TOPK_EDGES, ids=lambda case: case.name)
def test_edges(case, seed):
    inputs = make_topk(case, DEVICE, seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("k", sorted(topk.CONFIGS))
@pytest.mark.parametrize("scores", WITHOUT_NAN)
def test_distributions(scores, k, seed):
    lens = (k + 1, 2_048, 8_192, 16_384, 32_768, 131_072, 262_144, 262_208)
    inputs = make_topk(TopkCase("d", lens, 262_208, scores, k), DEVICE, seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("width", (2_048, 262_208))
@pytest.mark.parametrize("k", sorted(topk.CONFIGS))
@pytest.mark.parametrize("scores", WITHOUT_NAN)
def test_distributions_of_few_scores_without_a_long_row(scores, k, width, seed):
    inputs = make_topk(few_scores(k, width, scores), DEVICE, seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("length", (600, 5_000, 16_400, 262_144))
def test_nan_gives_distinct_positions_of_the_row(length, seed):
    inputs = make_topk(TopkCase("nan", (length, 3), 262_208, "nan"), DEVICE, seed)
    run(inputs)
    chosen = inputs.out_raw_indices[0].tolist()
    assert chosen == sorted(set(chosen))
    assert chosen[0] >= 0 and chosen[-1] < length


def test_the_same_bits_a_thousand_times(seed):
    lens = (262_144, 600, 20_000, 3, 131_072, 16_384, 32_768, 70_000) * 4
    inputs = make_topk(TopkCase("bits", lens, 262_208, "few-values"), DEVICE, seed)
    workspace = topk_workspace(len(lens), 262_208, 512, DEVICE)
    run(inputs, workspace)
    want = reference(inputs)
    assert_exact(inputs, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_page_indices(*inputs, workspace=workspace)
    differs = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1_000):
        inputs.out_page_indices.fill_(UNWRITTEN)
        inputs.out_raw_indices.fill_(UNWRITTEN)
        graph.replay()
        differs += (inputs.out_raw_indices != want.raw_indices).sum()
        differs += (inputs.out_page_indices != want.page_indices).sum()
    assert int(differs) == 0
    assert not workspace.arrived.any()


def test_capture_at_one_length_replay_at_others(seed):
    width = 70_016
    inputs = make_topk(TopkCase("capture", (width,) * 3, width), DEVICE, seed)
    workspace = topk_workspace(3, width, 512, DEVICE)
    run(inputs, workspace)
    loaded = CudaKernel.function.cache_info().currsize
    inputs.seq_lens.fill_(75)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_page_indices(*inputs, workspace=workspace)
    assert CudaKernel.function.cache_info().currsize == loaded, "compiled in capture"
    for length in (300, 0, 70_000, 512, 513, 1, 16_384, 16_385, 70_016, 2_048, 600):
        inputs.seq_lens.fill_(length)
        inputs.seq_lens[1] = 70_016 - length
        inputs.out_page_indices.fill_(UNWRITTEN)
        inputs.out_raw_indices.fill_(UNWRITTEN)
        graph.replay()
        assert_exact(inputs)
        assert not workspace.arrived.any()


def test_one_kernel_over_lengths_widths_and_batches(seed):
    kernels = set()
    for batch in (1, 2, 17, 64, 600, 2048):
        for width in (64, 600, 2_048, 17_024):
            lens = tuple((7 * row) % (width + 1) for row in range(batch))
            case = TopkCase("v", lens, width, row_padding=batch % 2 * 4, raw=batch > 17)
            inputs = make_topk(case, DEVICE, seed)
            workspace = topk_workspace(batch, width, 512, DEVICE)
            kernels.add(plan(*inputs, workspace=workspace).kernel)
            run(inputs, workspace)
            assert_exact(inputs)
    assert len(kernels) == 1


def test_launches_that_overlap_keep_their_order(seed):
    """Each launch may start while the one before runs; both use one workspace and feed each other."""
    lens = (262_144,) * 4 + (600,) * 60
    first = make_topk(TopkCase("a", lens, 262_208), DEVICE, seed)
    second = make_topk(TopkCase("b", lens[::-1], 262_208), DEVICE, seed + 1)
    want = reference(first), reference(second)
    workspace = topk_workspace(64, 262_208, 512, DEVICE)
    for _ in range(50):
        for inputs in (first, second):
            inputs.out_raw_indices.fill_(UNWRITTEN)
        for _ in range(3):
            topk_page_indices(*first, workspace=workspace)
            topk_page_indices(*second, workspace=workspace)
        assert_exact(first, want[0])
        assert_exact(second, want[1])


@pytest.mark.parametrize("width", (2_048, 32_768))
def test_lengths_that_the_launch_before_writes(width, seed):
    """A launch begins while the one before it may still run, and has its lengths from that one."""
    kinds = (
        (645, 5),
        (5, 645),
        (1_989, 453),
        (453, 517),
        (1_029, 965),
        (width - 59, 5),
    )
    lens = [
        torch.tensor([kinds[row % 6][side] for row in range(60)], dtype=torch.int32)
        for side in (0, 1)
    ]
    # Short rows as writers: page p of a row of 512 makes 64 * p + 5 of its sixth position.
    written = torch.zeros((60, 512), dtype=torch.int32, device=DEVICE)
    writers = []
    for pages in (one.to(DEVICE)[:, None] // 64 for one in lens):
        writer = make_topk(TopkCase("w", (512,) * 60, 512, raw=False), DEVICE, seed)
        writer.page_table.copy_(pages.expand_as(writer.page_table))
        writers.append(writer._replace(out_page_indices=written))
    inputs = make_topk(TopkCase("read", (width,) * 60, width), DEVICE, seed)
    want = [
        reference(inputs._replace(seq_lens=one.to(DEVICE)[:, None])) for one in lens
    ]
    readers = [
        inputs._replace(
            seq_lens=written[:, 5:6],
            out_page_indices=torch.empty_like(inputs.out_page_indices),
            out_raw_indices=torch.empty_like(inputs.out_raw_indices),
        )
        for _ in lens
    ]
    workspace = topk_workspace(60, width, 512, DEVICE)
    run(inputs, workspace)
    # In a graph, where a launch is ready when the one before it runs.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for writer, reader in zip(writers, readers):
            topk_page_indices(*writer, workspace=workspace)
            topk_page_indices(*reader, workspace=workspace)
    for _ in range(50):
        for reader in readers:
            reader.out_page_indices.fill_(UNWRITTEN)
            reader.out_raw_indices.fill_(UNWRITTEN)
        graph.replay()
        for reader, result in zip(readers, want):
            assert_exact(reader, result)


def test_on_a_side_stream(seed):
    inputs = make_topk(TopkCase("stream", (20_000, 700), 20_032), DEVICE, seed)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        topk_page_indices(*inputs)
    stream.synchronize()
    assert_exact(inputs)


def test_nothing_is_allocated_with_a_workspace(seed):
    inputs = make_topk(TopkCase("memory", (20_000,) * 8, 20_032), DEVICE, seed)
    workspace = topk_workspace(8, 20_032, 512, DEVICE)
    run(inputs, workspace)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    topk_page_indices(*inputs, workspace=workspace)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before


def test_offsets_past_two_to_the_31(seed):
    width, stride = 20_032, 2**31 + 1_024
    small = make_topk(TopkCase("far", (20_000, 700), width), DEVICE, seed)
    buffer = torch.empty(stride + width, device=DEVICE)
    scores = buffer.as_strided((2, width), (stride, 1))
    scores.copy_(small.scores)
    far = small._replace(scores=scores)
    run(far)
    assert_exact(small)


def test_jit_builds_what_the_compile_gate_saw(seed):
    from cuda.bindings import driver

    inputs = make_topk(TopkCase("gate", (700,), 704), DEVICE, seed)
    launch = plan(*inputs, workspace=topk_workspace(1, 704, 512, DEVICE))
    major, minor = torch.cuda.get_device_capability()
    expected = compile_gate.compile_cuda_for(launch, 10 * major + minor)
    function = launch.kernel.function(torch.cuda.current_device())
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert driver.cuFuncGetAttribute(attribute, function)[1] == expected.registers
