"""The metadata kernel on a real GPU: equal to upstream's, one compilation, right on replay."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import stock
from kernels import metadata
from kernels.metadata import compression_metadata, plan

DEVICE = "cuda"


def upstream():
    path = stock.tree() / "python/sglang/srt/layers/attention/dsv4/metadata_kernel.py"
    spec = importlib.util.spec_from_file_location("stock_metadata_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(rows, pages, seed, longest=None):
    gen = torch.Generator(DEVICE).manual_seed(seed)
    most = pages * 256 if longest is None else longest
    lens = torch.randint(1, most + 1, (rows,), generator=gen, device=DEVICE).int()
    slots = torch.randint(2**30, (rows,), generator=gen, device=DEVICE)
    table = torch.randint(
        2**22, (rows, pages), generator=gen, device=DEVICE, dtype=torch.int32
    )
    return lens, lens - 1, slots, table


def compiled(kernel) -> int:
    return sum(len(cache[0]) for cache in kernel.device_caches.values())


@pytest.mark.parametrize("rows,pages", [(1, 4097), (64, 4097), (300, 33), (8192, 512)])
def test_equals_upstream_where_the_lengths_reach(rows, pages, seed):
    inputs = draw(rows, pages, seed)
    ours = compression_metadata(*inputs, 256)
    theirs = upstream().init_compression_metadata(*inputs, 256)
    for name, got, want in zip(ours._fields[:-1], ours, theirs):
        assert torch.equal(got, want), name
    entries = (inputs[0] // 128).clamp_min(1)
    reach = torch.arange(theirs[-1].shape[1], device=DEVICE) < entries[:, None]
    got = ours.c128_page_indices[:, : theirs[-1].shape[1]]
    assert torch.equal(torch.where(reach, got, 0), torch.where(reach, theirs[-1], 0))


def test_one_compilation_where_upstream_needs_one_for_each_width(seed):
    stock_kernel = upstream()
    before = compiled(metadata._compression_metadata_kernel)
    widths = range(1, 33)
    for pages in widths:
        inputs = draw(3, pages, seed)
        compression_metadata(*inputs, 256)
        stock_kernel.init_compression_metadata(*inputs, 256)
    assert compiled(metadata._compression_metadata_kernel) - before <= 1
    theirs = compiled(stock_kernel._init_compressed_attn_metadata_kernel)
    assert theirs >= len(widths) // 2, f"upstream compiled {theirs}: is it fixed?"


def test_replay_with_other_lengths(seed):
    lens, positions, slots, table = draw(4, 600, seed)
    compression_metadata(lens, positions, slots, table, 256)
    launch, result = plan(lens, positions, slots, table, 256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.run()
    for length in (1, 127, 128, 600 * 256, 300, 0):
        lens.fill_(length)
        result.c128_page_indices.fill_(-7)
        graph.replay()
        entries = max(length // 128, 1)
        want = table.repeat_interleave(2, 1)[:, :entries] * 2
        want[:, 1::2] += 1
        if length < 128:
            want.fill_(-1)
        assert torch.equal(result.c128_page_indices[:, :entries], want.int())
        assert (result.c128_page_indices[:, entries:] == -7).all()
