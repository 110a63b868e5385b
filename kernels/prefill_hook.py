"""What patch 0040 calls: the indexer's rows in blocks, and no way into the sparse prefill kernel."""

from __future__ import annotations

from typing import Callable, Union

import torch

from sglang.srt.environ import envs

from .dispatch import FlagError, Route
from .row_chunks import DeferredLogits, by_rows, rows_per_block

__all__ = ["active", "by_rows", "check", "chosen", "logits"]

PAGE = 64

ROUTE = Route(
    "SGLANG_SM120_PREFILL",
    "prefill",
    "indexer rows in blocks, never the sparse prefill kernel",
)


def active() -> bool:
    """Whether rows are taken in blocks, and the sparse prefill kernel never, in this process.

    The first answer is logged. Raises FlagError where SGLANG_SM120_PREFILL=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_PREFILL.get())


def chosen() -> bool:
    """As ``active``, without a log line."""
    return ROUTE.choice(envs.SGLANG_SM120_PREFILL.get()).active


def check(_server_args) -> None:
    """Log the choice. Raises FlagError where the flag, or the user's choice beside it, cannot work."""
    choice = ROUTE.choice(envs.SGLANG_SM120_PREFILL.get())
    envs.SGLANG_SM120_LOGITS_MB.get()
    if choice.active and envs.SGLANG_OPT_FLASHMLA_SPARSE_PREFILL.get():
        raise FlagError(
            f"SGLANG_OPT_FLASHMLA_SPARSE_PREFILL=1 conflicts with {choice.reason}: its kernel exists for"
            " sm_90 and sm_100 only. Unset it, or set SGLANG_SM120_PREFILL=off"
        )
    active()


def logits(
    fn: Callable[..., torch.Tensor],
    q,
    kv_cache,
    weights,
    seq_lens,
    page_table,
    metadata,
    *rest,
) -> Union[torch.Tensor, DeferredLogits]:
    """Call the indexer's logits function, or put it off where its memory would pass the budget.

    A function that works from a schedule of the whole batch (``metadata``) is called at once, and so is
    the FP4 indexer (``q`` is a pair).
    """
    args = (q, kv_cache, weights, seq_lens, page_table, metadata, *rest)
    if isinstance(q, tuple) or metadata is not None or not active():
        return fn(*args)
    rows, pages = page_table.shape
    row_page_bytes = getattr(fn, "row_page_bytes", _torch_row_page_bytes(q.shape[2]))
    block = rows_per_block(
        rows, pages, row_page_bytes, envs.SGLANG_SM120_LOGITS_MB.get() << 20
    )
    if block >= rows:
        return fn(*args)
    return DeferredLogits(fn, args, block)


def _torch_row_page_bytes(heads: int) -> int:
    """Bytes that upstream's torch functions hold at once for one page of one row: the gathered page,
    its keys as float32, the scores of all heads twice."""
    return PAGE * (132 + 4 * 128 + 2 * 4 * heads)
