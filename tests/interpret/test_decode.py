"""The attention on the CPU: the kernel's own source under ``cuda_on_cpu``, against a float64 reference."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import cuda_on_cpu
from decode_cases import (
    DECODE_EDGES,
    NAN_BYTE,
    SCORES,
    UNWRITTEN,
    DecodeCase,
    assert_attention,
    make_decode,
    page_bytes,
    unwritten,
)
from kernels import decode
from kernels.decode import decode_workspace, plan, sparse_mla_decode
from kernels.decode_ref import sparse_mla_decode_ref
from numeric import assert_bitwise_equal
from patchset import decode_parts

# Rows whose tiles are many for the four programs of the CPU, so that they are shared out.
LONG = DecodeCase("long", (128, 3, 60), (200, 0, 70))


def run(inputs, num_splits=None, order=None, workspace=None, check_reads=False, seed=0):
    """The launch that serving would run, on the CPU; returns the outputs."""
    out, lse = unwritten(inputs)
    workspace = workspace or decode_workspace(inputs.q.shape[2], "cpu")
    workspace.partials.fill_(float("nan"))
    launch = plan(*inputs, num_splits=num_splits, out=out, lse=lse, workspace=workspace)
    readable = [*inputs.readable(), workspace.partials] if check_reads else []
    cuda_on_cpu.run(launch, order=order, readable=readable, seed=seed)
    assert not workspace.counters.any(), "the workspace was not left zero"
    return out, lse


FORMS = {
    name: getattr(decode, name) for name in ("PLAIN", "COPIED", "LARGE", "LARGE_MANY")
}


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """One of the launch shapes of 32 heads, whatever the rows and heads."""
    monkeypatch.setattr(decode, "config_for", lambda *_: FORMS[request.param])
    return FORMS[request.param]


@pytest.mark.parametrize("num_splits", (None, 1))
@pytest.mark.parametrize("case", DECODE_EDGES, ids=lambda case: case.name)
def test_edges(case, num_splits, seed):
    inputs = make_decode(case, seed=seed)
    assert_attention(inputs, run(inputs, num_splits, seed=seed))


@pytest.mark.parametrize("scores", SCORES)
def test_scores_and_scales(scores, seed):
    inputs = make_decode(replace(LONG, scores=scores), seed=seed)
    assert_attention(inputs, run(inputs, seed=seed))


def random_case(draw: random.Random, heads: tuple[int, ...]) -> DecodeCase:
    rows = draw.randrange(1, 6)
    far = draw.choice((None, 64, 150))
    return DecodeCase(
        "random",
        tuple(draw.randrange(-1, 140) for _ in range(rows)),
        far and tuple(draw.randrange(-1, far + 30) for _ in range(rows)),
        heads=draw.choice(heads),
        width=far or 1,
        near_page=draw.choice((64, 256)),
        far_page=draw.choice((1, 2, 64)),
        invalid=draw.choice((0.0, 0.3, 1.0)),
        scores=draw.choice(list(SCORES)),
        sink=draw.random() < 0.5,
        e4m3=draw.random() < 0.5,
        strided_q=draw.random() < 0.5,
        flat_indices=draw.random() < 0.5,
    )


@pytest.mark.parametrize("number", range(8))
def test_random_cases(number, seed):
    draw = random.Random(seed + number)
    case = random_case(draw, (1, 8, 16, 17, 33))
    inputs = make_decode(case, seed=seed + number)
    grid = plan_of(inputs).grid
    order = draw.sample(range(grid), grid)
    assert_attention(inputs, run(inputs, order=order, seed=number))


@pytest.mark.parametrize("number", range(2))
def test_random_cases_of_32_heads_a_program(form, number, seed):
    draw = random.Random(seed + number)
    case = replace(random_case(draw, (17, 32, 33, 64)), strided_q=False)
    inputs = make_decode(case, seed=seed + number)
    grid = plan_of(inputs).grid
    order = draw.sample(range(grid), grid)
    got = run(inputs, order=order, check_reads=True, seed=number)
    assert_attention(inputs, got)


def test_each_form_of_32_heads_shares_out_rows_always_alike(form, seed):
    """Long rows, rows of no key and short ones, in a workspace that is used again."""
    case = DecodeCase("forms", (128, 0, 60), (520, 0, 1), heads=40, invalid=0.2)
    inputs = make_decode(case, seed=seed)
    workspace = decode_workspace(40, "cpu")
    want = run(inputs, workspace=workspace, seed=seed)
    assert_attention(inputs, want)
    for number in range(2):
        order = random.Random(seed + number).sample(range(4), 4)
        got = run(inputs, order=order, workspace=workspace, seed=seed + number)
        for one, other in zip(got, want):
            assert_bitwise_equal(one, other)


def test_nothing_that_an_earlier_key_left_in_shared_memory_counts(form, seed):
    """Keys of NaN, and then rows that have fewer keys than a tile."""
    case = DecodeCase("left", (128,) * 4, (130,) * 4, heads=32)
    inputs = make_decode(case, seed=seed)
    page_bytes(inputs.k_cache)[:] = NAN_BYTE
    page_bytes(inputs.extra_k_cache)[:] = NAN_BYTE
    out, _ = run(inputs)
    assert out.isnan().all()
    case = replace(case, near=(3, 60, 0, 128), far=(0, 1, 50, 7), invalid=0.3)
    inputs = make_decode(case, seed=seed)
    assert_attention(inputs, run(inputs))


def rounded(exact: torch.Tensor) -> torch.Tensor:
    """To bf16, and back to float64."""
    return exact.to(torch.bfloat16).double()


def with_stocks_roundings(inputs) -> torch.Tensor:
    """What the stock kernel would return if it erred in nothing but its roundings: each cache's result is one to
    bf16, and so is what it merges of the two. A sink, of which it makes a third, is left out.
    """
    assert inputs.attn_sink is None
    near = sparse_mla_decode_ref(*inputs[:7])
    far = sparse_mla_decode_ref(inputs.q, *inputs[7:], *inputs[4:7])
    share = torch.sigmoid(near.lse - far.lse).unsqueeze(1)
    return rounded(share * rounded(near.out) + (1 - share) * rounded(far.out))


@pytest.mark.parametrize("scores,rows", (("normal", 1), ("peaked", 6)))
@pytest.mark.parametrize("config", decode.CONFIGS)
def test_errors_are_not_above_those_of_stocks_roundings(
    config, scores, rows, seed, monkeypatch
):
    """Not of one row of peaked scores, however long: where a head has one key, or keys of one cache only, stock's
    first rounding is exact or the last one's too. What is left is the same last rounding in both, and ours then has
    up to 5e-4 of it more, for its weights of f16. Of six rows, some heads have several keys in both caches.
    """
    monkeypatch.setattr(decode, "config_for", lambda *_: config)
    case = DecodeCase(
        "e", (128,) * rows, (512,) * rows, heads=32, scores=scores, sink=False
    )
    inputs = make_decode(case, seed=seed)
    want = sparse_mla_decode_ref(*inputs).out

    def error(out):
        return ((out.double() - want).norm() / want.norm()).item()

    assert error(run(inputs, seed=seed)[0]) <= error(with_stocks_roundings(inputs))


@pytest.mark.parametrize(
    "large,copies,few,many",
    (
        (False, False, "PLAIN", "PLAIN"),
        (False, True, "COPIED", "COPIED"),
        (True, True, "LARGE", "LARGE_MANY"),
    ),
)
def test_which_form_a_card_runs(large, copies, few, many, monkeypatch):
    """On a card of four programs: as few as two rows are never many, whatever their heads."""
    monkeypatch.setattr(decode, "has_large_sms", lambda _: large)
    monkeypatch.setattr(decode, "has_copy_engine", lambda _: copies)
    for heads in (1, 16, 32, 64, 128):
        for rows in range(8):
            want = FORMS[many if 2 * rows > 4 else few]
            if heads <= 16 or rows * (heads // 16) <= 4:
                want = decode.FEW_HEADS
            assert decode.config_for(rows, heads, torch.device("cpu")) is want


def plan_of(inputs, **options):
    out, lse = unwritten(inputs)
    workspace = decode_workspace(inputs.q.shape[2], "cpu")
    return plan(*inputs, out=out, lse=lse, workspace=workspace, **options)


@pytest.mark.parametrize("heads", (8, 40))
def test_nothing_else_is_read(heads, seed):
    case = replace(LONG, near=(128, 3), far=(90, 0), heads=heads, invalid=0.2)
    inputs = make_decode(case, seed=seed)
    assert_attention(inputs, run(inputs, check_reads=True))


def test_a_read_past_a_length_is_caught(seed):
    """The gate behind the test above: one key more than may be read."""
    inputs = make_decode(DecodeCase("guard", (37,), None), seed=seed)
    allowed = inputs.readable()
    inputs.topk_length.add_(1)
    inputs.indices[0, 0, 37] = 0
    with pytest.raises(AssertionError, match="reads outside"):
        cuda_on_cpu.run(plan_of(inputs), readable=allowed)


def test_whichever_program_is_last_the_result_is_the_same(seed):
    inputs = make_decode(LONG, seed=seed)
    grid = plan_of(inputs).grid
    want = run(inputs)
    for order in (range(grid)[::-1], random.Random(seed).sample(range(grid), grid)):
        for got, first in zip(run(inputs, order=list(order)), want):
            assert_bitwise_equal(got, first)


def test_a_program_that_gives_up_late_hides_no_other(seed):
    """Between the last one's arrival and its look at who gave up, another one gives up: it finds all parts
    there and merges its slice itself, while the last one sees it beside those whose slices are its own.
    """
    inputs = make_decode(DecodeCase("late", (128,), (192,)), seed=seed)
    out, lse = unwritten(inputs)
    workspace = decode_workspace(16, "cpu")
    launch = plan(*inputs, out=out, lse=lse, workspace=workspace)
    last, idle = 2, 3
    cuda_on_cpu.run_blocks(launch, [0, 1, idle, idle])
    gave_up = 1 << 16
    assert workspace.counters[0] == 2 * (1 + gave_up)
    workspace.counters[0] -= gave_up
    cuda_on_cpu.run_blocks(launch, [last, idle, idle, idle])
    assert not workspace.counters.any()
    assert_attention(inputs, (out, lse))


@pytest.mark.parametrize("empty", range(3))
def test_each_part_of_a_row_may_be_without_a_key(empty, seed):
    """Five tiles of 64 keys are three programs' work here; all keys of one are -1."""
    inputs = make_decode(DecodeCase("parts", (128,), (192,)), seed=seed)
    if empty == 0:
        inputs.indices[:] = -1
    else:
        inputs.extra_indices[..., 128 * (empty - 1) : 128 * empty] = -1
    want = sparse_mla_decode_ref(*inputs)
    whole = run(inputs, num_splits=1)
    shared_out = run(inputs)
    assert_attention(inputs, whole, want)
    assert_attention(inputs, shared_out, want)


