"""The indexer logits on a real GPU: numerics, graphs, compiled variants, bits, memory, addresses."""

from __future__ import annotations

import random

import pytest
import torch

import compile_gate
from cases import INDEXER_EDGES, IndexerCase, decode_case, make_indexer
from kernels import indexer
from kernels.indexer import paged_mqa_logits
from kernels.indexer_ref import paged_mqa_logits_ref
from numeric import assert_bitwise_equal, assert_close
from stock import stock_logits

DEVICE = "cuda"
WGMMA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)

# fp8: the tensor cores of sm_90 keep fewer bits while they accumulate. Measured 1.3e-4 of the norm.
TOLERANCE = {"fp8": 1e-3, "bf16": 1e-6, "fp32": 1e-6}


def unwritten(reference):
    """What a NaN-poisoned output must hold: the logits, and NaN where nothing may be written."""
    return torch.where(torch.isneginf(reference.values), float("nan"), reference.values)


def compiled_variants() -> int:
    return sum(
        len(cache[0])
        for cache in indexer._paged_mqa_logits_kernel.device_caches.values()
    )


@pytest.mark.parametrize("dot_dtype", indexer.DOT_DTYPES)
@pytest.mark.parametrize("case", INDEXER_EDGES, ids=lambda case: case.name)
def test_matches_float64(case, dot_dtype, seed):
    inputs = make_indexer(case, DEVICE, seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    paged_mqa_logits(*inputs.args, out=inputs.out, dot_dtype=dot_dtype)
    assert_close(
        inputs.out, unwritten(reference), reference.magnitudes, TOLERANCE[dot_dtype]
    )


@pytest.mark.parametrize("form", indexer.FORMS)
@pytest.mark.parametrize("case", INDEXER_EDGES, ids=lambda case: case.name)
def test_each_form_matches_float64(case, form, seed):
    """Whatever card it is for: by the path for one page, and by one program for all pages."""
    inputs = make_indexer(case, DEVICE, seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    by_pages = inputs.out.clone()
    indexer.plan(*inputs.args, by_pages, form=form).run()
    indexer.plan(*inputs.args, inputs.out, form=form, num_sms=1).run()
    assert_close(by_pages, unwritten(reference), reference.magnitudes, TOLERANCE["fp8"])
    if form != "group" or WGMMA:
        assert_bitwise_equal(inputs.out, by_pages)


@pytest.mark.skipif(not WGMMA, reason="the form of sm_90: mma.sync may sum otherwise")
@pytest.mark.parametrize("number", range(20))
def test_keys_by_registers_and_by_memory_give_the_same_bits(number, seed):
    """A path for one page takes the one, longer shares the other; 32 bytes of a key are one sum in both."""
    draw = random.Random(seed + number)
    lens = tuple(draw.randrange(1, 520) for _ in range(draw.choice((1, 5, 64))))
    heads = draw.choice((16, 32, 64, 64))
    case = IndexerCase("bits", lens, 576, heads=heads, page_padding=16)
    inputs = make_indexer(case, DEVICE, seed + number)
    if number % 2:
        # Magnitudes far apart: what a sum drops depends on what it is added to.
        scale = 2.0 ** torch.randint(-9, 9, inputs.q.shape, device=DEVICE)
        inputs.q.copy_((inputs.q.float() * scale).clamp(-448, 448).to(inputs.q.dtype))
    by_memory = inputs.out.clone()
    indexer.plan(*inputs.args, by_memory, form="memory").run()
    indexer.plan(*inputs.args, inputs.out, form="group").run()
    assert_bitwise_equal(inputs.out, by_memory)


@pytest.mark.parametrize(
    "batch,text,cap", [(1, 131072, 131072), (64, 8192, 131072), (2048, 4096, 4096)]
)
def test_matches_float64_at_size(batch, text, cap, seed):
    inputs = make_indexer(decode_case(batch, text, cap, pool=4096), DEVICE, seed)
    paged_mqa_logits(*inputs.args, out=inputs.out)
    rows = torch.randperm(batch)[:4].tolist()
    for row in rows:
        one = [
            x[row : row + 1] if torch.is_tensor(x) and x.shape[0] == batch else x
            for x in inputs.args
        ]
        one[1] = inputs.kv_cache
        reference = paged_mqa_logits_ref(*one)
        assert_close(
            inputs.out[row : row + 1],
            unwritten(reference),
            reference.magnitudes,
            TOLERANCE["fp8"],
        )


def test_matches_stock(seed):
    inputs = make_indexer(
        IndexerCase("stock", (0, 1, 700, 513, 64), 1024, tail="valid"), DEVICE, seed
    )
    stock = stock_logits(inputs)
    reference = paged_mqa_logits_ref(*inputs.args)
    paged_mqa_logits(*inputs.args, out=inputs.out, fill_tail=True, dot_dtype="bf16")
    assert_close(inputs.out, stock.double(), reference.magnitudes, 1e-6)


def test_capture_at_one_length_replay_at_others(seed):
    cap = 70_016 // 4
    lens = (75,) * 3
    inputs = make_indexer(IndexerCase("capture", (cap,) * 3, cap), DEVICE, seed)
    inputs.seq_lens.copy_(torch.tensor(lens, dtype=torch.int32)[:, None])
    paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=0)
    graph = torch.cuda.CUDAGraph()
    before = compiled_variants()
    with torch.cuda.graph(graph):
        paged_mqa_logits(*inputs.args, out=inputs.out)
    assert compiled_variants() == before, "something compiled inside capture"
    for raw in (300, 0, 1, 300, 70_000, 2_052, 2_048, 70_000, 4, 300):
        inputs.seq_lens.fill_(raw // 4)
        inputs.out.fill_(float("nan"))
        graph.replay()
        reference = paged_mqa_logits_ref(*inputs.args)
        assert_close(
            inputs.out, unwritten(reference), reference.magnitudes, TOLERANCE["fp8"]
        )


def test_two_compiled_variants_over_lengths_widths_and_batches(seed):
    """One for rows of one block, one for more."""
    indexer._paged_mqa_logits_kernel.device_caches.clear()
    for batch in (1, 2, 3, 15, 16, 17, 64, 300, 2048):
        for cap in (1, 64, 65, 128, 2048, 2112, 8193):
            for skip in (0, 1, 16, 512, 1024):
                lens = tuple((7 * row) % (cap + 1) for row in range(batch))
                case = IndexerCase(
                    "v",
                    lens,
                    cap,
                    pool=200,
                    sliced_table=batch % 2 == 1,
                    out_padding=cap % 3,
                )
                inputs = make_indexer(case, DEVICE, seed)
                paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=skip)
                variants = compiled_variants()
                assert variants == 1 + (batch > indexer.FEW_ROWS), (batch, variants)


def test_same_bits_run_after_run_and_whatever_the_batch_grid_and_width(seed):
    inputs = make_indexer(
        IndexerCase("bits", (5000, 64, 0, 333, 8192), 8192), DEVICE, seed
    )
    first = paged_mqa_logits(*inputs.args, out=inputs.out).clone()
    for _ in range(200):
        inputs.out.fill_(float("nan"))
        assert_bitwise_equal(paged_mqa_logits(*inputs.args, out=inputs.out), first)
    for sms in (1, 7, 132, 188):
        inputs.out.fill_(float("nan"))
        assert_bitwise_equal(
            paged_mqa_logits(*inputs.args, out=inputs.out, num_sms=sms), first
        )
    q, kv, weights, lens, table, cap, _ = inputs
    for row in range(5):
        alone = torch.full((1, cap), float("nan"), device=DEVICE)
        part = slice(row, row + 1)
        paged_mqa_logits(
            q[part], kv, weights[part], lens[part], table[part], cap, out=alone
        )
        assert_bitwise_equal(alone, first[part])


def test_a_row_has_the_same_bits_in_either_kernel(seed):
    """Of few rows and of any number: on sm_90 keys reach the products differently, too."""
    lens = tuple(row * 37 % 700 for row in range(300))
    inputs = make_indexer(IndexerCase("either", lens, 704), DEVICE, seed)
    q, kv, weights, lens, table, cap, out = inputs
    paged_mqa_logits(q, kv, weights, lens, table, cap, out=out)
    for rows in (1, 64, 65):
        part = slice(100, 100 + rows)
        few = torch.full((rows, cap), float("nan"), device=DEVICE)
        paged_mqa_logits(
            q[part], kv, weights[part], lens[part], table[part], cap, out=few
        )
        assert_bitwise_equal(few, out[part])


def test_skipped_rows_are_not_written(seed):
    inputs = make_indexer(IndexerCase("skip", (512, 513, 3, 600), 640), DEVICE, seed)
    full = paged_mqa_logits(*inputs.args, out=inputs.out.clone())
    paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=512)
    assert torch.isnan(inputs.out[[0, 2]]).all()
    assert_bitwise_equal(inputs.out[[1, 3]], full[[1, 3]])


