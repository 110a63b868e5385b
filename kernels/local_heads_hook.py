"""What patch 0080 calls: attention on the heads of this rank only, or on all of them as upstream pads it."""

from __future__ import annotations

from typing import Optional

from sglang.srt.environ import envs
from sglang.srt.utils.common import is_sm120_supported

from . import decode_hook, prefill_hook
from .dispatch import Route

ROUTE = Route(
    "SGLANG_SM120_LOCAL_HEADS",
    "heads",
    "attention on this rank's heads only",
)


def active(ranks: int) -> bool:
    """Whether a rank, of so many that share attention's heads, attends on its own only.

    The first answer is logged. Raises FlagError where SGLANG_SM120_LOCAL_HEADS=on cannot work.
    """
    if ranks == 1:
        ROUTE.idle("each rank has all heads")
        return False
    return ROUTE.active(envs.SGLANG_SM120_LOCAL_HEADS.get(), missing=_missing())


def check(server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_LOCAL_HEADS=on cannot work."""
    envs.SGLANG_SM120_LOCAL_HEADS.get()
    why = _why_all_heads_are_local(server_args)
    if why is None:
        active(server_args.tp_size)
    else:
        ROUTE.idle(f"each rank has all heads: {why}")


def _why_all_heads_are_local(server_args) -> Optional[str]:
    tp_size = server_args.tp_size
    if tp_size == 1:
        return "--tp-size 1"
    if server_args.enable_dsa_prefill_context_parallel:
        return "prefill context parallelism"
    dp_size = server_args.dp_size if server_args.enable_dp_attention else 1
    if tp_size == dp_size * server_args.attn_cp_size:
        return f"--tp-size {tp_size} with DP attention of the same size"
    return None


def _missing() -> Optional[str]:
    """What attends in this process, or can, and takes all heads only."""
    if is_sm120_supported():
        # Upstream's kernels for it take any number of heads, and its sparse prefill fails with all of them.
        return None
    if not decode_hook.chosen():
        return "FlashMLA attends here, which takes 64 or 128 heads, as SGLANG_SM120_DECODE is not in use"
    if not prefill_hook.chosen():
        return (
            "the sparse prefill kernel, which takes 64 or 128 heads, can run here, as"
            " SGLANG_SM120_PREFILL is not in use"
        )
    return None
