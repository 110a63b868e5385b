"""The indexer logits on the CPU: against float64, and against the stock function of the patched tree."""

from __future__ import annotations

import random

import pytest
import torch

from cases import EDGE_LENGTHS, INDEXER_EDGES, IndexerCase, make_indexer
from kernels.indexer import CONFIGS, DOT_DTYPES, FORMS, paged_mqa_logits, plan
from kernels.indexer_ref import paged_mqa_logits_ref
from numeric import assert_bitwise_equal, assert_close
from stock import stock_logits

# The interpreter's bf16 dot is wrong, which is why the kernel takes the dtype of its dot.
DTYPES = sorted(set(DOT_DTYPES) - {"bf16"})
TOLERANCE = 1e-6


def poisoned(reference):
    """What a NaN-poisoned output must hold afterwards: nothing past a length is written."""
    return torch.where(torch.isneginf(reference.values), float("nan"), reference.values)


def random_case(draw: random.Random) -> IndexerCase:
    cap = draw.choice((65, 128, 600, 1088))
    batch = draw.randrange(1, 9)
    lens = tuple(
        draw.choice((draw.randrange(-1, cap + 70), *EDGE_LENGTHS)) for _ in range(batch)
    )
    return IndexerCase(
        "random",
        lens,
        cap,
        heads=draw.choice((16, 32, 64)),
        lens_2d=draw.random() < 0.5,
        sliced_table=draw.random() < 0.5,
        page_padding=draw.choice((0, 16, 1024)),
        out_padding=draw.choice((0, 3)),
        weights=draw.choice(("mixed", "negative")),
    )


