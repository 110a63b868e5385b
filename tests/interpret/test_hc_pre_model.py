"""Patch 0090 in the NextN layer and in pipeline stages, against the release's own model files."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import stock
from hc_pre_cases import TOLERANCE
from hc_pre_model import DIM, HC, VOCABULARY, Stage, imported
from kernels.hc_pre_ref import hc_pre_linear_ref
from numeric import assert_bitwise_equal, assert_close

FLAG = "SGLANG_SM120_HC_PRE"
ONE_LAYER = 2 * ["linear split", "sum"]
STAGES = LAYERS = 3
# Of the largest value of a row: a mix that rounds otherwise moves some values of the state by an ulp of bf16, and
# a layer takes these further.
STATE = 2**-5


def tokens(rows, seed):
    """Ids, and the state [rows, HC * DIM] that a target leaves for its draft."""
    gen = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (rows,), generator=gen)
    return ids, (torch.randn(rows, HC * DIM, generator=gen) * 3).bfloat16()


def run_draft(tree, rows, seed, **environment):
    """What the NextN model gives, and the state, mixes and launches of its hc_pre."""
    ids, state = tokens(rows, seed)
    batch = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=state))
    with imported(tree, **environment) as model:
        draft = model.draft(seed)
        fns = [draft.decoder.hc_attn_fn.data, draft.decoder.hc_ffn_fn.data]
        states = []
        hc_pre = draft.decoder.hc_pre
        draft.decoder.hc_pre = lambda x, *rest, **named: (
            states.append(x) or hc_pre(x, *rest, **named)
        )
        outputs = draft(ids, torch.arange(rows), batch)
        return SimpleNamespace(
            outputs=outputs,
            states=states,
            fns=fns,
            mixes=model.mixes,
            launches=model.launches,
        )


def run_stages(tree, rows, seed, size=STAGES, **environment):
    """The outputs of each stage, where a state is handed on from one to the next, and all launches."""
    ids, _ = tokens(rows, seed)
    positions, batch = torch.arange(rows), SimpleNamespace()
    with imported(tree, **environment) as model:
        outputs, received = [], None
        for rank in range(size):
            stage = model.stage(Stage(rank, size), seed, LAYERS)
            given = stage(ids, positions, batch, None, pp_proxy_tensors=received)
            if rank < size - 1:
                assert list(given.tensors) == ["hidden_states"]
                given = (given["hidden_states"],)
                received = model.proxy(*given)
            outputs.append(given)
        return outputs, model.launches


def assert_near(got, want):
    """The same but for bf16 that rounded otherwise."""
    assert got.shape == want.shape and got.dtype == want.dtype == torch.bfloat16
    largest = want.double().abs().amax(-1, keepdim=True)
    assert_close(got, want.double(), largest, STATE)


@pytest.mark.parametrize("rows", (1, 19))
@pytest.mark.parametrize("flag", ("auto", "on"))
def test_the_nextn_layers_hc_pre_is_ours(release, flag, rows, seed):
    ours = run_draft(stock.tree(), rows, seed, **{FLAG: flag})
    theirs = run_draft(release, rows, seed)
    assert ours.launches == ONE_LAYER and not theirs.launches
    for x, fn, mixes in zip(ours.states, ours.fns, ours.mixes, strict=True):
        assert x.shape == (rows, HC, DIM) and x.dtype == torch.bfloat16
        exact = hc_pre_linear_ref(x.flatten(1), fn, 1e-6)
        assert_close(
            mixes.squeeze(1), exact.values, exact.magnitudes, TOLERANCE["split"]
        )
    # The first mixes are of the same state.
    assert_bitwise_equal(ours.states[0], theirs.states[0])
    exact = hc_pre_linear_ref(ours.states[0].flatten(1), ours.fns[0], 1e-6)
    first = [run.mixes[0].squeeze(1) for run in (ours, theirs)]
    assert_close(first[0], first[1].double(), exact.magnitudes, TOLERANCE["split"])
    for got, want in zip(ours.outputs, theirs.outputs, strict=True):
        assert_near(got, want)


def test_nextn_off_is_the_release_bit_for_bit(release, seed):
    ours = run_draft(stock.tree(), 19, seed, **{FLAG: "off"})
    theirs = run_draft(release, 19, seed)
    assert not ours.launches
    for got, want in zip(
        (*ours.outputs, *ours.mixes), (*theirs.outputs, *theirs.mixes), strict=True
    ):
        assert_bitwise_equal(got, want)


def test_a_nextn_layer_without_tokens_launches_nothing(seed):
    ours = run_draft(stock.tree(), 0, seed)
    assert [one.shape for one in ours.outputs] == [(0, DIM), (0, HC * DIM)]
    assert not ours.launches


def test_stages_hand_on_what_one_process_keeps(seed):
    """A stage that receives its state, and hands it on, gives the bits of a model that isn't divided."""
    outputs, launches = run_stages(stock.tree(), 19, seed)
    (whole,), at_once = run_stages(stock.tree(), 19, seed, size=1)
    assert launches == at_once == LAYERS * ONE_LAYER
    for (state,) in outputs[:-1]:
        assert state.shape == (19, HC * DIM) and state.dtype == torch.bfloat16
    for got, want in zip(outputs[-1], whole, strict=True):
        assert_bitwise_equal(got, want)


def test_each_stage_is_near_the_release(release, seed):
    ours, _ = run_stages(stock.tree(), 19, seed)
    theirs, launches = run_stages(release, 19, seed)
    assert not launches
    for stage, other in zip(ours, theirs, strict=True):
        for got, want in zip(stage, other, strict=True):
            assert_near(got, want)


def test_stages_off_are_the_release_bit_for_bit(release, seed):
    ours, launches = run_stages(stock.tree(), 19, seed, **{FLAG: "off"})
    theirs, _ = run_stages(release, 19, seed)
    assert not launches
    for stage, other in zip(ours, theirs, strict=True):
        for got, want in zip(stage, other, strict=True):
            assert_bitwise_equal(got, want)
