"""The top-k on the CPU: the kernel's own source under ``cuda_on_cpu``, against a stable sort."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import cuda_on_cpu
from kernels import topk
from kernels.topk import plan, topk_page_indices, topk_workspace
from kernels.topk_ref import topk_page_indices_ref
from numeric import assert_bitwise_equal
from topk_cases import (
    DISTRIBUTIONS,
    TOPK_EDGES,
    UNWRITTEN,
    WITHOUT_NAN,
    TopkCase,
    edge_lengths,
    few_scores,
    make_topk,
)

GARBAGE = -77


def run(inputs, workspace=None, order=None, shuffle=None):
    """The launch that serving would run, on the CPU, with reads checked; returns both outputs."""
    k = inputs.out_page_indices.shape[1]
    if workspace is None:
        workspace = topk_workspace(*inputs.scores.shape, k, "cpu")
        workspace.maxima.fill_(GARBAGE)
    launch = plan(*inputs, workspace=workspace)
    if shuffle:
        order = list(range(launch.grid))
        shuffle(order)
    readable = [*inputs.readable(), workspace.maxima]
    cuda_on_cpu.run(
        launch, order=order, readable=readable, seed=random.randrange(2**32)
    )
    assert not workspace.arrived.any(), "the workspace was not left zero"
    return inputs.out_page_indices, inputs.out_raw_indices


def assert_exact(inputs):
    k = inputs.out_page_indices.shape[1]
    want = topk_page_indices_ref(*inputs[:3], k, inputs.page_size)
    if inputs.out_raw_indices is not None:
        assert_bitwise_equal(inputs.out_raw_indices, want.raw_indices)
    assert_bitwise_equal(inputs.out_page_indices, want.page_indices)


@pytest.fixture
def small_tile(monkeypatch):
    """The same source with tiles of 8,192 keys: long rows of few keys, two levels of maxima."""
    configs = {k: replace(config, log_tile=13) for k, config in topk.CONFIGS.items()}
    monkeypatch.setattr(topk, "CONFIGS", configs)
    return 8_192


@pytest.mark.parametrize("case", TOPK_EDGES, ids=lambda case: case.name)
def test_edges(case, seed):
    inputs = make_topk(case, seed=seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("k", sorted(topk.CONFIGS))
@pytest.mark.parametrize("scores", WITHOUT_NAN)
def test_distributions(scores, k, seed):
    lens = (k + 1, 5_000, 16_384, 16_385, 70_001)
    inputs = make_topk(TopkCase("d", lens, 70_016, scores, k), seed=seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("width", (2_048, 16_448))
@pytest.mark.parametrize("k", sorted(topk.CONFIGS))
@pytest.mark.parametrize("scores", WITHOUT_NAN)
def test_distributions_of_few_scores_without_a_long_row(scores, k, width, seed):
    inputs = make_topk(few_scores(k, width, scores), seed=seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("scores", WITHOUT_NAN)
def test_distributions_with_maxima_of_maxima(scores, small_tile, seed):
    lens = (140_000, small_tile + 1, 16 * small_tile + 1)
    inputs = make_topk(TopkCase("d", lens, 140_032, scores), seed=seed)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("number", range(16))
def test_random_cases(number, small_tile, seed):
    draw = random.Random(seed + number)
    k = draw.choice(sorted(topk.CONFIGS))
    width = draw.choice((k + 100, 4_096, 9_000, 20_000, 140_000))
    choices = (*edge_lengths(k), small_tile, small_tile + 1, 8_192, width)
    lens = tuple(
        draw.choice((draw.randrange(-1, width + 50), draw.choice(choices)))
        for _ in range(draw.randrange(1, 12))
    )
    case = TopkCase(
        "random",
        lens,
        width,
        draw.choice(WITHOUT_NAN),
        k,
        page_size=draw.choice((1, 64, 256)),
        lens_2d=draw.random() < 0.5,
        sliced_table=draw.random() < 0.5,
        row_padding=draw.choice((0, 1, 4)),
        offset=draw.choice((0, 2, 4)),
        raw=draw.random() < 0.7,
    )
    inputs = make_topk(case, seed=seed + number)
    run(inputs, shuffle=draw.shuffle)
    assert_exact(inputs)


@pytest.mark.parametrize("length", (600, 5_000, 16_400, 70_000))
def test_nan_gives_distinct_positions_of_the_row(length, seed):
    inputs = make_topk(TopkCase("nan", (length, 3), 70_016, "nan"), seed=seed)
    _, raw = run(inputs)
    chosen = raw[0].tolist()
    assert chosen == sorted(set(chosen))
    assert chosen[0] >= 0 and chosen[-1] < length
    assert raw[1].tolist() == [0, 1, 2] + [-1] * 509


@pytest.mark.parametrize("sign", (1, -1))
def test_all_nan(sign, seed):
    inputs = make_topk(TopkCase("nan", (600, 20_000), 20_032), seed=seed)
    inputs.scores.copy_(sign * torch.tensor(float("nan")))
    _, raw = run(inputs)
    assert raw.tolist() == [list(range(512))] * 2


@pytest.mark.parametrize("count", (3, 7, 50, 200, 600))
def test_so_many_distinct_values(count, seed):
    lens = (600, 2_047, 8_192, 16_384, 70_000)
    inputs = make_topk(TopkCase("values", lens, 70_016), seed=seed)
    inputs.scores.copy_((inputs.scores * 1e4).nan_to_num().long() % count)
    run(inputs)
    assert_exact(inputs)


@pytest.mark.parametrize("outliers", (1, 2, 20, 400, 511, 512, 600))
@pytest.mark.parametrize("width", (0.0, 1e-5, 1e-3, 1.0, 30.0))
def test_outliers_above_scores_of_some_width(width, outliers, seed):
    lens = (1_000, 5_000, 16_384, 40_000)
    inputs = make_topk(TopkCase("outliers", lens, 40_000), seed=seed)
    inputs.scores.mul_(width).sub_(100.0)
    for row, length in enumerate(lens):
        far = torch.linspace(1.0, 3e38, outliers)
        inputs.scores[row, : length : max(1, length // outliers)][:outliers] = far
    run(inputs)
    assert_exact(inputs)


def test_both_zeros_are_one_value(seed):
    inputs = make_topk(TopkCase("zeros", (700, 20_000), 20_032), seed=seed)
    inputs.scores.fill_(-0.0)
    inputs.scores[:, 1::2] = 0.0
    _, raw = run(inputs)
    assert raw.tolist() == [list(range(512))] * 2


def test_ties_go_to_the_lowest_positions(seed):
    inputs = make_topk(TopkCase("ties", (700, 20_000), 20_032), seed=seed)
    inputs.scores.fill_(1.0)
    inputs.scores[:, 600:650] = 2.0
    _, raw = run(inputs)
    assert raw.tolist() == [[*range(462), *range(600, 650)]] * 2


def test_whichever_block_is_last_the_result_is_the_same(small_tile, seed):
    lens = (20_000, 3, 9_000, 8_193, 20_000, 600)
    case = TopkCase("order", lens, 20_032, "few-values")
    want = None
    programs = range(8)
    for order in (programs, programs[::-1], (1, 7, 3, 0, 6, 2, 5, 4)):
        inputs = make_topk(case, seed=seed)
        run(inputs, order=order)
        want = want or inputs
        assert_bitwise_equal(inputs.out_page_indices, want.out_page_indices)
        assert_bitwise_equal(inputs.out_raw_indices, want.out_raw_indices)
    assert_exact(inputs)


def test_each_program_has_its_share_of_a_row_and_no_more(seed):
    """Nine units and four programs, each run by itself: its share is what it leaves maxima of."""
    inputs = make_topk(TopkCase("shares", (17_000,), 17_024), seed=seed)
    groups = -(-17_000 // 32)
    written = []
    for program in range(4):
        workspace = topk_workspace(*inputs.scores.shape, 512, "cpu")
        workspace.maxima.fill_(GARBAGE)
        # Whatever is done again, the row is not complete: no selection follows.
        workspace.arrived.fill_(-1_000)
        launch = plan(*inputs, workspace=workspace)
        cuda_on_cpu.run_blocks(launch, [program] * launch.grid)
        written.append(workspace.maxima[:groups] != GARBAGE)
    assert launch.grid == 4
    assert torch.stack(written).sum(0).tolist() == [1] * groups
    assert [int(one.sum()) for one in written] == [192, 192, groups - 384, 0]


def test_a_workspace_is_good_for_call_after_call(small_tile, seed):
    workspace = topk_workspace(8, 140_032, 512, "cpu")
    for number, lens in enumerate(
        ((20_000,) * 3, (9_000,) * 8, (5, 6_000), (140_000,))
    ):
        inputs = make_topk(TopkCase("again", lens, max(lens) + 32), seed=seed + number)
        run(inputs, workspace)
        assert_exact(inputs)


def test_rows_in_blocks_are_selected_as_all_at_once(seed):
    """What 0040 does with a long prompt: the same positions in the same order."""
    lens = (70_000, 600, 16_400, 5_000, 512, 30_000, 0)
    case = TopkCase("blocks", lens, 70_016, "two-values")
    inputs = make_topk(case, seed=seed)
    pages, raw = (out.clone() for out in run(inputs))
    for block in (slice(0, 2), slice(2, 5), slice(5, 7)):
        part = inputs._replace(
            scores=inputs.scores[block],
            seq_lens=inputs.seq_lens[block],
            page_table=inputs.page_table[block],
            out_page_indices=torch.full_like(pages[block], GARBAGE),
            out_raw_indices=torch.full_like(raw[block], GARBAGE),
        )
        got = run(part)
        assert_bitwise_equal(got[0], pages[block])
        assert_bitwise_equal(got[1], raw[block])


def test_outputs_that_start_anywhere(seed):
    lens = (5, 512, 300, 700, 0) * 60
    inputs = make_topk(TopkCase("anywhere", lens, 704), seed=seed)
    outputs = torch.full((2, len(lens) * 512 + 1), UNWRITTEN, dtype=torch.int32)
    views = [one[1:].view(len(lens), 512) for one in outputs]
    moved = inputs._replace(out_page_indices=views[0], out_raw_indices=views[1])
    run(moved)
    assert_exact(moved)


def test_the_width_changes_nothing(seed):
    want = make_topk(TopkCase("w", (17_000, 600), 17_024), seed=seed)
    run(want)
    wide = make_topk(TopkCase("w", (17_000, 600), 262_208), seed=seed)
    wide.scores[:, :17_024] = want.scores
    wide.page_table[:, : want.page_table.shape[1]] = want.page_table
    run(wide)
    assert_bitwise_equal(wide.out_page_indices, want.out_page_indices)


def test_a_read_past_a_length_is_caught(seed):
    """The gate behind every test above: the same launch with one key more than may be read."""
    inputs = make_topk(TopkCase("guard", (600,), 640), seed=seed)
    allowed = inputs.readable()
    inputs.seq_lens.add_(1)
    launch = plan(*inputs, workspace=topk_workspace(1, 640, 512, "cpu"))
    with pytest.raises(AssertionError, match="reads outside"):
        cuda_on_cpu.run(launch, readable=allowed)


def test_a_wrong_tie_is_caught(seed):
    inputs = make_topk(TopkCase("guard", (700,), 704, "equal"), seed=seed)
    _, raw = run(inputs)
    raw[0, 511] = 512
    with pytest.raises(AssertionError):
        assert_exact(inputs)


def test_no_rows():
    inputs = make_topk(TopkCase("none", (), 640))
    assert topk_page_indices(*inputs) is None


BAD = {
    "scores shape": lambda a: a | {"scores": a["scores"][0]},
    "scores dtype": lambda a: a | {"scores": a["scores"].half()},
    "scores strides": lambda a: a | {"scores": a["scores"].T.contiguous().T},
    "seq_lens shape": lambda a: a | {"seq_lens": a["seq_lens"][:1]},
    "seq_lens dtype": lambda a: a | {"seq_lens": a["seq_lens"].long()},
    "seq_lens device": lambda a: a | {"seq_lens": a["seq_lens"].to("meta")},
    "page_size": lambda a: a | {"page_size": 48},
    "page_table shape": lambda a: a | {"page_table": a["page_table"][:, :5]},
    "page_table dtype": lambda a: a | {"page_table": a["page_table"].long()},
    "page_table strides": lambda a: a
    | {"page_table": a["page_table"].T.contiguous().T},
    "out_page_indices shape": lambda a: a
    | {"out_page_indices": a["out_page_indices"][:, :256]},
    "out_page_indices dtype": lambda a: a
    | {"out_page_indices": a["out_page_indices"].long()},
    "out_page_indices strides": lambda a: a
    | {"out_page_indices": a["out_page_indices"].T.contiguous().T},
    "out_raw_indices shape": lambda a: a
    | {"out_raw_indices": a["out_raw_indices"][:, :256]},
    "out_raw_indices dtype": lambda a: a
    | {"out_raw_indices": a["out_raw_indices"].long()},
    "workspace.arrived size": lambda a: a
    | {"workspace": topk_workspace(1, 20_032, 512, "cpu")},
    "workspace.maxima size": lambda a: a
    | {"workspace": topk_workspace(2, 16_384, 512, "cpu")},
    "workspace.maxima device": lambda a: a
    | {
        "workspace": replace(
            topk_workspace(2, 20_032, 512, "cpu"),
            maxima=torch.empty(10_000, dtype=torch.int32, device="meta"),
        )
    },
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named_and_nothing_is_written(what):
    inputs = make_topk(TopkCase("bad", (20_000, 3), 20_032))
    good = inputs._asdict() | {"workspace": topk_workspace(2, 20_032, 512, "cpu")}
    bad = BAD[what](good)
    positional = [bad.pop(name) for name in inputs._fields]
    with pytest.raises(
        ValueError, match=f"topk_page_indices: {what}: expected .*, got "
    ):
        topk_page_indices(*positional, **bad)
    assert (inputs.out_page_indices == UNWRITTEN).all()


@pytest.mark.parametrize("k,limit", [(512, 2**24), (1024, 2**22)])
def test_a_row_too_wide_for_two_levels_of_maxima_is_refused(k, limit):
    inputs = make_topk(TopkCase("wide", (3,), 64, k=k))
    for width, fits in ((limit, True), (limit + 1, False)):
        changed = inputs._replace(
            scores=torch.empty(1, width),
            page_table=torch.empty(1, 17, dtype=torch.int32),
            page_size=2**20,
        )
        workspace = topk_workspace(1, 64, k, "cpu")
        what = "workspace.maxima size" if fits else "scores shape"
        with pytest.raises(ValueError, match=what):
            plan(*changed, workspace=workspace)


def test_a_cpu_tensor_is_refused_by_name():
    inputs = make_topk(TopkCase("cpu", (3,), 64))
    with pytest.raises(ValueError, match="scores device: expected .*CUDA"):
        topk_page_indices(*inputs)


def test_every_distribution_is_used():
    assert set(WITHOUT_NAN) | {"nan"} == set(DISTRIBUTIONS)
