"""The attention kernel, compiled by NVRTC for sm_120 and sm_121 without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compile_gate import compile_cuda_for
from decode_cases import DecodeCase, make_decode, unwritten
from kernels import decode
from kernels.config import SM120

pytest.importorskip(
    "cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc"
)

HEADS = (16, 32)
# What the cards have that the flag allows: compute capability 8.9 neither a copy engine nor large SMs.
CARDS = (
    *((89, name) for name in ("FEW_HEADS", "PLAIN")),
    *((110, name) for name in ("FEW_HEADS", "COPIED")),
    *(
        (arch, name)
        for arch in (90, 100, 103)
        for name in ("FEW_HEADS", "LARGE", "LARGE_MANY")
    ),
)


def launch(heads: int, **changes):
    """On the CPU, so with the configurations of an sm_120."""
    case = DecodeCase("aot", (128,) * 5, (200,) * 5, heads=heads)
    inputs = make_decode(replace(case, **changes))
    out, lse = unwritten(inputs)
    workspace = decode.decode_workspace(inputs.q.shape[2], "cpu")
    return decode.plan(*inputs, out=out, lse=lse, workspace=workspace)


@pytest.mark.parametrize("arch", (120, 121))
@pytest.mark.parametrize("heads", HEADS)
def test_fits_the_card(heads, arch, report):
    planned = launch(heads)
    config = {16: decode.FEW_HEADS, 32: decode.COPIED}[heads]
    assert planned.kernel == decode.kernel(config)
    machine = compile_cuda_for(planned, arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    report.row(f"attention, {heads} heads", machine, resident)
    assert machine.shared <= SM120.shared_per_block
    assert machine.stack_bytes == 0
    assert not machine.forbidden and machine.byte_loads == 0
    assert resident >= config.programs_per_sm
    if machine.sass is not None:
        assert machine.async_copies > 0
        assert (machine.bulk_copies > 0) == (heads == 32)
        assert machine.registers_handed_over == (2 if heads == 32 else 0)
        assert machine.before_wait == ()
        assert {name.split(".")[1] for name in machine.mma} == {"16816"}


@pytest.mark.parametrize("arch,name", CARDS)
def test_compiles_on_the_other_cards_that_the_flag_allows(arch, name):
    config = getattr(decode, name)
    planned = replace(launch(16), kernel=decode.kernel(config))
    machine = compile_cuda_for(planned, arch)
    assert machine.stack_bytes == 0
    assert planned.kernel.shared_bytes <= (101_376 if arch < 90 else 232_448)
    if machine.sass is None:
        return
    assert machine.before_wait == (() if arch >= 90 else None)
    apart = config.gather_warps > 0
    assert (machine.bulk_copies > 0) == apart
    assert machine.registers_handed_over == (2 if apart else 0)


@pytest.mark.parametrize("config", decode.CONFIGS)
def test_the_shared_memory_that_the_launch_asks_for_is_what_the_kernel_declares(config):
    """16 bytes less must not compile."""
    kernel = decode.kernel(config)
    less = dict(kernel.constants) | {"SHARED_BYTES": kernel.shared_bytes - 16}
    with pytest.raises(RuntimeError, match="what the launch asks for"):
        replace(kernel, constants=tuple(less.items())).cubin(90)


def test_registers_are_handed_over_only_by_a_kernel_for_this_very_card():
    kernel = replace(decode.kernel(decode.COPIED), arch_specific=False)
    for arch in (90, 120):
        with pytest.raises(RuntimeError, match="setmaxnreg"):
            kernel.cubin(arch)


def test_one_kernel_for_each_class_of_rows_and_heads():
    """Heads and, beyond 16 of them, whether there are many rows decide what is compiled; nothing else does."""
    kernels = {}
    for heads in (1, 8, 16, 17, 32, 64, 128):
        for rows in (1, 5, 70):
            for changes in (
                dict(width=64),
                dict(width=8_256, far_page=2, sink=False, strided_q=True),
                dict(far=None, lengths=False, near_page=64),
            ):
                case = dict(near=(3,) * rows, far=(2,) * rows, heads=heads) | changes
                many = heads > 16 and rows * -(-heads // 16) > 4
                kernels.setdefault(many, set()).add(launch(**case).kernel)
    assert [len(found) for found in kernels.values()] == [1, 1]


def test_the_gate_sees_spills():
    kernel = decode.kernel(decode.FEW_HEADS)
    squeezed = dict(kernel.constants) | {"PROGRAMS_PER_SM": 3}
    tight = replace(
        launch(16), kernel=replace(kernel, constants=tuple(squeezed.items()))
    )
    assert compile_cuda_for(tight, 120).stack_bytes > 0
