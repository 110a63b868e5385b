"""What SGLang's indexer calls: whether our logits kernel runs here, and the kernel in its signature."""

from __future__ import annotations

from typing import Callable, Optional

import torch

from sglang.srt.environ import envs

from .dispatch import Route, log_once
from .indexer import PAGE, paged_mqa_logits

ROUTE = Route(
    "SGLANG_SM120_INDEXER",
    "indexer",
    "early-exit Triton kernel",
    minimum=(8, 9),
    why_minimum="older GPUs have no fp8 tensor cores",
)


def active() -> bool:
    """Whether our logits kernel is the indexer of this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_INDEXER=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_INDEXER.get(), _other_indexer())


def check(server_args) -> None:
    """Log the choices. Raises FlagError where SGLANG_SM120_INDEXER=on cannot work with these arguments."""
    other = _other_indexer()
    if server_args.enable_deepseek_v4_fp4_indexer:
        other = "--enable-deepseek-v4-fp4-indexer (whose cache it cannot read)"
    ours = ROUTE.active(envs.SGLANG_SM120_INDEXER.get(), other)
    _check_torch_indexer(ours)


def logits_fn(topk: int) -> Callable[..., torch.Tensor]:
    """The logits kernel with the arguments of upstream's indexer functions.

    ``topk`` is the K of the selection that follows. It takes all keys of a row of K keys or fewer
    without reading a score, so such rows are not computed.
    """

    def logits(
        q, kv_cache, weights, seq_lens, page_table, _metadata, max_seq_len, _clean
    ):
        return paged_mqa_logits(
            q, kv_cache, weights, seq_lens, page_table, max_seq_len, skip_below=topk
        )

    logits.row_page_bytes = PAGE * 4
    return logits


def _check_torch_indexer(ours: bool) -> None:
    """Log how the torch indexer multiplies where ours does not run. Reads the flag anyway: a typo is an error."""
    name = "SGLANG_SM120_TORCH_INDEXER_BF16"
    # Patch 0095 registers it.
    if not hasattr(envs, name):
        return
    flag = getattr(envs, name).get()
    path = "bf16 products" if flag == "on" else "upstream's float32 products"
    if ours:
        path = "not used"
    log_once("torch indexer", f"{path} ({name}={flag})")


def _other_indexer() -> Optional[str]:
    if envs.SGLANG_OPT_USE_TILELANG_INDEXER.get():
        return "SGLANG_OPT_USE_TILELANG_INDEXER=1"
    if envs.SGLANG_OPT_USE_AITER_INDEXER.get():
        return "SGLANG_OPT_USE_AITER_INDEXER=1"
    return None
