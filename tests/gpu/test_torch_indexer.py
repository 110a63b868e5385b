"""Patch 0095 on a real GPU: the torch indexer with bf16 products against float64."""

from __future__ import annotations

import pytest

from cases import IndexerCase, make_indexer
from kernels.indexer_ref import paged_mqa_logits_ref
from numeric import assert_close
from stock import call_stock, indexer_functions


@pytest.mark.parametrize("flag", ("off", "on"))
def test_matches_float64(flag, seed):
    case = IndexerCase("torch", (0, 1, 700, 513, 64), 1_024, tail="valid")
    inputs = make_indexer(case, "cuda", seed)
    (function,) = indexer_functions(
        "fp8_paged_mqa_logits_torch_sm120", torch_indexer_bf16=flag
    )
    reference = paged_mqa_logits_ref(*inputs.args)
    got = call_stock(function, inputs)
    assert_close(got, reference.values, reference.magnitudes, 1e-6)
