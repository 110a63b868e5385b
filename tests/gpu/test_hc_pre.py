"""The hyper-connection kernels on a real GPU: numerics, bits, graphs, weight updates, memory, addresses."""

from __future__ import annotations

import pytest
import torch

import compile_gate
from hc_pre_cases import HC_PRE_EDGES, TOLERANCE, HcPreCase, make_hc_pre
from kernels import hc_pre
from kernels.cuda_cpp import CudaKernel
from kernels.hc_pre import hc_pre_linear, hc_pre_workspace, plan
from kernels.hc_pre_ref import hc_pre_linear_ref
from kernels.hc_sum import hc_weighted_sum
from numeric import assert_bitwise_equal, assert_close

DEVICE = "cuda"
WIDTH = 16_384


def model(rows, seed):
    """The shape of DeepSeek-V4-Flash."""
    return make_hc_pre(HcPreCase("model", rows, WIDTH), DEVICE, seed)


def run(inputs, weights="split", workspace=None, out=None):
    rows, width = inputs.x.shape
    if workspace is None:
        workspace = hc_pre_workspace(rows, width, inputs.fn.shape[0], DEVICE)
        workspace.partial.fill_(float("nan"))
    out = hc_pre_linear(*inputs, weights=weights, out=out, workspace=workspace)
    torch.cuda.synchronize()
    assert not workspace.arrived.any(), "the workspace was not left zero"
    return out


def check(inputs, out, weights="split"):
    reference = hc_pre_linear_ref(*inputs)
    assert_close(out, reference.values, reference.magnitudes, TOLERANCE[weights])


@pytest.mark.parametrize("few_rows", (10**9, 0))
@pytest.mark.parametrize("weights", hc_pre.WEIGHTS)
@pytest.mark.parametrize("case", HC_PRE_EDGES, ids=lambda case: case.name)
def test_matches_float64(case, weights, few_rows, monkeypatch, seed):
    monkeypatch.setattr(hc_pre, "FEW_ROWS", few_rows)
    inputs = make_hc_pre(case, DEVICE, seed)
    check(inputs, run(inputs, weights), weights)


@pytest.mark.parametrize("rows", (1, 16, 64, 256, 700, 2_048))
def test_matches_float64_at_size(rows, seed):
    inputs = model(rows, seed)
    check(inputs, run(inputs))


def test_a_row_has_the_same_bits_whatever_the_number_of_rows(seed):
    inputs = model(2_048, seed)
    want = run(inputs)
    for rows in (1, 3, 16, 64, 300, hc_pre.FEW_ROWS, hc_pre.FEW_ROWS + 1, 2_000):
        part = inputs._replace(x=inputs.x[:rows])
        assert_bitwise_equal(run(part), want[:rows])


@pytest.mark.parametrize("rows", (64, 1_024))
def test_the_same_bits_a_thousand_times(rows, seed):
    inputs = model(rows, seed)
    workspace = hc_pre_workspace(rows, WIDTH, 24, DEVICE)
    want = run(inputs, workspace=workspace)
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hc_pre_linear(*inputs, out=out, workspace=workspace)
    differs = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1_000):
        out.fill_(float("nan"))
        graph.replay()
        differs += (out != want).sum()
    assert int(differs) == 0
    assert not workspace.arrived.any()


def test_a_captured_graph_uses_new_weights_and_states(seed):
    """An update of the weights in place, as a server makes it, takes effect at the next replay."""
    inputs = model(8, seed)
    workspace = hc_pre_workspace(8, WIDTH, 24, DEVICE)
    out = run(inputs, workspace=workspace)
    loaded = CudaKernel.function.cache_info().currsize
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hc_pre_linear(*inputs, out=out, workspace=workspace)
    assert CudaKernel.function.cache_info().currsize == loaded, "compiled in capture"
    for number in range(1, 4):
        other = model(8, seed + number)
        inputs.fn.copy_(other.fn)
        inputs.x.copy_(other.x)
        graph.replay()
        check(other, out)


def test_a_weight_written_by_the_kernel_before_is_used(seed):
    """Each launch may start while the update still runs."""
    inputs, workspace = model(16, seed), hc_pre_workspace(16, WIDTH, 24, DEVICE)
    first, second = inputs.fn.clone(), inputs.fn.flip(0).contiguous()
    want = [run(inputs._replace(fn=fn)) for fn in (first, second)]
    out = torch.empty(200, 16, 24, device=DEVICE)
    for i in range(200):
        inputs.fn.copy_((first, second)[i % 2])
        hc_pre_linear(*inputs, out=out[i], workspace=workspace)
    for i in range(200):
        assert_bitwise_equal(out[i], want[i % 2])


def test_launches_that_overlap_keep_their_order(seed):
    """Two shapes take turns with one workspace, each started while the other runs."""
    few, many = model(40, seed), model(1_024, seed + 1)
    want = run(few), run(many)
    workspace = hc_pre_workspace(1_024, WIDTH, 24, DEVICE)
    for _ in range(30):
        got = [
            hc_pre_linear(*one, workspace=workspace) for one in (few, many, few, many)
        ]
        for one, expected in zip(got, want * 2):
            assert_bitwise_equal(one, expected)


def test_nan_stays_in_its_row(seed):
    for rows in (64, 1_024):
        inputs = model(rows, seed)
        want = run(inputs)
        inputs.x[21, 700] = float("nan")
        out = run(inputs)
        rest = [row for row in range(rows) if row != 21]
        assert_bitwise_equal(out[rest], want[rest])
        assert torch.isnan(out[21]).all()


def test_on_a_side_stream(seed):
    inputs = model(64, seed)
    want = run(inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = hc_pre_linear(*inputs)
    stream.synchronize()
    assert_bitwise_equal(out, want)


def test_nothing_is_allocated_with_a_workspace(seed):
    inputs = model(1_024, seed)
    workspace = hc_pre_workspace(1_024, WIDTH, 24, DEVICE)
    out = run(inputs, workspace=workspace)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    hc_pre_linear(*inputs, out=out, workspace=workspace)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before


def test_row_offsets_past_two_to_the_31(seed):
    rows, stride = 600, 2**22
    small = model(rows, seed)
    buffer = torch.empty(rows * stride, dtype=torch.bfloat16, device=DEVICE)
    x = buffer.as_strided((rows, WIDTH), (stride, 1))
    x.copy_(small.x)
    assert rows * stride > 2**31
    assert_bitwise_equal(run(small._replace(x=x)), run(small))


@pytest.mark.parametrize("rows", (64, 1_024))
def test_jit_builds_what_the_compile_gate_saw(rows, seed):
    from cuda.bindings import driver

    workspace = hc_pre_workspace(rows, WIDTH, 24, DEVICE)
    out = torch.empty(rows, 24, device=DEVICE)
    launch = plan(*model(rows, seed), out=out, workspace=workspace)
    major, minor = torch.cuda.get_device_capability()
    expected = compile_gate.compile_cuda_for(launch, 10 * major + minor)
    function = launch.kernel.function(torch.cuda.current_device())
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert driver.cuFuncGetAttribute(attribute, function)[1] == expected.registers


@pytest.mark.parametrize("rows", (1, 64, 2_048))
def test_the_weighted_sum_has_the_bits_of_upstreams_three_steps(rows, seed):
    x = model(rows, seed).x.view(rows, 4, WIDTH // 4)
    w = torch.rand(rows, 4, device=DEVICE)
    want = (w.unsqueeze(-1) * x.float()).sum(dim=1).to(torch.bfloat16)
    assert_bitwise_equal(hc_weighted_sum(x, w), want)