@pytest.mark.parametrize("dot_dtype", DTYPES)
@pytest.mark.parametrize("case", INDEXER_EDGES, ids=lambda case: case.name)
def test_matches_float64(case, dot_dtype, seed):
    inputs = make_indexer(case, seed=seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    paged_mqa_logits(*inputs.args, out=inputs.out, dot_dtype=dot_dtype)
    assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


@pytest.mark.parametrize("number", range(12))
def test_random_cases_match_float64(number, seed):
    case = random_case(random.Random(seed + number))
    inputs = make_indexer(case, seed=seed + number)
    reference = paged_mqa_logits_ref(*inputs.args)
    paged_mqa_logits(*inputs.args, out=inputs.out)
    assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


@pytest.mark.parametrize("num_sms", (1, 8))
@pytest.mark.parametrize("heads", (16, 128))
@pytest.mark.parametrize("form", FORMS)
def test_each_form_matches_float64(form, heads, num_sms, seed):
    """By the path for one page (8 SMs have a program for each) and by that for longer shares."""
    case = IndexerCase("form", (130, 3, 0, 200), 256, heads=heads, page_padding=16)
    inputs = make_indexer(case, seed=seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    plan(*inputs.args, inputs.out, num_sms=num_sms, form=form).run()
    assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


@pytest.mark.parametrize("number", range(4))
def test_stock_and_ours_agree_with_float64(number, seed):
    draw = random.Random(seed + number)
    cap = 64 * draw.randrange(10, 14)
    lens = tuple(
        draw.choice(EDGE_LENGTHS + (cap, draw.randrange(cap))) for _ in range(5)
    )
    inputs = make_indexer(
        IndexerCase("stock", lens, cap, tail="valid"), seed=seed + number
    )
    reference = paged_mqa_logits_ref(*inputs.args)
    stock = stock_logits(inputs)
    ours = paged_mqa_logits(*inputs.args, fill_tail=True)
    assert_close(stock, reference.values, reference.magnitudes, TOLERANCE)
    assert_close(ours, reference.values, reference.magnitudes, TOLERANCE)
    assert_close(ours, stock.double(), reference.magnitudes, TOLERANCE)


def _keys(kv_cache):
    return (
        kv_cache.reshape(len(kv_cache), -1)[:, : 64 * 128]
        .view(torch.float8_e4m3fn)
        .float()
    )


def test_the_edge_list_at_once(seed):
    inputs = make_indexer(
        IndexerCase("edges", EDGE_LENGTHS, 576, tail="valid"), seed=seed
    )
    reference = paged_mqa_logits_ref(*inputs.args)
    ours = paged_mqa_logits(*inputs.args, fill_tail=True)
    assert_close(ours, reference.values, reference.magnitudes, TOLERANCE)
    assert torch.isneginf(ours[0]).all()


def test_an_interleaved_page_layout_is_caught(seed):
    inputs = make_indexer(IndexerCase("layout", (130,), 192), seed=seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    planar = inputs.kv_cache.reshape(-1, 64 * 132)
    keys, scales = planar[:, : 64 * 128], planar[:, 64 * 128 :]
    interleaved = torch.cat([keys.reshape(-1, 64, 128), scales.reshape(-1, 64, 4)], 2)
    inputs.kv_cache.copy_(interleaved.reshape(inputs.kv_cache.shape))
    paged_mqa_logits(*inputs.args, out=inputs.out)
    with pytest.raises(AssertionError):
        assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


def test_a_head_sum_before_relu_is_caught(seed):
    inputs = make_indexer(IndexerCase("relu", (130,), 192), seed=seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    folded = (inputs.q.float() * inputs.weights[:, None, :, None]).sum(2)[0, 0]
    keys = _keys(inputs.kv_cache)[inputs.page_table[0, :3].long()].reshape(-1, 128)[
        :130
    ]
    inputs.out[0, :130] = keys @ folded
    with pytest.raises(AssertionError):
        assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


def test_short_rows_are_skipped_and_the_rest_keeps_its_bits(seed):
    inputs = make_indexer(IndexerCase("skip", (512, 513, 3, 600, 0), 640), seed=seed)
    full = paged_mqa_logits(*inputs.args, out=inputs.out.clone())
    paged_mqa_logits(*inputs.args, out=inputs.out, skip_below=512)
    assert torch.isnan(inputs.out[[0, 2, 4]]).all()
    assert_bitwise_equal(inputs.out[[1, 3]], full[[1, 3]])


@pytest.mark.parametrize("over", (-1, 0, 1))
def test_about_as_many_pages_as_programs(over, seed):
    pages = 2 * CONFIGS["fp8"].programs_per_sm + over
    lens = (64 * (pages - 2), 0, 65)
    inputs = make_indexer(IndexerCase("programs", lens, 64 * pages), seed=seed)
    reference = paged_mqa_logits_ref(*inputs.args)
    paged_mqa_logits(*inputs.args, out=inputs.out, num_sms=2)
    assert_close(inputs.out, poisoned(reference), reference.magnitudes, TOLERANCE)


def test_a_program_for_each_page_of_several_blocks_of_rows(seed):
    (case,) = (case for case in INDEXER_EDGES if case.name == "rows-in-each-block")
    inputs = make_indexer(case, seed=seed)
    want = paged_mqa_logits(*inputs.args, out=inputs.out.clone(), num_sms=1)
    # Just enough programs: each looks at all rows first, which is what takes long here.
    pages = sum(-(-length // 64) for length in case.lens)
    num_sms = -(-pages // CONFIGS["fp8"].programs_per_sm)
    paged_mqa_logits(*inputs.args, out=inputs.out, num_sms=num_sms)
    assert_bitwise_equal(inputs.out, want)


@pytest.mark.parametrize("num_sms", (1, 3, 50))
def test_the_grid_changes_no_bit(num_sms, seed):
    inputs = make_indexer(IndexerCase("grid", (600, 0, 64, 1), 640), seed=seed)
    want = paged_mqa_logits(*inputs.args, out=inputs.out.clone())
    paged_mqa_logits(*inputs.args, out=inputs.out, num_sms=num_sms)
    assert_bitwise_equal(inputs.out, want)


def test_the_batch_and_the_cap_change_no_bit(seed):
    inputs = make_indexer(IndexerCase("rows", (200, 64, 130), 640), seed=seed)
    want = paged_mqa_logits(*inputs.args, out=inputs.out)
    q, kv, weights, lens, table, _, _ = inputs
    for row in range(3):
        part = slice(row, row + 1)
        out = torch.full((1, 256), float("nan"))
        paged_mqa_logits(
            q[part], kv, weights[part], lens[part], table[part], 256, out=out
        )
        assert_bitwise_equal(out, want[part, :256])


def test_lengths_apart_change_no_bit(seed):
    """A kernel of its own has few rows whose lengths lie side by side."""
    inputs = make_indexer(IndexerCase("apart", (200, 64, 130), 256), seed=seed)
    q, kv, weights, lens, table, cap, out = inputs
    want = paged_mqa_logits(q, kv, weights, lens, table, cap, out=out.clone())
    apart = torch.full((3, 4), 7, dtype=torch.int32)
    apart[:, 1] = lens.reshape(-1)
    paged_mqa_logits(q, kv, weights, apart[:, 1], table, cap, out=out)
    assert plan(q, kv, weights, lens, table, cap, out).args["FEW"]
    assert not plan(q, kv, weights, apart[:, 1], table, cap, out).args["FEW"]
    assert_bitwise_equal(out, want)


def test_nan_stays_in_its_row(seed):
    inputs = make_indexer(IndexerCase("nan", (130, 130, 64), 192), seed=seed)
    want = paged_mqa_logits(*inputs.args, out=inputs.out.clone())
    inputs.weights[1, 5] = float("nan")
    paged_mqa_logits(*inputs.args, out=inputs.out)
    assert_bitwise_equal(inputs.out[[0, 2]], want[[0, 2]])
    assert torch.isnan(inputs.out[1]).all()


def test_no_rows_and_no_width():
    inputs = make_indexer(IndexerCase("none", (3,), 64))
    q, kv, weights, lens, table, _, _ = inputs
    assert paged_mqa_logits(q[:0], kv, weights[:0], lens[:0], table[:0], 64).shape == (
        0,
        64,
    )
    assert paged_mqa_logits(q, kv, weights, lens, table[:, :0], 0).shape == (1, 0)


BAD = {
    "q shape": lambda a: a | {"q": a["q"][:, :, :12]},
    "q dtype": lambda a: a | {"q": a["q"].float()},
    "q strides": lambda a: a | {"q": a["q"].mT.contiguous().mT},
    "kv_cache dtype": lambda a: a | {"kv_cache": a["kv_cache"].view(torch.int8)},
    "kv_cache shape": lambda a: a | {"kv_cache": a["kv_cache"][:, :32]},
    "kv_cache strides": lambda a: a | {"kv_cache": _strided_pages(a["kv_cache"], 8452)},
    "kv_cache address": lambda a: a | {"kv_cache": _moved(a["kv_cache"], 4)},
    "weights shape": lambda a: a | {"weights": a["weights"][:, :16]},
    "weights dtype": lambda a: a | {"weights": a["weights"].half()},
    "seq_lens shape": lambda a: a | {"seq_lens": a["seq_lens"][:1]},
    "seq_lens dtype": lambda a: a | {"seq_lens": a["seq_lens"].long()},
    "page_table shape": lambda a: a | {"page_table": a["page_table"][:, :1]},
    "page_table dtype": lambda a: a | {"page_table": a["page_table"].long()},
    "page_table strides": lambda a: a
    | {"page_table": a["page_table"].T.contiguous().T},
    "out shape": lambda a: a | {"out": a["out"][:, :100]},
    "out dtype": lambda a: a | {"out": a["out"].half()},
    "out strides": lambda a: a | {"out": a["out"].T.contiguous().T},
    "out device": lambda a: a | {"out": a["out"].to("meta")},
    "max_seq_len": lambda a: a | {"max_seq_len": -1},
    "dot_dtype": lambda a: a | {"dot_dtype": "int8"},
}


def _strided_pages(kv, stride):
    raw = torch.zeros(len(kv) * stride, dtype=torch.uint8)
    return raw.as_strided(kv.shape, (stride, 132, 132, 1))


def _moved(kv, by):
    raw = torch.zeros(kv.numel() + 64, dtype=torch.uint8)
    start = -raw.data_ptr() % 16 + by
    return raw[start : start + kv.numel()].view(kv.shape)


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named_and_nothing_is_written(what):
    inputs = make_indexer(IndexerCase("bad", (130, 3), 192))
    good = inputs._asdict()
    bad = BAD[what](good)
    positional = [bad.pop(name) for name in inputs._fields[:-1]]
    with pytest.raises(
        ValueError, match=f"paged_mqa_logits: {what}: expected .*, got "
    ):
        paged_mqa_logits(*positional, **bad)
    assert torch.isnan(inputs.out).all()
