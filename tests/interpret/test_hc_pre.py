"""The hyper-connection pre-linear on the CPU: the kernels' own source under ``cuda_on_cpu``, against float64."""

from __future__ import annotations

import random

import pytest
import torch

import cuda_on_cpu
from hc_pre_cases import HC_PRE_EDGES, TOLERANCE, HcPreCase, make_hc_pre
from kernels import hc_pre
from kernels.hc_pre import hc_pre_linear, hc_pre_workspace, plan
from kernels.hc_pre_ref import hc_pre_linear_ref
from numeric import assert_bitwise_equal, assert_close


@pytest.fixture(params=("few", "many"))
def either(request, monkeypatch):
    """Both kernels, for any number of rows."""
    monkeypatch.setattr(hc_pre, "FEW_ROWS", 10**9 if request.param == "few" else 0)
    return request.param


def run(inputs, weights="split", workspace=None, order=None):
    """The launch that serving would run, on the CPU, with reads checked."""
    rows, width = inputs.x.shape
    outputs = inputs.fn.shape[0]
    if workspace is None:
        workspace = hc_pre_workspace(rows, width, outputs, "cpu")
        workspace.partial.fill_(float("nan"))
    out = torch.full((rows, outputs), float("nan"))
    launch = plan(*inputs, weights=weights, out=out, workspace=workspace)
    readable = [*inputs.x, inputs.fn, workspace.partial]
    cuda_on_cpu.run(
        launch, order=order, readable=readable, seed=random.randrange(2**32)
    )
    assert not workspace.arrived.any(), "the workspace was not left zero"
    return out


def check(inputs, out, weights="split"):
    reference = hc_pre_linear_ref(*inputs)
    return assert_close(out, reference.values, reference.magnitudes, TOLERANCE[weights])


@pytest.mark.parametrize("case", HC_PRE_EDGES, ids=lambda case: case.name)
def test_matches_float64(case, either, seed):
    inputs = make_hc_pre(case, seed=seed)
    check(inputs, run(inputs))


@pytest.mark.parametrize("outputs", (8, 24, 32))
def test_plain_bf16_weights(outputs, either, seed):
    inputs = make_hc_pre(HcPreCase("bf16", 20, outputs=outputs), seed=seed)
    out = run(inputs, "bf16")
    check(inputs, out, "bf16")
    with pytest.raises(AssertionError):
        check(inputs, out)
    rounded = inputs._replace(fn=inputs.fn.bfloat16().float())
    check(rounded, out)
    assert_bitwise_equal(out, run(rounded))


@pytest.mark.parametrize("outputs", (9, 24, 32))
def test_a_row_has_the_same_bits_in_either_kernel_and_whatever_the_number_of_rows(
    outputs, monkeypatch, seed
):
    inputs = make_hc_pre(HcPreCase("bits", 70, 2_688, outputs), seed=seed)
    want = run(inputs)
    for few_rows in (10**9, 0):
        monkeypatch.setattr(hc_pre, "FEW_ROWS", few_rows)
        for rows in (1, 17, 70):
            part = inputs._replace(x=inputs.x[:rows])
            assert_bitwise_equal(run(part), want[:rows])


def test_whichever_program_is_last_the_result_is_the_same(either, seed):
    inputs = make_hc_pre(HcPreCase("order", 40, 3_072), seed=seed)
    want = run(inputs)
    draw = random.Random(seed)
    for _ in range(3):
        out = torch.empty_like(want)
        workspace = hc_pre_workspace(40, 3_072, 24, "cpu")
        grid = plan(*inputs, out=out, workspace=workspace).grid
        order = draw.sample(range(grid), grid)
        assert_bitwise_equal(run(inputs, order=order), want)


def test_more_tiles_than_the_programs_that_fit_the_gpu_may_take(monkeypatch, seed):
    monkeypatch.setattr(hc_pre, "FEW_ROWS", 0)
    inputs = make_hc_pre(HcPreCase("waves", 100, 2_048), seed=seed)
    monkeypatch.setattr(hc_pre, "sm_count", lambda device: 2)
    want = run(inputs)
    monkeypatch.setattr(hc_pre, "MOST_TILES", 3)
    out = torch.empty_like(want)
    workspace = hc_pre_workspace(100, 2_048, 24, "cpu")
    assert plan(*inputs, out=out, workspace=workspace).grid == 2 * 3
    assert_bitwise_equal(run(inputs), want)