@pytest.mark.parametrize("keys,shared_out", ((256, False), (257, True)))
def test_a_row_of_few_keys_is_one_programs(keys, shared_out, seed):
    """What parts leave for each other is written only where there are parts."""
    inputs = make_decode(DecodeCase("small", (128,), (keys - 128,)), seed=seed)
    workspace = decode_workspace(16, "cpu")
    assert_attention(inputs, run(inputs, workspace=workspace))
    assert (not workspace.partials.isnan().all()) == shared_out


@pytest.mark.parametrize("keys,shared_out", ((256, False), (257, True)))
def test_as_few_keys_in_each_form_of_32_heads(form, keys, shared_out, seed):
    """However long its tiles are."""
    case = DecodeCase("small", (128,), (keys - 128,), heads=32)
    workspace = decode_workspace(32, "cpu")
    run(make_decode(case, seed=seed), workspace=workspace)
    assert (not workspace.partials.isnan().all()) == shared_out


def parts_left(inputs, programs: int, monkeypatch, seed: int) -> list[int]:
    """Run on a GPU of as many programs; how many parts of a row each of them left for others to merge."""
    monkeypatch.setattr(decode, "sm_count", lambda _: programs)
    rows, _, heads, _ = inputs.q.shape
    workspace = decode_workspace(heads, "cpu")
    assert_attention(inputs, run(inputs, workspace=workspace, seed=seed))
    values = decode.config_for(rows, heads, inputs.q.device).partial_values
    left = ~workspace.partials[: 2 * programs * values : values].isnan()
    return left.view(2, programs).sum(0).tolist()


