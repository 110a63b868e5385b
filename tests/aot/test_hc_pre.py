"""The hyper-connection kernels, compiled for sm_120 and sm_121 without a GPU."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
import torch

from compile_gate import compile_cuda_for, compile_for, target
from hc_pre_cases import HcPreCase, make_hc_pre
from kernels import hc_pre, hc_sum
from kernels.config import SM120

MMA = "HMMA.16816.F32.BF16"
RESIDENT = {"few": 2, "many": 1}
ROWS = {"few": 1, "many": hc_pre.FEW_ROWS + 1}


@pytest.fixture(autouse=True)
def compiler(request):
    if "weighted_sum" not in request.node.name:
        pytest.importorskip(
            "cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc"
        )


def launch(rows: int, outputs: int = 24, weights: str = "split", **changes):
    case = replace(HcPreCase("aot", rows, 1_024, outputs), **changes)
    inputs = make_hc_pre(case)
    return hc_pre.plan(
        *inputs,
        weights=weights,
        out=torch.empty(rows, outputs),
        workspace=hc_pre.hc_pre_workspace(rows, case.width, outputs, "cpu"),
    )


# Four streams have 24 outputs.
SHIPPED = [("few", 8), ("few", 24), ("few", 32), ("many", 24)]


@pytest.mark.parametrize("arch", (120, 121))
@pytest.mark.parametrize("weights", hc_pre.WEIGHTS)
@pytest.mark.parametrize("rows,outputs", SHIPPED)
def test_fits_the_card(rows, weights, outputs, arch, report):
    machine = compile_cuda_for(launch(ROWS[rows], outputs, weights), arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    report.row(f"hc_pre, {rows} rows, {outputs}, {weights}", machine, resident)
    assert machine.shared <= SM120.shared_per_block
    assert machine.spill_bytes == 0
    assert not machine.forbidden
    assert resident >= RESIDENT[rows]
    if arch == 120:
        assert set(machine.sass) == {MMA}
        assert machine.before_wait == ()


@pytest.mark.parametrize("arch", (80, 89, 90, 100))
@pytest.mark.parametrize("rows", ROWS)
def test_compiles_on_the_other_cards_that_the_flag_allows(rows, arch):
    machine = compile_cuda_for(launch(ROWS[rows]), arch)
    assert machine.mma
    assert machine.before_wait == (() if arch >= 90 else None)


def test_two_kernels_for_the_model_over_rows_and_widths():
    """The number of outputs aside, everything but the side of FEW_ROWS is read at run time."""
    kernels = {
        launch(rows, width=width, row_padding=padding).kernel
        for rows in (1, 2, 64, hc_pre.FEW_ROWS, hc_pre.FEW_ROWS + 1, 2_048)
        for width in (128, 1_024, 4_096)
        for padding in (0, 8)
    }
    assert len(kernels) == 2


def test_the_gate_sees_spills(tmp_path):
    """Two programs an SM would leave a thread too few registers."""
    plan = launch(ROWS["many"])
    folder = plan.kernel.source.parent
    for name in ("ptx.cuh", "hc_pre_products.cuh"):
        shutil.copy(folder / name, tmp_path)
    source = (folder / "hc_pre_many.cuh").read_text()
    bounds = "__launch_bounds__(THREADS, 1)"
    assert bounds in source
    tight = source.replace(bounds, "__launch_bounds__(THREADS, 2)")
    (tmp_path / "hc_pre_many.cuh").write_text(tight)
    changed = tmp_path / "changed.cu"
    changed.write_text(plan.kernel.source.read_text())
    kernel = replace(plan.kernel, source=changed)
    assert compile_cuda_for(replace(plan, kernel=kernel), 120).spill_bytes > 0


def sum_launch(rows: int, offset: int = 0):
    x = torch.zeros(rows + 1, 4, 4_096, dtype=torch.bfloat16)[:rows]
    out = torch.empty(rows, 4_096, dtype=torch.bfloat16)
    return hc_sum.plan(x, torch.zeros(rows + 4, 4)[4 * offset :][:rows], out)


@pytest.mark.parametrize("arch", (120, 121))
def test_the_weighted_sum_fits_the_card(arch, report):
    machine = compile_for(sum_launch(3), arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    report.row("hc weighted sum", machine, resident)
    assert machine.spill_bytes == 0 and machine.stack_bytes == 0
    assert resident >= 6


def test_one_specialisation_of_the_weighted_sum():
    kernel = hc_sum._weighted_sum_kernel
    keys = set()
    with target(120):
        for rows in (1, 2, 16, 17, 64):
            plan = sum_launch(rows, offset=rows % 2)
            _, specialization, options = kernel.create_binder()[4](
                **plan.args, **plan.options
            )
            keys.add((str(specialization), str(options)))
    assert len(keys) == 1, keys


def test_the_weighted_sum_rounds_products_and_sums():
    """No multiply-add in one: torch rounds twice."""
    with target(120):
        ptx = sum_launch(3).compile().asm["ptx"]
    assert re.search(r"\bmul\.", ptx) and not re.search(r"\bfma\.", ptx)