def test_the_most_tiles_of_a_program_are_those_that_it_has_memory_for():
    source = (cuda_on_cpu.HEADER.parents[1] / "kernels/hc_pre_many.cuh").read_text()
    for name in ("MOST_TILES", "STAGES"):
        assert f"constexpr int {name} = {getattr(hc_pre, name)};" in source


def test_a_workspace_is_good_for_call_after_call(either, seed):
    workspace = hc_pre_workspace(100, 2_048, 24, "cpu")
    for number, (rows, width) in enumerate(((100, 2_048), (3, 512), (50, 1_024))):
        inputs = make_hc_pre(HcPreCase("again", rows, width), seed=seed + number)
        check(inputs, run(inputs, workspace=workspace))


@pytest.mark.parametrize("bad", (float("nan"), float("inf")))
def test_a_bad_value_stays_in_its_row(bad, either, seed):
    inputs = make_hc_pre(HcPreCase("nan", 40), seed=seed)
    want = run(inputs)
    inputs.x[21, 700] = bad
    out = run(inputs)
    rest = [row for row in range(40) if row != 21]
    assert_bitwise_equal(out[rest], want[rest])
    assert torch.isnan(out[21]).all()


def test_eps_is_inside_the_root(either):
    inputs = make_hc_pre(HcPreCase("eps", 3))._replace(eps=4.0)
    check(inputs, run(inputs))
    inputs.x.zero_()
    assert_bitwise_equal(run(inputs), torch.zeros(3, 24))


def test_a_product_of_another_k_is_caught(seed):
    inputs = make_hc_pre(HcPreCase("guard", 18), seed=seed)
    out = run(inputs)
    inputs.fn[7, 100:102] = inputs.fn[7, 100:102].flip(0)
    with pytest.raises(AssertionError):
        check(inputs, out)


def test_a_read_past_the_rows_is_caught(seed):
    inputs = make_hc_pre(HcPreCase("guard", 18), seed=seed)
    workspace = hc_pre_workspace(18, 1_024, 24, "cpu")
    launch = plan(*inputs, out=torch.empty(18, 24), workspace=workspace)
    readable = [inputs.x[:17], inputs.fn, workspace.partial]
    with pytest.raises(AssertionError, match="reads outside"):
        cuda_on_cpu.run(launch, readable=readable)


def test_no_rows():
    inputs = make_hc_pre(HcPreCase("none", 0))
    assert hc_pre_linear(*inputs).shape == (0, 24)


BAD = {
    "weights": lambda a: a | {"weights": "fp8"},
    "x shape": lambda a: a | {"x": a["x"][:, :192]},
    "x dtype": lambda a: a | {"x": a["x"].half()},
    "x strides": lambda a: a | {"x": a["x"].T.contiguous().T},
    "x address": lambda a: a | {"x": _moved(a["x"])},
    "fn shape": lambda a: a | {"fn": a["fn"].repeat(2, 1)},
    "fn dtype": lambda a: a | {"fn": a["fn"].bfloat16()},
    "fn strides": lambda a: a | {"fn": a["fn"].T.contiguous().T},
    "fn address": lambda a: a | {"fn": _moved(a["fn"])},
    "fn device": lambda a: a | {"fn": a["fn"].to("meta")},
    "out shape": lambda a: a | {"out": a["out"][:2]},
    "out dtype": lambda a: a | {"out": a["out"].double()},
    "out strides": lambda a: a | {"out": a["out"].T.contiguous().T},
    "workspace.arrived size": lambda a: a | {"workspace": _workspace(arrived=0)},
    "workspace.partial size": lambda a: a | {"workspace": _workspace(partial=9)},
    "x device": lambda a: a,
}


def _moved(tensor):
    raw = torch.zeros(tensor.numel() + 32, dtype=tensor.dtype)
    start = -raw.data_ptr() % 16 // tensor.element_size() + 1
    return raw[start : start + tensor.numel()].view(tensor.shape)


def _workspace(**sizes):
    full = hc_pre_workspace(20, 1_024, 24, "cpu")
    return hc_pre.HcPreWorkspace(
        arrived=full.arrived[: sizes.get("arrived")],
        partial=full.partial[: sizes.get("partial")],
    )


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named_and_nothing_is_written(what):
    inputs = make_hc_pre(HcPreCase("bad", 20))
    out = torch.full((20, 24), float("nan"))
    bad = BAD[what](inputs._asdict() | {"out": out, "workspace": _workspace()})
    positional = [bad.pop(name) for name in inputs._fields]
    with pytest.raises(ValueError, match=f"hc_pre_linear: {what}: expected .*, got "):
        hc_pre_linear(*positional, **bad)
    assert torch.isnan(out).all()
