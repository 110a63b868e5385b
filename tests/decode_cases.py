"""Named inputs of the attention kernel that tests and benchmarks share. A case says what is special; ``make_decode`` draws the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch

from kernels.decode_ref import sparse_mla_decode_ref
from numeric import assert_close

UNWRITTEN = -7.0
WINDOW = 128
NAN_BYTE = 0x7F


@dataclass(frozen=True)
class DecodeCase:
    """One call of the attention.

    ``near``, ``far``: keys per row in the window's cache and in the other one (None: no other cache); beyond
    the width all of it counts. ``width``: columns of the far index table. ``invalid``: share of the indices
    below the lengths that are -1. ``scores``: a key of ``SCORES``. ``pool``: pages of each cache at least.
    """

    name: str
    near: tuple[int, ...]
    far: Optional[tuple[int, ...]] = None
    heads: int = 16
    width: int = 512
    near_width: int = WINDOW
    near_page: int = 256
    far_page: int = 64
    invalid: float = 0.0
    scores: str = "normal"
    sink: bool = True
    lengths: bool = True
    e4m3: bool = False
    strided_q: bool = False
    flat_indices: bool = False
    pool: int = 0


class DecodeInputs(NamedTuple):
    """Arguments of ``sparse_mla_decode`` in order."""

    q: torch.Tensor
    k_cache: torch.Tensor
    indices: torch.Tensor
    topk_length: Optional[torch.Tensor]
    attn_sink: Optional[torch.Tensor]
    head_dim_v: int
    softmax_scale: Optional[float]
    extra_k_cache: Optional[torch.Tensor]
    extra_indices: Optional[torch.Tensor]
    extra_topk_length: Optional[torch.Tensor]

    def readable(self) -> list[torch.Tensor]:
        """What may be read: q, sinks, lengths, indices below a length, and the keys and scales that they name."""
        parts = [self.q] if self.q.is_contiguous() else list(self.q.unbind(0))
        parts += [self.attn_sink] if self.attn_sink is not None else []
        for cache, indices, lengths in (
            (self.k_cache, self.indices, self.topk_length),
            (self.extra_k_cache, self.extra_indices, self.extra_topk_length),
        ):
            if cache is None:
                continue
            if lengths is not None:
                parts.append(lengths)
            page = cache.shape[1]
            named = set()
            for row in range(indices.shape[0]):
                columns = indices[row].reshape(-1)
                if lengths is not None:
                    columns = columns[: max(0, int(lengths[row]))]
                parts.append(columns)
                named |= set(columns[columns >= 0].tolist())
            flat = page_bytes(cache)
            for index in named:
                slot = index % page
                parts.append(flat[index // page, slot * 576 : slot * 576 + 576])
                scales = page * 576 + slot * 8
                parts.append(flat[index // page, scales : scales + 8])
        return parts


def page_bytes(cache: torch.Tensor) -> torch.Tensor:
    """A cache as uint8 [pages, page bytes]."""
    pages, stride = cache.shape[0], cache.stride(0)
    return cache.view(torch.uint8).as_strided((pages, stride), (stride, 1))


# (size of q's elements, size of the keys' elements, spread of the scales' exponents, size of the e4m3)
SCORES = {
    "normal": (1.0, 1.0, 2, 100),
    "peaked": (6.0, 4.0, 2, 100),
    "flat": (0.01, 1.0, 2, 100),
    "large": (2.0**-40, 2.0**40, 2, 100),
    "tiny-q": (2.0**-100, 1.0, 2, 100),
    "mixed-scales": (1.0, 1.0, 24, 100),
    "small-keys": (2.0**30, 2.0**-30, 2, 100),
    "subnormal": (100.0, 1.0, 2, 0.004),
}


def make_decode(case: DecodeCase, device="cpu", seed: int = 0) -> DecodeInputs:
    """Draw the inputs of ``case``. What no index names is poisoned: NaN in keys and scales; and the columns
    beyond a length hold large indices."""
    gen = torch.Generator(device=device).manual_seed(seed)
    batch = len(case.near)
    q_size, *keys = SCORES[case.scores]
    q = _normal((batch, case.heads, 512), gen, device) * q_size
    q = q.to(torch.bfloat16)
    if case.strided_q:
        wide = torch.full(
            (batch, case.heads + 2, 1024), float("nan"), dtype=q.dtype, device=device
        )
        wide[:, 1:-1, 512:] = q
        q = wide[:, 1:-1, 512:]
    near = _cache(case, case.near, case.near_width, case.near_page, *keys, gen, device)
    far = (None, None, None)
    if case.far is not None:
        far = _cache(case, case.far, case.width, case.far_page, *keys, gen, device)
    sink = _normal((case.heads,), gen, device) if case.sink else None
    return DecodeInputs(q.unsqueeze(1), *near, sink, 512, 512**-0.5, *far)


def _cache(case, lengths, width, page, size, spread, e4m3_size, gen, device):
    batch = len(lengths)
    clamped = [max(0, min(n, width)) if case.lengths else width for n in lengths]
    pages = max(case.pool, -(-sum(clamped) // page) + 1)
    stride = -(-page * 584 // 576) * 576
    flat = torch.full((pages, stride), NAN_BYTE, dtype=torch.uint8, device=device)
    flat[:, page * 576 :] = 0xFF
    cache = flat.as_strided((pages, page, 1, 584), (stride, 584, 584, 1))

    slots = torch.randperm(pages * page, generator=gen, device=device)
    indices = torch.full((batch, width), 2**31 - 1, dtype=torch.int32, device=device)
    taken = 0
    for row, n in enumerate(clamped):
        indices[row, :n] = slots[taken : taken + n]
        taken += n
    used = slots[:taken]
    page_of, slot = used // page, used % page
    columns = torch.arange(576, device=device)
    flat[page_of[:, None], slot[:, None] * 576 + columns] = _key_bytes(
        taken, size, e4m3_size, gen, device
    )
    exponents = torch.randint(
        -spread, spread + 1, (taken, 8), generator=gen, device=device
    )
    exponents += 120 + int(torch.tensor(size).log2())
    columns = torch.arange(8, device=device)
    scales_at = page * 576 + slot[:, None] * 8 + columns
    flat[page_of[:, None], scales_at] = exponents.to(torch.uint8)

    if case.invalid:
        drop = torch.rand((batch, width), generator=gen, device=device) < case.invalid
        inside = torch.arange(width, device=device) < torch.tensor(
            clamped, device=device
        ).unsqueeze(1)
        indices[drop & inside] = -1
    if case.e4m3:
        cache = cache.view(torch.float8_e4m3fn)
    if not case.flat_indices:
        indices = indices.unsqueeze(1)
    topk_length = None
    if case.lengths:
        topk_length = torch.tensor(lengths, dtype=torch.int32, device=device)
    return cache, indices, topk_length


def _key_bytes(count, size, e4m3_size, gen, device):
    """448 e4m3, for a scale of about 2**-7, and 64 bf16."""
    quantised = _normal((count, 448), gen, device) * e4m3_size
    quantised = quantised.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    rope = (_normal((count, 64), gen, device) * size).to(torch.bfloat16)
    return torch.cat([quantised, rope.view(torch.uint8)], 1)


def _normal(shape, gen, device):
    return torch.randn(shape, generator=gen, device=device)


# Of the largest output of a head. Half a unit in the last place of bf16 is up to 2**-8 of it, and as much of a
# weight of the bf16 dims; with few keys one term is most of the sum.
TOLERANCE = 2**-7
# Absolute, and relative to the logarithm where that is large.
LSE_TOLERANCE = 1e-4


def unwritten(inputs: DecodeInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs that hold ``UNWRITTEN``."""
    batch, _, heads, _ = inputs.q.shape
    out = torch.full_like(inputs.q, UNWRITTEN, memory_format=torch.contiguous_format)
    return out, torch.full((batch, heads, 1), UNWRITTEN, device=out.device)