@pytest.mark.parametrize("place", (0, 3, 7))
def test_a_long_row_is_done_by_all_programs_that_short_ones_leave(
    place, seed, monkeypatch
):
    """31 tiles for 12 programs. Of equal shares, of three tiles, seven short rows of three would leave four."""
    far = [2] * 7
    far.insert(place, 512)
    case = DecodeCase("own", (128,) * 8, tuple(far), far_page=2)
    left = parts_left(make_decode(case, seed=seed), 12, monkeypatch, seed)
    assert sorted(left) == [0] * 7 + [1] * 5


@pytest.mark.parametrize("rows,heads,far", ((3, 16, 512), (1, 64, 512), (5, 16, 576)))
def test_no_program_has_parts_of_two_rows(rows, heads, far, seed, monkeypatch):
    """Rows and groups of ten or eleven tiles for 12 programs, of which equal shares would have parts of two."""
    case = DecodeCase("own", (128,) * rows, (far,) * rows, heads=heads, width=far)
    left = parts_left(make_decode(case, seed=seed), 12, monkeypatch, seed)
    assert max(left) == 1


def test_equal_shares_where_own_ones_would_be_much_longer(seed, monkeypatch):
    """Seven rows of ten tiles for twelve programs: equal shares are six, one program to each row would have ten."""
    case = DecodeCase("equal", (128,) * 7, (512,) * 7)
    left = parts_left(make_decode(case, seed=seed), 12, monkeypatch, seed)
    assert max(left) == 2


