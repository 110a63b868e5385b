"""Upstream's attention on the index table of our metadata kernel, which fills no more than the lengths need.

With SGLANG_SM120_DECODE=off and SGLANG_SM120_METADATA on, upstream's own Triton kernel reads the whole
width of that table. It must not use what stands past the lengths.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import stock
from kernels.metadata import plan

LENS = (1, 127, 128, 300, 4_096)
CAP_PAGES, PAGES, HEADS, DIM = 18, 20, 2, 512
PAGE_BYTES = 1_728


@pytest.fixture
def attention():
    """Upstream's launch of its kernel on one cache, without the autotuner, which needs a GPU."""
    module = stock.attention_module("flash_mla_sm120_triton.py")
    kernel = module._tiled_sparse_decode_kernel.fn

    class Untuned:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: kernel[grid](*args, BLOCK_T=16, **kwargs)

    module._tiled_sparse_decode_kernel = Untuned()
    return module._run_triton_sparse_decode


def draw(seed: int) -> SimpleNamespace:
    gen = torch.Generator().manual_seed(seed)
    lens = torch.tensor(LENS, dtype=torch.int32)
    table = torch.stack(
        [torch.randperm(PAGES, generator=gen)[:CAP_PAGES] for _ in LENS]
    )
    # Per page of two tokens: 448 e4m3 and 64 bfloat16 each, then 8 scales each. Keys of like size.
    cache = torch.randint(0, 50, (PAGES, PAGE_BYTES), generator=gen, dtype=torch.uint8)
    for start in (448, 448 + 576):
        rope = torch.randn(PAGES, 64, generator=gen).bfloat16()
        cache[:, start : start + 128] = rope.view(torch.uint8)
    cache[:, 1_152:1_168] = 127
    return SimpleNamespace(
        q=torch.randn(len(LENS), 1, HEADS, DIM, generator=gen).bfloat16(),
        cache=cache[:, : 2 * 584].view(PAGES, 2, 1, 584),
        metadata=(lens, (lens - 1), lens, table.int(), 256),
    )


@pytest.mark.parametrize("garbage", [-7, 2**31 - 1, -(2**31)])
def test_upstreams_kernel_uses_nothing_past_the_lengths(attention, garbage, seed):
    given = draw(seed)
    *_, lens, theirs = stock.attention_module(
        "dsv4/metadata_kernel.py"
    ).init_compression_metadata(*given.metadata)
    launch, ours = plan(*given.metadata)
    ours.c128_page_indices.fill_(garbage)
    launch.run()
    assert (ours.c128_page_indices == garbage).any(1).all()

    def attend(indices, lengths):
        return attention(given.q, given.cache, indices, lengths, DIM**-0.5)

    out, lse = attend(ours.c128_page_indices, ours.c128_lens_clamp1)
    wanted_out, wanted_lse = attend(theirs, lens)
    assert torch.equal(out, wanted_out) and torch.equal(lse, wanted_lse)
    assert wanted_out.isfinite().all()
    # The rows without an entry have no key, the others do.
    assert wanted_lse[:, 0, 0].isinf().tolist() == [True, True, False, False, False]


def test_the_comparison_can_fail(attention, seed):
    """A length too long by one makes what stands there count."""
    given = draw(seed)
    launch, ours = plan(*given.metadata)
    ours.c128_page_indices.fill_(3)
    launch.run()
    lens = ours.c128_lens_clamp1
    right, _ = attention(given.q, given.cache, ours.c128_page_indices, lens, DIM**-0.5)
    wrong, _ = attention(
        given.q, given.cache, ours.c128_page_indices, lens + 1, DIM**-0.5
    )
    assert not torch.equal(right[3], wrong[3])
