"""Each shipped configuration of the indexer kernel, compiled for sm_120 and sm_121 without a GPU."""

from __future__ import annotations

import re
from typing import Optional

import pytest
import torch

from cases import IndexerCase, make_indexer
from compile_gate import compile_for, sass_for, target
from kernels import indexer, indexer_config
from kernels.config import SM120, Launch
from patchset import bench_indexer

# triton 3.6.0 multiplies fp8 as f16 on 12.1, and fp32 on the CUDA cores.
MMA = {
    ("fp8", 120): "m16n8k32.row.col.f32.e4m3.e4m3.f32",
    ("fp8", 121): "m16n8k16.row.col.f32.f16.f16.f32",
    ("bf16", 120): "m16n8k16.row.col.f32.bf16.bf16.f32",
    ("bf16", 121): "m16n8k16.row.col.f32.bf16.bf16.f32",
}
# The machine code of sm_120: warp-level instructions, no wgmma (HGMMA, QGMMA), no tcgen05 (UTC...).
SASS = {"fp8": "QMMA.16832.F32.E4M3.E4M3", "bf16": "HMMA.16816.F32.BF16"}
# fp32 is for the Triton interpreter alone: it spills.
SHIPPED = [(heads, dtype) for heads in indexer.HEAD_COUNTS for dtype in ("fp8", "bf16")]
# The kernel of any number of rows has in it what that of few rows has: the latter is compiled in the form of warps
# and once more.
COMPILED = [(heads, dtype, 100) for heads, dtype in SHIPPED]
COMPILED += [(heads, "fp8", 2) for heads in (16, 32, 64)] + [(64, "bf16", 2)]


