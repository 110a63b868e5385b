"""Patch 0095: the torch indexer's products with the flag on and off."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import stock
from cases import IndexerCase, make_indexer
from numeric import assert_bitwise_equal
from stock import call_stock, functions_of, indexer_functions

FUNCTION = "fp8_paged_mqa_logits_torch_sm120"


@pytest.fixture
def inputs(seed):
    return make_indexer(IndexerCase("bf16", (100, 64, 3), 128, tail="valid"), seed=seed)


def run(inputs, flag):
    """The scores, and the types that were multiplied."""
    (function,) = indexer_functions(FUNCTION, torch_indexer_bf16=flag)
    seen = []
    real = torch.bmm

    # The CPU's bmm has no out_dtype.
    def bmm(a, b, **options):
        seen.append((a.dtype, b.dtype, options))
        return real(a.float(), b.float())

    with mock.patch("torch.bmm", bmm):
        return call_stock(function, inputs), seen


def test_off_multiplies_float32(inputs):
    _, seen = run(inputs, "off")
    assert seen == [(torch.float32, torch.float32, {})]


@pytest.mark.parametrize(
    "case",
    [
        IndexerCase("bf16", (100, 64, 3), 128, tail="valid"),
        IndexerCase("one-row", (257,), 320, tail="valid"),
        IndexerCase("around-a-page", (0, 1, 63, 64, 65), 128, tail="valid"),
    ],
    ids=lambda case: case.name,
)
def test_off_gives_the_bits_of_the_release(release, case, seed):
    inputs = make_indexer(case, seed=seed)
    (ours,) = indexer_functions(FUNCTION, torch_indexer_bf16="off")
    (theirs,) = functions_of(release / stock.INDEXER, FUNCTION)
    assert_bitwise_equal(call_stock(ours, inputs), call_stock(theirs, inputs))


def test_on_multiplies_bf16_into_float32_and_loses_nothing(inputs):
    scores, seen = run(inputs, "on")
    assert seen == [(torch.bfloat16, torch.bfloat16, {"out_dtype": torch.float32})]
    assert_bitwise_equal(scores, run(inputs, "off")[0])