def test_extra_memory_at_the_campaigns_shape(seed):
    batch, cap = 32, 262_208
    inputs = make_indexer(
        IndexerCase("memory", (cap,) * batch, cap, pool=4200), DEVICE, seed
    )
    args = list(inputs.args)
    del inputs
    paged_mqa_logits(*args)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = paged_mqa_logits(*args)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before - out.numel() * 4
    assert extra < 1 << 20, f"{extra} bytes beyond the output"


def test_page_and_row_offsets_past_two_to_the_31(seed):
    pages = 2**31 // 8448 + 200
    kv = torch.full((pages, 64, 1, 132), 0xFF, dtype=torch.uint8, device=DEVICE)
    small = make_indexer(IndexerCase("far", (640, 100), 640), DEVICE, seed)
    far = torch.arange(pages - small.kv_cache.shape[0], pages, device=DEVICE)
    kv[far] = small.kv_cache
    table = (small.page_table.clamp(0, small.kv_cache.shape[0] - 1) + int(far[0])).to(
        torch.int32
    )
    reference = paged_mqa_logits_ref(*small.args)
    q, _, weights, lens, _, cap, _ = small
    paged_mqa_logits(q, kv, weights, lens, table, cap, out=small.out)
    assert_close(
        small.out, unwritten(reference), reference.magnitudes, TOLERANCE["fp8"]
    )
    del kv

    rows, stride = 2, 2**31 + 1024
    buffer = torch.empty(stride + cap, device=DEVICE)
    out = buffer.as_strided((rows, cap), (stride, 1))
    out.fill_(float("nan"))
    paged_mqa_logits(*small.args, out=out)
    assert_close(out, unwritten(reference), reference.magnitudes, TOLERANCE["fp8"])
    many = 70_000
    width = 32_768
    if torch.cuda.get_device_properties(0).total_memory < 4 * many * width + 2**32:
        pytest.skip(
            f"needs {4 * many * width / 2**30:.0f} GiB for {many} rows of {width}"
        )
    lens = torch.zeros(many, dtype=torch.int32, device=DEVICE)
    lens[-1] = 640
    table = torch.zeros(many, width // 64, dtype=torch.int32, device=DEVICE)
    table[-1, :10] = small.page_table[0, :10]
    big = torch.empty(many, width, device=DEVICE)
    big[-1].fill_(float("nan"))
    paged_mqa_logits(
        small.q[:1].expand(many, 1, 64, 128).contiguous(),
        small.kv_cache,
        small.weights[:1].expand(many, 64).contiguous(),
        lens,
        table,
        width,
        out=big,
    )
    assert_close(
        big[-1:, :640],
        unwritten(reference)[:1],
        reference.magnitudes[:1],
        TOLERANCE["fp8"],
    )
    assert torch.isnan(big[-1, 640:]).all()


def test_nan_stays_in_its_row(seed):
    inputs = make_indexer(IndexerCase("nan", (130, 130, 64), 192), DEVICE, seed)
    want = paged_mqa_logits(*inputs.args, out=inputs.out.clone())
    inputs.weights[1, 5] = float("nan")
    paged_mqa_logits(*inputs.args, out=inputs.out)
    assert_bitwise_equal(inputs.out[[0, 2]], want[[0, 2]])
    assert torch.isnan(inputs.out[1]).all()


@pytest.mark.parametrize("rows", (1, 100))
def test_jit_builds_what_the_compile_gate_saw(rows, seed):
    inputs = make_indexer(IndexerCase("gate", (130,) * rows, 192), DEVICE, seed)
    launch = indexer.plan(*inputs.args, inputs.out)
    major, minor = torch.cuda.get_device_capability()
    kernel = launch.compile()
    kernel._init_handles()
    expected = compile_gate.compile_for(launch, 10 * major + minor)
    assert (kernel.n_regs, kernel.metadata.shared) == (
        expected.registers,
        expected.shared,
    )
