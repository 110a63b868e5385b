"""Named inputs of the top-k that tests and benchmarks share. A case says what is special; ``make_topk`` draws the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch

from kernels.topk_ref import topk_page_indices_ref

UNWRITTEN = -7


@dataclass(frozen=True)
class TopkCase:
    """One call of the top-k.

    ``lens``: scores per row. ``width``: configured columns. ``scores``: a key of ``DISTRIBUTIONS``.
    ``row_padding``: extra columns between rows. ``offset``: columns before the first row's first score.
    """

    name: str
    lens: tuple[int, ...]
    width: int
    scores: str = "normal"
    k: int = 512
    page_size: int = 64
    lens_2d: bool = True
    sliced_table: bool = False
    row_padding: int = 0
    offset: int = 0
    raw: bool = True


class TopkInputs(NamedTuple):
    """Arguments of ``topk_page_indices`` in order; both outputs are ``UNWRITTEN``."""

    scores: torch.Tensor
    seq_lens: torch.Tensor
    page_table: torch.Tensor
    out_page_indices: torch.Tensor
    page_size: int
    out_raw_indices: Optional[torch.Tensor]

    def readable(self) -> list[torch.Tensor]:
        """What may be read: the lengths, the scores of rows longer than K, the page ids that lengths cover."""
        k, width = self.out_page_indices.shape[1], self.scores.shape[1]
        parts = [self.seq_lens]
        for row, length in enumerate(self.seq_lens.flatten().tolist()):
            length = max(0, min(length, width))
            parts.append(self.page_table[row, : -(-length // self.page_size)])
            if length > k:
                parts.append(self.scores[row, :length])
        return parts


def _normal(mean: float, sigma: float):
    return lambda shape, gen, device: (
        torch.randn(shape, generator=gen, device=device) * sigma + mean
    )


def _from_normal(function):
    return lambda shape, gen, device: function(
        torch.randn(shape, generator=gen, device=device)
    )


def _denormal(x):
    return (x * 1000).round() * 1.4013e-45


def _signed_zeros(x):
    zeros = torch.where(x > 0, 0.0, -0.0)
    return torch.where(x.abs() > 2.5, x, zeros)


def _mostly(value):
    return lambda x: torch.where(x.abs() < 2.576, value, x)


def _with_nan(x):
    x = torch.where(x > 2, float("nan"), x)
    return torch.where(x < -2, -x.new_tensor(float("nan")), x)


def _cluster(x):
    start = x.shape[1] // 3
    x[:, start : start + 700] += 100
    return x


def _plateau(x):
    start = x.shape[1] // 3
    x[:, start : start + 4_096] += 10
    return x


def _close_with_outliers(x):
    x = x / 1000 + 100
    x[:, :: x.shape[1] // 100 + 1] = 3e38
    return x


def _ulps_apart_with_outlier(x):
    x = x / 1e5 + 100
    x[:, 0] = 1e4
    return x


def _values(scale):
    return _from_normal(lambda x: (x * scale).round())


def _even_positions(x):
    x[:, ::2] += 100
    return x


DISTRIBUTIONS = {
    "normal": _normal(0, 1),
    "narrow": _normal(2, 0.3),
    "concentrated": _normal(10, 0.5),
    "mean-100": _normal(100, 1),
    "negative": _from_normal(lambda x: -x.abs() - 1),
    "huge": _from_normal(lambda x: x * 1e38),
    "one-outlier": _from_normal(lambda x: x.index_fill(1, x.new_zeros(1).long(), 3e38)),
    "close-with-outlier": _from_normal(
        lambda x: (x / 1000 + 100).index_fill(1, x.new_zeros(1).long(), 3e38)
    ),
    "close-with-outliers": _from_normal(_close_with_outliers),
    "ulps-apart-with-outlier": _from_normal(_ulps_apart_with_outlier),
    "equal": _from_normal(lambda x: torch.full_like(x, 1.5)),
    "two-values": _from_normal(lambda x: (x > 0).float()),
    "three-values": _values(0.375),
    "few-values": _values(1),
    "forty-values": _values(5),
    "hundreds-of-values": _values(75),
    "denormal": _from_normal(_denormal),
    "signed-zeros": _from_normal(_signed_zeros),
    "mostly-inf": _from_normal(_mostly(float("-inf"))),
    "both-infs": _from_normal(
        lambda x: torch.where(x > 2.7, float("inf"), _mostly(float("-inf"))(x))
    ),
    "ascending": _from_normal(lambda x: x.sort(1).values),
    "descending": _from_normal(lambda x: x.sort(1, descending=True).values),
    "cluster": _from_normal(_cluster),
    "plateau": _from_normal(_plateau),
    "even-positions": _from_normal(_even_positions),
    "nan": _from_normal(_with_nan),
}
WITHOUT_NAN = tuple(name for name in DISTRIBUTIONS if name != "nan")


def make_topk(case: TopkCase, device="cpu", seed: int = 0) -> TopkInputs:
    """Draw the inputs of ``case``. What no length covers is poisoned: NaN among the scores, -1 and
    INT_MAX among the page ids."""
    gen = torch.Generator(device=device).manual_seed(seed)
    batch, pages = len(case.lens), -(-case.width // case.page_size)
    stride = case.width + case.row_padding
    buffer = torch.full((batch * stride + case.offset,), float("nan"), device=device)
    scores = buffer[case.offset :].view(batch, stride)[:, : case.width]
    if case.width:
        draw = DISTRIBUTIONS[case.scores]
        scores.copy_(draw((batch, case.width), gen, device))
    order = torch.randperm(batch * pages, generator=gen, device=device)
    table = torch.empty((batch, pages + 5), dtype=torch.int32, device=device)
    table = table[:, 3 : 3 + pages] if case.sliced_table else table[:, :pages]
    if not case.sliced_table:
        table = table.contiguous()
    table.copy_(order.view(batch, pages))
    for row, length in enumerate(case.lens):
        length = max(0, min(length, case.width))
        scores[row, length:] = float("nan")
        used = -(-length // case.page_size)
        table[row, used::2] = -1
        table[row, used + 1 :: 2] = 2**31 - 1
    seq_lens = torch.tensor(case.lens, dtype=torch.int32, device=device)
    out = torch.full((batch, case.k), UNWRITTEN, dtype=torch.int32, device=device)
    return TopkInputs(
        scores,
        seq_lens[:, None] if case.lens_2d else seq_lens,
        table,
        out,
        case.page_size,
        out.clone() if case.raw else None,
    )


def exact_topk(scores, seq_lens, page_table, out, page_size, raw=None):
    """The reference in the place of a top-k kernel that needs a GPU."""
    chosen = topk_page_indices_ref(
        scores, seq_lens, page_table, out.shape[1], page_size
    )
    out.copy_(chosen.page_indices)
    if raw is not None:
        raw.copy_(chosen.raw_indices)


# One program's shared memory holds 16,384 keys; work is shared out in units of 2,048, or 4,096 for K = 1,024.
TILE, UNIT = 16_384, 2_048


def edge_lengths(k: int) -> tuple[int, ...]:
    """Lengths around what the kernel treats differently."""
    around = lambda n: (n - 1, n, n + 1)  # noqa: E731
    return (
        0,
        1,
        *around(k),
        *around(2_048),
        *around(4_096),
        *around(TILE),
        *around(TILE + UNIT),
        TILE + 2 * UNIT,
    )


def few_scores(k: int, width: int, scores: str) -> TopkCase:
    """Rows of at most ``UNIT`` scores and none longer, at both sides of K and of 1,024."""
    lens = (k + 1, k, 1_000, 1_024, 1_025, 2_047, 2_048, 0)
    return TopkCase("few", lens, width, scores, k)


TOPK_EDGES = (
    TopkCase("edges", edge_lengths(512), 20_544),
    TopkCase("edges-1024", edge_lengths(1024), 20_544, k=1024),
    TopkCase("flat-lens", (700, 513, 3), 704, lens_2d=False),
    TopkCase("negative-lens", (-1, 600, -(2**31)), 640),
    TopkCase("negative-lens-many-rows", (-1, 600, -(2**31)) * 9, 640),
    TopkCase("past-width", (3_000, 600, 1_000), 1_000),
    TopkCase("odd-width", (1_001, 17_001), 17_001),
    TopkCase("padded-rows", (16_385, 700), 17_024, row_padding=64),
    TopkCase("unaligned-rows", (16_387, 20_481, 700), 20_483, row_padding=3),
    TopkCase("unaligned-start", (20_480, 700), 20_480, offset=1),
    TopkCase("sliced-table", (17_000, 1, 600), 17_024, sliced_table=True),
    TopkCase("page-1", (17_000, 600, 5), 17_024, page_size=1),
    TopkCase("page-2-many-rows", (700,) + (5, 300, 512) * 90, 704, page_size=2),
    TopkCase("page-256", (17_000, 600, 5), 17_024, page_size=256),
    TopkCase("one-page", (600, 513), 640, page_size=1_024),
    TopkCase("no-raw", (17_000, 600, 5), 17_024, raw=False),
    TopkCase("many-short", tuple(range(514)) * 2, 576, lens_2d=False),
    TopkCase("many-short-1024", tuple(range(0, 1_026, 3)), 1_088, k=1024),
    TopkCase("all-short", (1, 0, 512, 64), 262_208),
    TopkCase("one-long", (70_000,) + (3,) * 20, 70_016),
    TopkCase("many-rows", (700, 20_000) + (0,) * 1_100 + (17_000, 513), 20_032),
    TopkCase("only-the-last-of-many-long", (3,) * 600 + (17_000,), 17_024),
    TopkCase("past-two-levels", (540_000,), 540_032),
    TopkCase("past-two-levels-1024", (300_000,), 300_032, k=1024),
)
