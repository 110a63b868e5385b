"""Reference of the indexer's top-k: a stable sort, row by row, written from the contract alone."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Selection(NamedTuple):
    """int32 [B, K] each, -1 where a row has fewer than K scores."""

    page_indices: torch.Tensor
    raw_indices: torch.Tensor


def topk_page_indices_ref(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    k: int,
    page_size: int,
) -> Selection:
    """The ``k`` largest of each row, positions ascending, ties to the lowest; scores without NaN."""
    batch, width = scores.shape
    raw = torch.full((batch, k), -1, dtype=torch.int32, device=scores.device)
    pages = raw.clone()
    for row, length in enumerate(seq_lens.reshape(batch).tolist()):
        length = max(0, min(length, width))
        if length <= k:
            chosen = torch.arange(length, device=scores.device)
        else:
            order = torch.sort(scores[row, :length], descending=True, stable=True)
            chosen = order.indices[:k].sort().values
        pages[row, : len(chosen)] = (
            page_table[row, chosen // page_size] * page_size + chosen % page_size
        ).to(torch.int32)
        raw[row, : len(chosen)] = chosen.to(torch.int32)
    return Selection(pages, raw)