@pytest.mark.parametrize(
    "case",
    (
        DecodeCase("none", (40,) * 5, (10,) * 5),
        DecodeCase("alone", (128,), (512,)),
        DecodeCase("some", (128,) * 3, (512, 0, 512)),
        DecodeCase("equal", (128,) * 7, (512,) * 7),
        DecodeCase("one long", (128,) * 8, (512,) + (2,) * 7, far_page=2),
        DecodeCase("groups", (128,) * 2, (512, 300), heads=64),
        DecodeCase("many", (128,) * 13, (512, 64) * 6 + (200,)),
    ),
    ids=lambda case: case.name,
)
def test_predictions_count_the_parts_that_programs_leave(case, seed, monkeypatch):
    left = parts_left(make_decode(case, seed=seed), 12, monkeypatch, seed)
    config = decode.config_for(len(case.near), case.heads, torch.device("cpu"))
    assert decode_parts.parts(case, config, 12) == sum(left)


def test_predictions_are_of_the_launch_shape_that_the_card_gets(monkeypatch):
    monkeypatch.setattr(decode, "sm_count", lambda _: decode_parts.SMS)
    for rows, heads in ((1, 64), (94, 32), (95, 32), (64, 64), (2_048, 16)):
        case = DecodeCase("shape", (1,) * rows, heads=heads)
        chosen = decode.config_for(rows, heads, torch.device("cpu"))
        assert decode_parts.config_on_the_card(case) == chosen


def test_the_width_changes_nothing(seed):
    narrow = make_decode(LONG, seed=seed)
    wide = narrow._replace(
        extra_indices=torch.full((3, 1, 8_256), 2**31 - 1, dtype=torch.int32)
    )
    wide.extra_indices[..., :512] = narrow.extra_indices
    for got, want in zip(run(wide), run(narrow)):
        assert_bitwise_equal(got, want)


def test_a_workspace_is_good_for_call_after_call(seed):
    workspace = decode_workspace(16, "cpu")
    for number, near in enumerate(((128,), (5, 0, 128), (100,) * 6)):
        inputs = make_decode(DecodeCase("again", near, None), seed=seed + number)
        assert_attention(inputs, run(inputs, workspace=workspace))


