"""The benchmark's own gates on the CPU: a right result passes, a wrong one is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cases import IndexerCase, make_indexer
from kernels.indexer_ref import paged_mqa_logits_ref
from kernels.topk import topk_workspace
from patchset import bench_indexer, bench_topk
from topk_cases import TopkCase, exact_topk, make_topk

# Weights of one sign: no terms cancel, so a relative error is the error that the gate bounds.
LOGITS = IndexerCase(
    bench_indexer.WITH_TWO_WARPS[0], (130, 3, 64, 200), 256, weights="negative"
)


def logits(change=lambda out: None):
    """The reference in the place of a kernel, its result then changed."""

    def kernel(*args, out, skip_below=0):
        values = paged_mqa_logits_ref(*args).values
        out.copy_(torch.where(values.isneginf(), out, values))
        change(out)

    return kernel


def nothing(*_, **__):
    """Of a call before it, a right result is left."""


@pytest.fixture
def logits_gate(monkeypatch):
    """Call the gate with one of the two kernels, or both, replaced; the buffer holds a right result."""
    inputs = make_indexer(LOGITS)
    logits()(*inputs.args, out=inputs.out)

    def gate(ours=logits(), two_warps=logits()):
        launch = lambda one: SimpleNamespace(  # noqa: E731
            run=lambda: two_warps(*one.args, out=one.out)
        )
        monkeypatch.setattr(bench_indexer.indexer, "paged_mqa_logits", ours)
        monkeypatch.setattr(bench_indexer, "two_warps", launch)
        return bench_indexer._gate(LOGITS, inputs)

    return gate


WRONG_LOGITS = {
    "nothing written": nothing,
    "one left out": logits(lambda out: out[2, 63].fill_(float("nan"))),
    "another sign": logits(lambda out: out[0, 5].neg_()),
    "two thousandths off": logits(lambda out: out[-1, 0].mul_(1.002)),
    "past a length": logits(lambda out: out[1, 3].fill_(0)),
}


def test_logits_within_the_tolerance_pass(logits_gate):
    nearly = logits(lambda out: out[-1, 0].mul_(1.0005))
    found = logits_gate(ours=nearly)
    assert found["error"] == pytest.approx(5e-4, rel=0.01)
    assert found["error of two warps"] < 1e-6


@pytest.mark.parametrize("kernel", ["ours", "two_warps"])
@pytest.mark.parametrize("wrong", WRONG_LOGITS)
def test_wrong_logits_are_refused(logits_gate, kernel, wrong):
    with pytest.raises(AssertionError):
        logits_gate(**{kernel: WRONG_LOGITS[wrong]})


def selection(change=lambda out, workspace: None):
    """The reference in the place of our top-k, its result and its workspace then changed."""

    def kernel(scores, seq_lens, page_table, out, page_size, raw, *, workspace):
        exact_topk(scores, seq_lens, page_table, out, page_size, raw)
        change(out, workspace)

    return kernel


@pytest.fixture(params=[512, 1_024])
def topk_gate(request, monkeypatch):
    """Call the gate with our top-k replaced; the result's buffer holds a right one."""
    k = request.param
    inputs = make_topk(TopkCase("gate", (1_500, 900), 1_536, raw=False, k=k))
    workspace = topk_workspace(*inputs.scores.shape, k, "cpu")
    exact_topk(*inputs)

    def gate(kernel):
        monkeypatch.setattr(bench_topk.topk, "topk_page_indices", kernel)
        return bench_topk._gate(inputs, workspace)

    return gate


WRONG_SELECTIONS = {
    "nothing written": nothing,
    "another key": selection(lambda out, _: out[0, -1].add_(1)),
    "a key twice": selection(lambda out, _: out[-1, 0].copy_(out[-1, 1])),
    "another order": selection(lambda out, _: out[0, :2].copy_(out[0, :2].flip(0))),
    "a workspace in use": selection(
        lambda _, workspace: workspace.arrived[-1].fill_(1)
    ),
}


def test_a_right_selection_passes(topk_gate):
    assert topk_gate(selection()) == {"checked_rows": 2}


@pytest.mark.parametrize("wrong", WRONG_SELECTIONS)
def test_a_wrong_selection_is_refused(topk_gate, wrong):
    with pytest.raises(AssertionError):
        topk_gate(WRONG_SELECTIONS[wrong])
