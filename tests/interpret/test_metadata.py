"""The metadata kernel on the CPU, against upstream's own kernel of the patched tree."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch

import stock
from kernels.metadata import (
    WIDTH_MULTIPLE,
    CompressionMetadata,
    compression_metadata,
    plan,
)
from patchset import bench_metadata

EDGES = (0, 1, 3, 4, 127, 128, 129, 255, 256, 257, 4095, 4096)


def upstream():
    """Upstream's metadata_kernel module: it imports torch and triton only."""
    path = stock.tree() / "python/sglang/srt/layers/attention/dsv4/metadata_kernel.py"
    spec = importlib.util.spec_from_file_location("stock_metadata_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(lens, pages, seed, dtype=torch.int32):
    gen = torch.Generator().manual_seed(seed)
    lens = torch.tensor(lens, dtype=dtype)
    slots = torch.randint(2**30, lens.shape, generator=gen).to(dtype)
    table = torch.randint(2**20, (len(lens), pages), generator=gen, dtype=torch.int32)
    return lens, (lens - 1).clamp_min(0), slots, table


def entries(lens):
    """Entries of a row that an attention kernel reads: one at least."""
    return [max(n // 128, 1) for n in lens]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("pages", [16, 17, 600])
def test_equals_upstream_where_the_lengths_reach(pages, dtype, seed):
    draws = random.Random(seed)
    lens = [n for n in EDGES if n <= pages * 256]
    lens += [draws.randrange(pages * 256 + 1) for _ in range(5)]
    inputs = draw(lens, pages, seed, dtype)
    ours = compression_metadata(*inputs, 256)
    theirs = upstream().init_compression_metadata(*inputs, 256)
    for name, got, want in zip(ours._fields[:-1], ours, theirs):
        assert torch.equal(got, want), name
    for row, n in enumerate(entries(lens)):
        got, want = ours.c128_page_indices[row, :n], theirs[-1][row, :n]
        assert torch.equal(got, want), row


def test_writes_what_the_lengths_need_and_nothing_else(seed):
    lens = [0, 127, 128, 700, 4096]
    launch, result = plan(*draw(lens, 16, seed), 256)
    result.c128_page_indices.fill_(-7)
    launch.run()
    assert result.c128_page_indices.shape[1] % WIDTH_MULTIPLE == 0
    for row, n in enumerate(entries(lens)):
        assert (result.c128_page_indices[row, :n] != -7).all()
        assert (result.c128_page_indices[row, n:] == -7).all()
    assert result.c128_page_indices[:2, 0].tolist() == [-1, -1]


def test_pages_past_a_length_are_not_read(seed):
    lens = [130, 1]
    inputs = draw(lens, 16, seed)
    want = compression_metadata(*inputs, 256).c128_page_indices[0, :1].clone()
    inputs[3][0, 1:] = 2**31 - 1
    inputs[3][1] = -1
    assert torch.equal(
        compression_metadata(*inputs, 256).c128_page_indices[0, :1], want
    )


def test_a_length_past_the_table_is_cut_at_the_table(seed):
    lens, positions, slots, table = draw([100_000], 3, seed)
    launch, result = plan(lens, positions, slots, table, 256)
    result.c128_page_indices.fill_(-7)
    launch.run()
    want = table[0].repeat_interleave(2) * 2 + torch.tensor([0, 1] * 3)
    assert torch.equal(result.c128_page_indices[0, :6], want.int())
    assert (result.c128_page_indices[0, 6:] == -7).all()


def test_a_sliced_table_and_no_rows(seed):
    lens, positions, slots, table = draw([700, 128], 32, seed)
    wide = torch.full((2, 40), -1, dtype=torch.int32)
    wide[:, 3:35] = table
    ours = compression_metadata(lens, positions, slots, wide[:, 3:35], 256)
    same = compression_metadata(lens, positions, slots, table, 256)
    assert torch.equal(ours.c128_page_indices[0, :5], same.c128_page_indices[0, :5])
    none = compression_metadata(lens[:0], positions[:0], slots[:0], table[:0], 256)
    assert none.c4_lens.shape == (0,) and none.c128_page_indices.shape == (0, 64)


BAD = {
    "page_size": lambda a: a | {"page_size": 100},
    "seq_lens shape": lambda a: a | {"seq_lens": a["seq_lens"][:, None]},
    "positions shape": lambda a: a | {"positions": a["positions"][:1]},
    "raw_out_loc dtype": lambda a: a | {"raw_out_loc": a["raw_out_loc"].float()},
    "positions strides": lambda a: a | {"positions": a["positions"].repeat(2)[::2]},
    "page_table shape": lambda a: a | {"page_table": a["page_table"][:1]},
    "page_table dtype": lambda a: a | {"page_table": a["page_table"].long()},
    "page_table strides": lambda a: a
    | {"page_table": a["page_table"].T.contiguous().T},
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what):
    names = ("seq_lens", "positions", "raw_out_loc", "page_table")
    good = dict(zip(names, draw([130, 3], 4, 0)), page_size=256)
    match = f"compression_metadata: {what}: expected .*, got "
    with pytest.raises(ValueError, match=match):
        compression_metadata(**BAD[what](good))


@pytest.fixture
def gate(monkeypatch, seed):
    """Call the benchmark's gate where 1 is added to one of our values, in the last row."""
    step = bench_metadata.Step(*draw([0, 4096, 700], 16, seed))

    def call(name, column=0):
        def changed(*args):
            result = compression_metadata(*args)
            getattr(result, name)[-1].view(-1)[column].add_(1)
            return result

        monkeypatch.setattr(bench_metadata.metadata, "compression_metadata", changed)
        return bench_metadata._gate(step)

    return call


@pytest.mark.parametrize("name", CompressionMetadata._fields)
def test_the_benchmarks_gate_refuses_one_wrong_value(gate, name):
    with pytest.raises(AssertionError, match="differ"):
        gate(name)


def test_the_benchmarks_gate_compares_the_entries_that_a_length_reaches(gate):
    entry = "c128_page_indices"
    assert gate(entry, 700 // 128) == {}
    with pytest.raises(AssertionError, match="entries differ"):
        gate(entry, 700 // 128 - 1)
