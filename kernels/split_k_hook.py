"""What patch 0070 calls: how many splits the decode kernel gets."""

from __future__ import annotations

from typing import Optional

from sglang.srt.environ import envs

from . import decode_hook
from .dispatch import Route

ROUTE = Route(
    "SGLANG_SM120_SPLIT_K",
    "split-K",
    "a row's keys over several blocks where rows are few",
    instead="one block for all keys of a row",
)


def num_splits() -> Optional[int]:
    """``num_splits`` for the decode kernel: None for its own choice, or 1. The first answer is logged.

    Raises FlagError where SGLANG_SM120_SPLIT_K=on cannot work.
    """
    active = ROUTE.active(envs.SGLANG_SM120_SPLIT_K.get(), missing=_missing())
    return None if active else 1


def check(_server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_SPLIT_K=on cannot work."""
    num_splits()


def _missing() -> Optional[str]:
    if decode_hook.chosen():
        return None
    return "it splits the work of SGLANG_SM120_DECODE, which is not in use"