def assert_attention(
    inputs: DecodeInputs, got: tuple[torch.Tensor, torch.Tensor], want=None
) -> float:
    """Compare both outputs with float64; returns the worst error of ``out`` relative to a head's largest."""
    want = want or sparse_mla_decode_ref(*inputs)
    out, lse = got
    largest = want.out.abs().amax(-1, keepdim=True).expand_as(want.out)
    assert_close(lse, want.lse, want.lse.abs().clamp_min(1), LSE_TOLERANCE)
    return assert_close(out, want.out, largest, TOLERANCE)


DECODE_EDGES = (
    DecodeCase("one-key", (1,), None),
    DecodeCase("no-key", (0, 0), (0, 0)),
    DecodeCase("some-without", (0, 33, 0), (0, 0, 1)),
    DecodeCase("tiles", (31, 32, 33, 64, 65), None),
    DecodeCase("straddling", (1, 31, 33), (31, 1, 40)),
    DecodeCase("negative-lengths", (-1, 5), (-(2**31), -3)),
    DecodeCase("past-width", (500, 3), (1_000, 4), width=64, near_width=64),
    DecodeCase("no-lengths", (0, 0), (0, 0), width=50, near_width=37, lengths=False),
    DecodeCase("all-invalid", (40, 9), (30, 0), invalid=1.0),
    DecodeCase("half-invalid", (90, 9), (70, 3), invalid=0.5),
    DecodeCase("no-sink", (40, 0), (30, 0), sink=False),
    DecodeCase("c128-pages", (40, 7), (90, 1), far_page=2),
    DecodeCase("e4m3", (40,), (30,), e4m3=True, flat_indices=True),
    DecodeCase("strided-q", (40, 8), (30, 4), strided_q=True),
    *(DecodeCase(f"heads-{n}", (40, 5), (30, 9), heads=n) for n in (1, 8, 17, 64, 100)),
    DecodeCase("many-rows", (3,) * 300, None, heads=1),
    DecodeCase("one-long", (2,) * 9, (290,) + (2,) * 8, heads=8, far_page=2),
)
