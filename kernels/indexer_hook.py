"""What SGLang's indexer calls: whether our logits kernel runs here, and the kernel in its signature."""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Optional

import torch

from sglang.srt.environ import envs

from .dispatch import Choice, FlagError, choose, current_device, report
from .indexer import paged_mqa_logits

MINIMUM_CAPABILITY = (8, 9)


def active() -> bool:
    """Whether our logits kernel is the indexer of this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_INDEXER=on cannot work.
    """
    choice = _decide()
    _report(choice)
    return choice.active


def check(server_args) -> None:
    """Raise FlagError where SGLANG_SM120_INDEXER=on cannot work with these server arguments."""
    if (
        server_args.enable_deepseek_v4_fp4_indexer
        and envs.SGLANG_SM120_INDEXER.get() == "on"
    ):
        raise FlagError(
            "SGLANG_SM120_INDEXER=on conflicts with --enable-deepseek-v4-fp4-indexer, whose cache it"
            " cannot read: unset one of the two"
        )
    _decide()


def logits_fn(topk: int) -> Callable[..., torch.Tensor]:
    """The logits kernel with the arguments of upstream's indexer functions.

    ``topk`` is the K of the selection that follows. It takes all keys of a row of K keys or fewer
    without reading a score, so such rows are not computed.
    """

    def logits(
        q,
        kv_cache,
        weights,
        seq_lens,
        page_table,
        _metadata,
        max_seq_len,
        _clean_logits,
    ):
        return paged_mqa_logits(
            q, kv_cache, weights, seq_lens, page_table, max_seq_len, skip_below=topk
        )

    return logits


def _decide() -> Choice:
    conflict = None
    if envs.SGLANG_OPT_USE_TILELANG_INDEXER.get():
        conflict = "SGLANG_OPT_USE_TILELANG_INDEXER=1"
    elif envs.SGLANG_OPT_USE_AITER_INDEXER.get():
        conflict = "SGLANG_OPT_USE_AITER_INDEXER=1"
    return _choose(envs.SGLANG_SM120_INDEXER.get(), conflict)


@lru_cache(maxsize=None)
def _choose(flag: str, conflict: Optional[str]) -> Choice:
    return choose(
        "SGLANG_SM120_INDEXER",
        flag,
        current_device(),
        minimum=MINIMUM_CAPABILITY,
        conflict=conflict,
    )


@lru_cache(maxsize=None)
def _report(choice: Choice) -> None:
    report("indexer", choice, "early-exit Triton")
