"""Logits and selection of the indexer for a block of rows at a time, so that no step holds more than a
byte budget of logits.

The number of blocks depends on rows and page-table width only, so a captured graph replays it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import torch


class DeferredLogits:
    """Logits of all rows that are computed a block at a time, when the selection asks for them.

    ``fn(q, kv_cache, weights, seq_lens, page_table, metadata, max_seq_len, clean)`` is called with rows
    of q, weights, seq_lens and page_table.
    """

    def __init__(
        self, fn: Callable[..., torch.Tensor], args: tuple, rows_per_block: int
    ):
        self._fn = fn
        self._args = args
        self.rows = args[0].shape[0]
        self.rows_per_block = rows_per_block

    def parts(self) -> Iterator[slice]:
        """The blocks of rows, in order."""
        for start in range(0, self.rows, self.rows_per_block):
            yield slice(start, min(start + self.rows_per_block, self.rows))

    def of(self, part: slice) -> torch.Tensor:
        """Compute the logits of one block. Let go of one before asking for the next."""
        q, kv_cache, weights, seq_lens, page_table, *rest = self._args
        return self._fn(
            q[part], kv_cache, weights[part], seq_lens[part], page_table[part], *rest
        )


def rows_per_block(rows: int, pages: int, row_page_bytes: int, budget: int) -> int:
    """Rows in a block such that ``rows * pages * row_page_bytes`` stays within ``budget`` bytes, at least 1.

    Blocks are as even as they can be: the last one is at most a row per block shorter.
    """
    most = max(1, budget // max(1, pages * row_page_bytes))
    blocks = -(-rows // most)
    return -(-rows // max(1, blocks))


def by_rows(
    select: Callable[..., None], replan: Optional[Callable[[torch.Tensor], Any]] = None
) -> Callable[..., None]:
    """``select(scores, seq_lens, page_table, out_page_indices, page_size, extra)`` that also takes
    DeferredLogits as ``scores``.

    ``extra`` is the raw indices, or, where ``replan`` is given, a plan of the lengths that is made anew
    for each block.
    """

    def selected(scores, seq_lens, page_table, out_page_indices, page_size, extra=None):
        if not isinstance(scores, DeferredLogits):
            return select(
                scores, seq_lens, page_table, out_page_indices, page_size, extra
            )
        for part in scores.parts():
            if replan is not None:
                block_extra = replan(seq_lens[part])
            else:
                block_extra = None if extra is None else extra[part]
            select(
                scores.of(part),
                seq_lens[part],
                page_table[part],
                out_page_indices[part],
                page_size,
                block_extra,
            )

    return selected