@pytest.mark.parametrize("rows,own", ((2, 16), (3, 32)))
def test_a_heads_bits_are_the_same_with_other_heads(rows, own, seed, monkeypatch):
    """All heads, 32 to a program, and each half of them, 16 or 32 to a program; none shared out."""
    monkeypatch.setattr(decode, "has_large_sms", lambda _: True)
    case = DecodeCase("heads", (128, 70, 9)[:rows], (150, 3, 200)[:rows], heads=64)
    inputs = make_decode(case, seed=seed)
    configs = [decode.config_for(rows, n, inputs.q.device) for n in (64, 32)]
    assert [config.heads for config in configs] == [32, own]
    assert {config.tile for config in configs} == {64 if rows == 2 else 128}
    whole = run(inputs, num_splits=1)
    for half in (slice(0, 32), slice(32, 64)):
        part = inputs._replace(q=inputs.q[:, :, half], attn_sink=inputs.attn_sink[half])
        for got, want in zip(run(part, num_splits=1), whole):
            assert_bitwise_equal(
                got, want.reshape(rows, 64, -1)[:, half].reshape(got.shape)
            )


@pytest.mark.parametrize("heads", (16, 40))
def test_a_nan_in_q_stays_in_its_row_and_head(heads, seed):
    case = DecodeCase("nan", (60, 128), (40, 3), heads=heads, sink=False)
    inputs = make_decode(case, seed=seed)
    want = run(inputs)
    for dim in (5, 500):
        bad = inputs._replace(q=inputs.q.clone())
        bad.q[1, 0, 3, dim] = float("nan")
        for got, clean in zip(run(bad), want):
            got, clean = got.reshape(2, heads, -1), clean.reshape(2, heads, -1)
            assert got[1, 3].isnan().all()
            got[1, 3] = clean[1, 3]
            assert_bitwise_equal(got, clean)