def launch(
    heads: int,
    dot_dtype: str,
    page_padding: int = 0,
    overlap: bool = True,
    rows: int = 2,
    form: Optional[str] = None,
) -> Launch:
    """The launch on sm_120, whose plan a CPU's tensors get, or that of ``form``."""
    lens = (130, 3) * (rows // 2)
    case = IndexerCase("aot", lens, 192, heads=heads, page_padding=page_padding)
    inputs = make_indexer(case)
    return indexer.plan(
        *inputs.args, inputs.out, dot_dtype=dot_dtype, overlap=overlap, form=form
    )


@pytest.mark.parametrize("arch", (120, 121))
@pytest.mark.parametrize("heads,dot_dtype,rows", COMPILED)
def test_fits_the_card(heads, dot_dtype, rows, arch, report):
    form = "memory" if arch == 121 else None
    machine = compile_for(launch(heads, dot_dtype, rows=rows, form=form), arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    few = "few rows" if rows <= indexer.FEW_ROWS else "any rows"
    report.row(f"indexer logits, {heads} heads, {dot_dtype}, {few}", machine, resident)
    assert machine.shared <= SM120.shared_per_block
    assert machine.spill_bytes == 0 and machine.stack_bytes == 0
    assert not machine.forbidden
    assert set(machine.mma) == {f"mma.sync.aligned.{MMA[dot_dtype, arch]}"}
    assert machine.byte_loads == 0 and machine.async_copies > 0
    if arch == 120:
        assert set(machine.sass) == {SASS[dot_dtype]}
        assert machine.before_wait == ()
    # On 12.1 fp8 is widened to f16 in shared memory, so one program fewer fits; that card's memory is
    # six times slower, and two programs an SM keep it busy.
    if heads == 64 and arch == 120:
        assert resident >= indexer.CONFIGS[dot_dtype].programs_per_sm


@pytest.mark.parametrize(
    "heads,arch,form",
    [(heads, 120, "warps") for heads in (16, 32, 64)]
    + [(heads, 90, "group") for heads in (16, 32, 64)],
)
def test_keys_of_one_page_reach_the_products_by_registers(
    heads, arch, form, monkeypatch
):
    """From the page's number to the first store of logits: no key goes through shared memory."""
    monkeypatch.setattr(indexer, "has_large_sms", lambda device: arch == 90)
    path = one_page(launch(heads, "fp8", form=form), arch)
    assert path.count("LDG.E.128") >= 4 and path[-1] == "STG"
    if form == "warps":
        # One barrier, which orders the loads.
        assert not {"STS", "LDS", "STSM", "LDSM"} & set(path)
        assert path.count("BAR") == 1 and path.count("QMMA") == heads // 8 * 4
    else:
        # q goes there, behind one barrier.
        assert path.count("BAR") == 1 and path.count("QGMMA") == 4
        assert path.count("STS") + path.count("STSM") <= heads // 4
        assert path.count("LDG.E.128") >= 4 + heads // 16
        # Of each 16 bytes 8 are exchanged before the products, and sums of two rows after them.
        assert path.count("SHFL.BFLY") == 8 + 4


def test_keys_through_memory_are_seen_on_the_way(monkeypatch):
    monkeypatch.setattr(indexer, "has_large_sms", lambda device: True)
    path = one_page(launch(64, "fp8", form="memory"), 90)
    assert path.count("STS") == 8 and path.count("SHFL.BFLY") == 4
    path = one_page(launch(64, "fp8", form="memory"), 120)
    assert path.count("BAR") > 1 and {"STS", "LDSM"} <= set(path)


def one_page(launch: Launch, arch: int) -> list[str]:
    """Instructions of the path for one page, from the read of its number to the first store."""
    sass = sass_for(launch, arch)
    names = instructions(sass[sass.index("REDUX.MAX") :])
    return names[: names.index("STG") + 1]


def instructions(sass: str) -> list[str]:
    # `@!PT LDS RZ, [RZ]`, which is never run, stands before fences and copies.
    return re.findall(
        r"\b(LDG\.E\.128|LDG|LDGSTS|STSM?|LDSM?|BAR|QG?MMA|SHFL\.BFLY|STG)\b(?!.*RZ, \[RZ\])",
        sass,
    )


@pytest.mark.parametrize("rows", (2, 100))
def test_each_warp_of_a_loop_has_its_own_keys_on_sm_120(rows):
    """From the read of a page's keys in shared memory to the store of their logits."""
    sass = sass_for(launch(64, "fp8", rows=rows), 120)
    names = instructions(sass[sass.index("LDS.128") :])
    page = names[: names.index("STG")]
    assert page.count("QMMA") == 32 and page.count("LDS") >= 4
    assert not {"BAR", "STS", "LDSM", "STSM"} & set(page)


@pytest.mark.parametrize(
    "capability,heads,dot_dtype,rows,form",
    [
        ((12, 0), 64, "fp8", 2, "warps"),
        ((12, 0), 64, "fp8", 100, "warps"),
        ((12, 0), 128, "fp8", 2, "memory"),
        ((12, 0), 64, "bf16", 2, "memory"),
        ((8, 9), 16, "fp8", 2, "warps"),
        ((12, 1), 16, "fp8", 2, "memory"),
        ((10, 0), 64, "fp8", 2, "memory"),
        ((9, 0), 64, "fp8", 64, "group"),
        ((9, 0), 64, "fp8", 66, "memory"),
        ((9, 0), 128, "fp8", 2, "memory"),
        ((9, 0), 64, "bf16", 2, "memory"),
    ],
)
def test_the_form_is_that_of_the_card(
    capability, heads, dot_dtype, rows, form, monkeypatch
):
    monkeypatch.setattr(indexer_config, "capability", lambda device: capability)
    args = launch(heads, dot_dtype, rows=rows).args
    assert (args["FORM"], args["LOOP_FORM"]) == indexer.FORMS[form]


@pytest.mark.parametrize(
    "dot_dtype,arch,form,rows",
    [
        ("fp8", 89, "warps", 100),
        ("bf16", 89, "memory", 100),
        ("fp8", 90, "group", 2),
        ("fp8", 90, "memory", 100),
        ("fp8", 100, "memory", 100),
    ],
)
def test_compiles_on_the_other_cards_that_the_flag_allows(
    dot_dtype, arch, form, rows, monkeypatch
):
    monkeypatch.setattr(indexer, "has_large_sms", lambda device: arch in (90, 100))
    # Launches overlap from sm_90 on; what makes them wait does not compile before.
    machine = compile_for(
        launch(64, dot_dtype, overlap=arch >= 90, rows=rows, form=form), arch
    )
    assert machine.mma or "tcgen05" in machine.forbidden
    if form == "warps":
        # What it is chosen for there.
        assert set(machine.mma) == {f"mma.sync.aligned.{MMA['fp8', 120]}"}
    assert machine.spill_bytes == 0
    assert machine.before_wait == (() if arch >= 90 else None)


@pytest.mark.parametrize("rows,form", [(2, "group"), (100, "memory")])
def test_no_more_programs_fit_the_large_cards_than_the_grid_has(
    rows, form, monkeypatch
):
    monkeypatch.setattr(indexer, "has_large_sms", lambda device: True)
    machine = compile_for(launch(64, "fp8", rows=rows, form=form), 90)
    per_warp = -(-machine.registers * 32 // 256) * 256
    programs = SM120.registers_per_sm // (per_warp * machine.num_warps)
    assert programs == indexer.CONFIGS["fp8"].programs_per_large_sm


@pytest.mark.parametrize("rows,form", [(2, "group"), (100, "memory")])
def test_the_bench_has_an_arm_whose_products_are_mma_sync(rows, form, monkeypatch):
    monkeypatch.setattr(indexer, "has_large_sms", lambda device: True)
    monkeypatch.setattr(indexer_config, "capability", lambda device: (9, 0))
    case = IndexerCase("aot", (130, 3) * (rows // 2), 192)
    launch = bench_indexer.two_warps(make_indexer(case))
    assert launch.args["FORM"] == form and launch.options["num_warps"] == 2
    machine = compile_for(launch, 90)
    # On sm_90 fp8 is widened to f16 for it.
    assert set(machine.mma) == {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"}
    assert not machine.forbidden and machine.spill_bytes == 0
    assert indexer.CONFIGS["fp8"].num_warps == 4


@pytest.mark.parametrize("rows,blocks", [(2, 1), (100, 3)])
@pytest.mark.parametrize("arch", (90, 100, 120))
def test_a_lane_holds_one_of_the_numbers_that_a_warp_sums_up(arch, rows, blocks):
    """What the shuffles of the running sums take for granted."""
    with target(arch):
        ir = launch(64, "fp8", rows=rows).compile().asm["ttgir"]
    sums = [line for line in ir.splitlines() if "shfl.sync.up" in line]
    assert len(sums) == blocks
    for line in sums:
        (layout,) = set(re.findall(r"tensor<32xi32, (#\w+)>", line))
        assert (
            f"{layout} = #ttg.blocked<{{sizePerThread = [1], threadsPerWarp = [32],"
            in ir
        )


def test_a_pool_with_gaps_between_pages_compiles_to_the_same_machine():
    dense, padded = (
        compile_for(launch(64, "fp8", padding), 120) for padding in (0, 1024)
    )
    assert (dense.registers, dense.shared, dense.mma) == (
        padded.registers,
        padded.shared,
        padded.mma,
    )


@pytest.mark.parametrize(
    "batches", [(1, 2, 15, 16, 17, 64), (65, 66, 128, 2048)], ids=("few", "any")
)
def test_the_specialisation_is_the_same_for_every_length_width_and_batch(batches):
    """What the JIT would key its cache on, asked of the launcher's own arguments."""
    kernel = indexer._paged_mqa_logits_kernel
    keys = set()
    with target(120):
        for batch in batches:
            for cap in (1, 16, 63, 64, 2048, 2112):
                lens = (min(cap, 64),) * batch
                case = IndexerCase("k", lens, cap, pool=3, sliced_table=batch % 2 == 1)
                inputs = make_indexer(case)
                plan = indexer.plan(*inputs.args, inputs.out, skip_below=cap)
                binder = kernel.create_binder()[4]
                _, specialization, options = binder(**plan.args, **plan.options)
                keys.add((str(specialization), str(options)))
    assert len(keys) == 1, keys


def test_the_gate_sees_a_kernel_that_cannot_launch():
    """Thirty-one stages of pages do not fit: the same checks must say so."""
    too_big = launch(128, "bf16")
    options = dict(too_big.options, num_stages=31)
    args = dict(too_big.args, STAGES=31)
    machine = compile_for(Launch(too_big.kernel, too_big.grid, args, options), 120)
    assert machine.shared > SM120.shared_per_block
    assert (
        SM120.blocks_resident(machine.registers, machine.shared, machine.num_warps) == 0
    )


def test_the_gate_sees_spills():
    squeezed = launch(128, "bf16")
    options = dict(squeezed.options, maxnreg=64)
    machine = compile_for(
        Launch(squeezed.kernel, squeezed.grid, squeezed.args, options), 120
    )
    assert machine.spill_bytes > 0
    assert machine.sass["STL"] > 0 and machine.sass["LDL"] > 0


@pytest.mark.parametrize("by", (4, 8))
def test_a_misaligned_cache_is_refused_before_it_compiles_to_another_kernel(by):
    inputs = make_indexer(IndexerCase("aot", (130,), 192))
    raw = torch.zeros(inputs.kv_cache.numel() + 64, dtype=torch.uint8)
    start = -raw.data_ptr() % 16 + by
    moved = raw[start : start + inputs.kv_cache.numel()].view(inputs.kv_cache.shape)
    with pytest.raises(ValueError, match="kv_cache address"):
        indexer.plan(*inputs._replace(kv_cache=moved).args, inputs.out)
