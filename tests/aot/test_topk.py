"""The top-k kernel, compiled by NVRTC for sm_120 and sm_121 without a GPU."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from compile_gate import compile_cuda_for
from kernels import topk
from kernels.config import SM120
from topk_cases import TopkCase, make_topk

pytest.importorskip(
    "cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc"
)


def launch(k: int, **changes):
    case = replace(TopkCase("aot", (700, 20_000), 20_032, k=k), **changes)
    inputs = make_topk(case)
    workspace = topk.topk_workspace(*inputs.scores.shape, k, "cpu")
    return topk.plan(*inputs, workspace=workspace)


@pytest.mark.parametrize("arch", (120, 121))
@pytest.mark.parametrize("k", sorted(topk.CONFIGS))
def test_fits_the_card(k, arch, report):
    machine = compile_cuda_for(launch(k), arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    report.row(f"top-k, K {k}", machine, resident)
    assert machine.shared <= SM120.shared_per_block
    assert machine.stack_bytes == 0
    assert not machine.forbidden and not machine.mma and not machine.sass
    assert resident >= topk.CONFIGS[k].programs_per_sm
    if machine.sass is not None:
        assert machine.before_wait == ()


@pytest.mark.parametrize("arch", (80, 89, 90, 100))
def test_compiles_on_the_other_cards_that_the_flag_allows(arch):
    machine = compile_cuda_for(launch(512), arch)
    assert machine.stack_bytes == 0
    assert machine.before_wait == (() if arch >= 90 else None)


def test_the_shared_memory_that_the_launch_asks_for_is_what_the_kernel_declares():
    """One byte less must not compile."""
    kernel = launch(512).kernel
    less = {name: value for name, value in kernel.constants} | {
        "SHARED_BYTES": kernel.shared_bytes - 16
    }
    with pytest.raises(RuntimeError, match="what the launch asks for"):
        replace(kernel, constants=tuple(less.items())).cubin(120)


def test_one_kernel_over_lengths_widths_batches_strides_and_pages():
    """K and whether rows are aligned decide what is compiled; everything else is read at run time."""
    kernels = {True: set(), False: set()}
    for batch in (1, 2, 17, 64):
        for width in (64, 600, 2_048, 20_032, 262_208):
            for aligned, changes in (
                (True, dict()),
                (False, dict(row_padding=3, lens_2d=False)),
                (False, dict(offset=1)),
                (True, dict(page_size=256, sliced_table=True, raw=False)),
            ):
                if batch == 1 and "row_padding" in changes:
                    continue  # one row has no stride
                lens = (min(width, 600),) * batch
                kernels[aligned].add(
                    launch(512, lens=lens, width=width, **changes).kernel
                )
    assert kernels == {True: {topk.kernel(512)}, False: {topk.kernel(512, False)}}


def test_rows_that_are_not_aligned_have_a_kernel_that_fits_too():
    machine = compile_cuda_for(launch(512, row_padding=3), 120)
    assert machine.stack_bytes == 0
    assert machine.before_wait == ()
    assert SM120.blocks_resident(machine.registers, machine.shared, 16) >= 1


@pytest.mark.parametrize("arch", (90, 120))
def test_the_gate_sees_a_load_before_the_wait(arch, tmp_path):
    planned = launch(512)
    wait = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
    source = planned.kernel.source.read_text()
    assert source.count(wait) == 1
    for header in planned.kernel.source.parent.glob("topk*.cuh"):
        shutil.copy(header, tmp_path)
    early = tmp_path / "early.cu"
    early.write_text(source.replace(wait, f"s.next = __ldg(rows.lengths); {wait}"))
    kernel = replace(planned.kernel, source=early)
    assert compile_cuda_for(replace(planned, kernel=kernel), arch).before_wait == (
        "LDG.E.CONSTANT",
    )


def test_the_gate_sees_spills():
    kernel = launch(512).kernel
    squeezed = {name: value for name, value in kernel.constants} | {
        "PROGRAMS_PER_SM": 3
    }
    tight = replace(
        launch(512), kernel=replace(kernel, constants=tuple(squeezed.items()))
    )
    assert compile_cuda_for(tight, 120).stack_bytes > 0