@pytest.mark.parametrize("byte", (0, 447, 575))
def test_a_nan_in_a_key_makes_the_rows_that_attend_to_it_nan(byte, seed):
    case = DecodeCase("nan", (60, 50), None, sink=False)
    inputs = make_decode(case, seed=seed)
    want = run(inputs)
    index = int(inputs.indices[1, 0, 20])
    flat = page_bytes(inputs.k_cache)
    flat[index // 256, index % 256 * 576 + byte] = NAN_BYTE
    flat[index // 256, index % 256 * 576 + 574] = 0xFF
    if byte < 448:
        flat[index // 256, index % 256 * 576 + 574 : index % 256 * 576 + 576] = 0
    for got, clean in zip(run(inputs), want):
        assert got[1].isnan().all()
        assert_bitwise_equal(got[0], clean[0])


def test_infinite_scores_are_nan_and_minus_infinite_ones_no_key(seed):
    inputs = make_decode(DecodeCase("inf", (1, 40), None, sink=False), seed=seed)
    inputs.q[0] = float("-inf")
    index = int(inputs.indices[0, 0, 0])
    at = index % 256 * 576
    page_bytes(inputs.k_cache)[index // 256, at : at + 448] = 0x38
    page_bytes(inputs.k_cache)[index // 256, at + 448 : at + 576 : 2] = 0
    page_bytes(inputs.k_cache)[index // 256, at + 449 : at + 576 : 2] = 0x3F
    out, lse = run(inputs)
    assert (out[0] == 0).all() and lse[0].isneginf().all()
    inputs.q[0] = float("inf")
    out, lse = run(inputs)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert out[1].isfinite().all()


def test_no_rows():
    inputs = make_decode(DecodeCase("none", (), None))
    out, lse = sparse_mla_decode(*inputs)
    assert out.shape == (0, 1, 16, 512) and lse.shape == (0, 16, 1)


def test_a_cpu_tensor_is_refused_by_name():
    with pytest.raises(ValueError, match="q device: expected .*CUDA"):
        sparse_mla_decode(*make_decode(DecodeCase("cpu", (3,), None)))


def _other(**changes):
    return lambda a: a | {name: change(a[name]) for name, change in changes.items()}


BAD = {
    "q shape": _other(q=lambda t: t[0]),
    "q dtype": _other(q=torch.Tensor.half),
    "q strides": _other(
        q=lambda t: torch.empty(2 * 16 * 516)
        .bfloat16()
        .as_strided(t.shape, (16 * 516, 1, 516, 1))
    ),
    "q address": _other(
        q=lambda t: torch.empty(2 * 16 * 512 + 8)
        .bfloat16()[4 : 4 + t.numel()]
        .view(t.shape)
    ),
    "head_dim_v": _other(head_dim_v=lambda _: 256),
    "num_splits": _other(num_splits=lambda _: 0),
    "attn_sink shape": _other(attn_sink=lambda t: t[:8]),
    "attn_sink dtype": _other(attn_sink=torch.Tensor.double),
    "out shape": _other(out=lambda t: t[:, :, :8]),
    "out dtype": _other(out=torch.Tensor.float),
    "out strides": _other(out=lambda t: t.mT.contiguous().mT),
    "lse shape": _other(lse=lambda t: t[..., 0]),
    "lse dtype": _other(lse=torch.Tensor.double),
    "k_cache shape": _other(k_cache=lambda t: t[..., :576]),
    "k_cache page size": _other(k_cache=lambda t: t[:, :48]),
    "k_cache dtype": _other(k_cache=lambda t: t.view(torch.int8)),
    "k_cache strides": _other(
        k_cache=lambda t: t.as_strided(t.shape, (584 * 256 + 8, 584, 584, 1))
    ),
    "k_cache address": _other(
        k_cache=lambda t: t.as_strided((1, *t.shape[1:]), t.stride(), 8)
    ),
    "k_cache device": _other(k_cache=lambda t: t.to("meta")),
    "indices shape": _other(indices=lambda t: t[:1]),
    "indices dtype": _other(indices=torch.Tensor.long),
    "indices strides": _other(indices=lambda t: t[..., ::2]),
    "topk_length shape": _other(topk_length=lambda t: t[:1]),
    "topk_length dtype": _other(topk_length=torch.Tensor.long),
    "extra_k_cache, extra_indices": _other(extra_indices=lambda _: None),
    "extra_k_cache shape": _other(extra_k_cache=lambda t: t[0]),
    "extra_indices shape": _other(extra_indices=lambda t: t[:1]),
    "extra_topk_length dtype": _other(extra_topk_length=torch.Tensor.long),
    "workspace": _other(workspace=lambda _: None),
    "workspace.partials size": _other(
        workspace=lambda w: replace(w, partials=w.partials[:9])
    ),
    "workspace.counters size": _other(
        workspace=lambda w: replace(w, counters=w.counters[:1])
    ),
    "workspace.counters dtype": _other(
        workspace=lambda w: replace(w, counters=w.counters.long())
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named_and_nothing_is_written(what):
    inputs = make_decode(DecodeCase("bad", (5, 3), (4, 4), width=64))
    out, lse = unwritten(inputs)
    good = inputs._asdict() | {
        "out": out,
        "lse": lse,
        "num_splits": None,
        "workspace": decode_workspace(16, "cpu"),
    }
    bad = BAD[what](good)
    positional = [bad.pop(name) for name in inputs._fields]
    with pytest.raises(
        ValueError, match=f"sparse_mla_decode: {what}: expected .*, got "
    ):
        plan(*positional, **bad)
    assert (out == UNWRITTEN).all() and (lse == UNWRITTEN).all()


def test_a_wrong_result_is_caught(seed):
    inputs = make_decode(DecodeCase("guard", (40,), None), seed=seed)
    out, lse = run(inputs)
    out[0, 0, 3, 17] += 0.02 * out[0, 0, 3].abs().max()
    with pytest.raises(AssertionError):
        assert_attention(inputs, (out, lse))


def test_more_programs_than_may_share_a_row_are_never_launched(monkeypatch):
    monkeypatch.setattr(decode, "sm_count", lambda _: 1_000)
    inputs = make_decode(DecodeCase("many", (5,), None))
    assert plan_of(inputs).grid == decode.MAX_PROGRAMS


def test_the_number_of_splits_bounds_the_programs():
    inputs = make_decode(DecodeCase("few", (128,), None))
    assert [plan_of(inputs, num_splits=n).grid for n in (1, 2, 3)] == [1, 2, 3]
