"""Reference of the indexer logits in float64, written from the formula and the byte layout alone."""

from __future__ import annotations

from typing import NamedTuple

import torch

DIM, PAGE = 128, 64


class Logits(NamedTuple):
    """float64 [B, max_seq_len] each; -inf (values) and 0 (magnitudes) from the row's length on.

    ``magnitudes`` sums the absolute values of the terms: what a rounding error is relative to, since
    terms of both signs may cancel.
    """

    values: torch.Tensor
    magnitudes: torch.Tensor


def paged_mqa_logits_ref(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    max_seq_len: int,
) -> Logits:
    """Row by row, page by page, only what the lengths cover. Arguments as ``paged_mqa_logits``."""
    batch = q.shape[0]
    values = torch.full(
        (batch, max_seq_len), float("-inf"), dtype=torch.float64, device=q.device
    )
    magnitudes = torch.zeros_like(values)
    lens = seq_lens.reshape(batch).tolist()
    for row in range(batch):
        length = min(lens[row], max_seq_len)
        if length <= 0:
            continue
        pages = page_table[row, : -(-length // PAGE)].long()
        raw = kv_cache[pages].reshape(len(pages), PAGE * (DIM + 4))
        keys = raw[:, : PAGE * DIM].contiguous().view(torch.float8_e4m3fn)
        keys = keys.to(torch.float64).reshape(-1, DIM)[:length]
        scales = raw[:, PAGE * DIM :].contiguous().view(torch.float32)
        scales = scales.to(torch.float64).reshape(-1)[:length]
        dots = (keys @ q[row, 0].to(torch.float64).T).clamp_min(0)
        terms = dots * weights[row].to(torch.float64) * scales[:, None]
        values[row, :length] = terms.sum(1)
        magnitudes[row, :length] = terms.abs().sum(1)
    return Logits(values, magnitudes)
