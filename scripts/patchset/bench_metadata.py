"""Benchmark of a step's metadata: time of one step, and what prompts of growing width compile."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from functools import partial
from types import ModuleType
from typing import Callable, Iterator, NamedTuple, Sequence

import torch
import triton

import stock
from kernels import metadata

from . import peers
from .benchcase import Arms, Bench, BenchCase, Prepared

PAGE_SIZE = 256
UPSTREAM = "python/sglang/srt/layers/attention/dsv4/metadata_kernel.py"
# Pages of 256 raw tokens: a configured context of 8K and of 1M, prompts on the way to 8K, and the chunks of 8K tokens
# that a prompt of 1M is read in.
CAPS = {"8K": 33, "1M": 4_097}
GROWING = (range(1, 33), range(32, 4_097, 32))


class Step(NamedTuple):
    """Arguments of the metadata functions, in order."""

    seq_lens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    page_table: torch.Tensor


def _draw(rows: int, text: int, pages: int) -> Step:
    lens = torch.full((rows,), text, dtype=torch.int32, device="cuda")
    slots = torch.arange(rows, dtype=torch.int64, device="cuda") * 7
    table = torch.randint(2**20, (rows, pages), dtype=torch.int32, device="cuda")
    return Step(lens, lens - 1, slots, table)


def _upstream() -> ModuleType:
    """Upstream's module, made anew: nothing is compiled yet."""
    path = stock.tree() / UPSTREAM
    spec = importlib.util.spec_from_file_location("stock_metadata_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ours(step: Step) -> None:
    metadata.compression_metadata(*step, PAGE_SIZE)


def _stock(step: Step) -> Callable:
    return partial(_upstream().init_compression_metadata, *step, PAGE_SIZE)


def _stock_peer() -> Iterator[peers.Peer]:
    yield "stock", _stock


def _gate(step: Step) -> dict:
    """All values as upstream's, and of the table the entries that the lengths reach."""
    ours = metadata.compression_metadata(*step, PAGE_SIZE)
    theirs = _upstream().init_compression_metadata(*step, PAGE_SIZE)
    for name, got, want in zip(ours._fields[:-1], ours, theirs):
        assert torch.equal(got, want), f"{name} differs"
    width = theirs[-1].shape[1]
    columns = torch.arange(width, device=step.seq_lens.device)
    reach = columns < (step.seq_lens[:, None] // 128).clip(1)
    got = torch.where(reach, ours.c128_page_indices[:, :width], 0)
    assert torch.equal(got, torch.where(reach, theirs[-1], 0)), "entries differ"
    return {}


def _arms(name: str, step: Step) -> Arms:
    return {"ours": [partial(_ours, step)]} | peers.arms(_stock_peer(), [step], name)


def _step(name: str, rows: int, text: int, pages: int) -> Prepared:
    step = _draw(rows, text, pages)
    return Prepared(partial(_gate, step), partial(_arms, name, step))


def _growing(name: str, widths: Sequence[int]) -> Prepared:
    steps = [_draw(1, 256 * pages, pages) for pages in widths]
    return Prepared(
        partial(_gate, steps[-1]),
        partial(_arms, name, steps[-1]),
        facts=lambda: {"first_calls": _first_calls(steps)},
    )


def _first_calls(steps: list[Step]) -> dict:
    """Compilations and seconds of one call for each width, from an empty compile cache."""
    upstream = _upstream()
    stock_kernel = upstream._init_compressed_attn_metadata_kernel
    kernels = {
        "ours": (_ours, metadata._compression_metadata_kernel),
        "stock": (
            lambda step: upstream.init_compression_metadata(*step, PAGE_SIZE),
            stock_kernel,
        ),
    }
    seen = {"widths": len(steps)}
    for name, (call, kernel) in kernels.items():
        kernel.device_caches.clear()
        with tempfile.TemporaryDirectory() as empty, triton.knobs.cache.scope():
            triton.knobs.cache.dir = empty
            torch.cuda.synchronize()
            start = time.perf_counter()
            for step in steps:
                call(step)
            torch.cuda.synchronize()
            seen[f"{name}_seconds"] = time.perf_counter() - start
        caches = kernel.device_caches.values()
        seen[f"{name}_compilations"] = sum(len(cache[0]) for cache in caches)
    return seen


def _bench_case(name: str, rows: int, text: int, pages: int) -> BenchCase:
    # Read: lengths, positions, slots, page ids. Written: seven values a row and its entries.
    entries = max(text // 128, 1)
    moved = rows * (16 + 28 + 4 * entries + 2 * entries)
    return BenchCase(name, rows, moved, 0, partial(_step, name, rows, text, pages))


def _growing_case(widths: Sequence[int]) -> BenchCase:
    name, entries = f"growing-{len(widths)}-widths", 2 * widths[-1]
    return BenchCase(name, 1, 44 + 6 * entries, 0, partial(_growing, name, widths))


BENCH = Bench(
    "metadata",
    {
        "metadata-decode": [
            _bench_case(f"decode{rows}-text512-cap{cap}", rows, 512, pages)
            for rows in (1, 64)
            for cap, pages in CAPS.items()
        ],
        "metadata-prefill": [
            _bench_case("prefill8192-text131072", 8_192, 131_072, 512),
            *map(_growing_case, GROWING),
        ],
    },
)
