"""Named inputs that tests and benchmarks share. A case says what is special; ``make`` draws the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch

PAGE, DIM, TOKEN_BYTES = 64, 128, 132
PAGE_BYTES = PAGE * TOKEN_BYTES
E4M3_NAN = 0x7F


@dataclass(frozen=True)
class IndexerCase:
    """One call of the indexer logits.

    ``lens``: keys per row (compressed tokens: raw context / 4). ``cap``: configured width in keys.
    ``pool``: pages of the cache; None gives each row its own, else rows share that many.
    ``page_padding``: bytes between pages. ``out_padding``: extra columns of the output's buffer.
    ``one_request``: all rows have the same pages. ``tail``: page ids past a row's length, ``poison`` (-1 and INT_MAX) or ``valid`` (the stock
    function reads them).
    """

    name: str
    lens: tuple[int, ...]
    cap: int
    heads: int = 64
    pool: Optional[int] = None
    lens_2d: bool = True
    sliced_table: bool = False
    page_padding: int = 0
    out_padding: int = 0
    weights: str = "mixed"
    tail: str = "poison"
    one_request: bool = False


class IndexerInputs(NamedTuple):
    """Arguments of ``paged_mqa_logits`` in order, and the poisoned output buffer."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    weights: torch.Tensor
    seq_lens: torch.Tensor
    page_table: torch.Tensor
    max_seq_len: int
    out: torch.Tensor

    @property
    def args(self):
        return self[:-1]


def make_indexer(case: IndexerCase, device="cpu", seed: int = 0) -> IndexerInputs:
    """Draw the inputs of ``case``. What no length covers is NaN: unused pages, the dead end of a
    row's last page, the output buffer."""
    gen = torch.Generator(device=device).manual_seed(seed)
    batch, width = len(case.lens), -(-case.cap // PAGE)
    used = [-(-max(0, min(n, case.cap)) // PAGE) for n in case.lens]
    pages = sum(used) + 2 if case.pool is None else case.pool
    seq_lens = torch.tensor(case.lens, dtype=torch.int32, device=device)
    kv = _draw_pages(pages, case.page_padding, gen, device)
    table = _draw_table(case, used, pages, width, gen, device)
    if case.pool is None:
        _poison_unused(kv, table, used, case)
    q = torch.randn(batch, 1, case.heads, DIM, generator=gen, device=device)
    weights = torch.randn(batch, case.heads, generator=gen, device=device)
    if case.weights == "negative":
        weights = -weights.abs()
    out = torch.full((batch, case.cap + case.out_padding), float("nan"), device=device)
    return IndexerInputs(
        q.to(torch.float8_e4m3fn),
        kv,
        weights,
        seq_lens[:, None] if case.lens_2d else seq_lens,
        table,
        case.cap,
        out[:, : case.cap],
    )


def _draw_pages(pages, padding, gen, device):
    """uint8 view [pages, 64, 1, 132], planar inside the page; page stride 8448 + padding bytes."""
    raw = torch.full(
        (pages, PAGE_BYTES + padding), 0xFF, dtype=torch.uint8, device=device
    )
    step = 4096
    for start in range(0, pages, step):
        n = min(step, pages - start)
        keys = torch.randn(n, PAGE * DIM, generator=gen, device=device).to(
            torch.float8_e4m3fn
        )
        scales = torch.rand(n, PAGE, generator=gen, device=device) + 0.5
        raw[start : start + n, : PAGE * DIM] = keys.view(torch.uint8)
        raw[start : start + n, PAGE * DIM : PAGE_BYTES] = scales.view(
            torch.uint8
        ).reshape(n, -1)
    return raw.as_strided(
        (pages, PAGE, 1, TOKEN_BYTES), (raw.stride(0), TOKEN_BYTES, TOKEN_BYTES, 1)
    )


def _draw_table(case, used, pages, width, gen, device):
    batch = len(used)
    buffer = torch.empty((batch, width + 5), dtype=torch.int32, device=device)
    # A fresh table where the case does not ask for a slice, as SGLang makes one for a step. contiguous() would leave
    # the slice's stride to one row, and TileLang refuses it.
    table = (
        buffer[:, 3 : 3 + width]
        if case.sliced_table
        else torch.empty((batch, width), dtype=torch.int32, device=device)
    )
    if case.pool is not None:
        rows = 1 if case.one_request else batch
        table.copy_(torch.randint(pages, (rows, width), generator=gen, device=device))
    else:
        order = torch.randperm(pages, generator=gen, device=device).to(torch.int32)
        start = 0
        for row, n in enumerate(used):
            table[row, :n] = order[start : start + n]
            start += n
    if case.tail == "valid":
        for row, n in enumerate(used):
            if case.pool is None:
                table[row, n:] = 0
    else:
        for row, n in enumerate(used):
            table[row, n::2] = -1
            table[row, n + 1 :: 2] = 2**31 - 1
    return table


def _poison_unused(kv, table, used, case):
    flat = kv.as_strided((kv.shape[0], PAGE_BYTES), (kv.stride(0), 1))
    live = torch.zeros(kv.shape[0], dtype=torch.bool, device=kv.device)
    for row, n in enumerate(used):
        live[table[row, :n].long()] = True
    flat[~live] = 0xFF
    for row, n in enumerate(used):
        dead = n * PAGE - min(case.lens[row], case.cap)
        if n and dead:
            last = flat[int(table[row, n - 1])]
            last[(PAGE - dead) * DIM : PAGE * DIM] = E4M3_NAN
            last[PAGE_BYTES - 4 * dead :] = 0xFF


EDGE_LENGTHS = (0, 1, 3, 4, 63, 64, 65, 511, 512, 513)

INDEXER_EDGES = (
    IndexerCase("edges", EDGE_LENGTHS, 576),
    IndexerCase("flat-lens", EDGE_LENGTHS, 576, lens_2d=False),
    IndexerCase("negative-lens", (-1, 70, -(2**31)), 128),
    IndexerCase("past-cap", (200, 64, 130), 130),
    IndexerCase("cap-not-a-page", (100, 99, 1), 100),
    IndexerCase("negative-weights", (65, 130), 192, weights="negative"),
    IndexerCase("sliced-table", (1, 190, 64), 192, sliced_table=True),
    IndexerCase("padded-pages", (65, 190), 192, page_padding=1024),
    IndexerCase("padded-out", (65, 190), 192, out_padding=7),
    IndexerCase("all-empty", (0, 0, 0), 128),
    IndexerCase("one-long", (1000,) + (3,) * 20, 1024),
    IndexerCase("rows-past-a-block", (0,) * 300 + (65,) + (0,) * 255 + (3, 130), 192),
    IndexerCase("rows-of-a-block", (65,) + (0,) * 62 + (130,), 192),
    IndexerCase("rows-past-a-block-by-one", (65,) + (0,) * 63 + (130,), 192),
    IndexerCase("rows-in-each-block", tuple(row * 37 % 131 for row in range(130)), 192),
    IndexerCase("heads-16", (65, 130), 192, heads=16),
    IndexerCase("heads-32", (65, 130), 192, heads=32),
    IndexerCase("heads-128", (65, 130), 192, heads=128),
)


def decode_case(
    batch: int, text: int, context: int, pool: Optional[int] = None
) -> IndexerCase:
    """``batch`` rows of ``text`` raw tokens under a configured context of ``context`` raw tokens."""
    return IndexerCase(
        f"B{batch}-text{text}-cap{context}",
        (text // 4,) * batch,
        context // 4,
        pool=pool,
        tail="valid",
    )
