"""What patch 0045 calls: the function that fills the compressed caches' metadata."""

from __future__ import annotations

import os
from typing import Callable, Optional

from sglang.srt.environ import envs

from . import prefill_hook
from .dispatch import Route
from .metadata import compression_metadata

ROUTE = Route(
    "SGLANG_SM120_METADATA",
    "metadata",
    "one kernel for every width, entries as the lengths need",
)


def active() -> bool:
    """Whether our metadata kernel runs in this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_METADATA=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_METADATA.get(), _reader_of_tails())


def check(_server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_METADATA=on cannot work."""
    active()


def pick(stock: Callable[..., tuple]) -> Callable[..., tuple]:
    """Ours in the signature of upstream's function, or upstream's own."""
    return _ours if active() else stock


def _ours(
    seq_lens, positions, raw_out_loc, page_table, page_size, compute_page_indices
):
    assert compute_page_indices, "the attention backend always asks for the indices"
    return compression_metadata(seq_lens, positions, raw_out_loc, page_table, page_size)


def _reader_of_tails() -> Optional[str]:
    """A setting under which upstream reads the index table past the lengths, which we don't write."""
    # Upstream reads this one from the environment itself, once, when its module is imported.
    if os.environ.get("SGLANG_SM120_TRITON_FLASHMLA", "1") != "1":
        return "SGLANG_SM120_TRITON_FLASHMLA=0 (it gathers the whole table)"
    if not prefill_hook.chosen():
        return "SGLANG_SM120_PREFILL not in use (sparse prefill reads the whole table)"
    return None
