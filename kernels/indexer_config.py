"""Launch shapes of the indexer's kernel and the forms of its products, each with its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton.language as tl

DIM = 128
PAGE = 64
TOKEN_BYTES = DIM + 4
HEAD_COUNTS = (16, 32, 64, 128)
DOT_DTYPES = {"fp8": tl.float8e4nv, "bf16": tl.bfloat16, "fp32": tl.float32}
# The rows of one block: two for each lane of a warp.
FEW_ROWS = 64


@dataclass(frozen=True)
class LogitsConfig:
    """Launch shape of the logits kernel.

    ``programs_per_sm`` sets the grid, ``programs_per_large_sm`` on cards with twice the shared memory
    (sm_90, sm_100).
    """

    num_warps: int
    num_stages: int
    programs_per_sm: int
    programs_per_large_sm: int


# Four warps, 16 keys of a page each: with all heads of its keys a warp has their sums to itself (wgmma divides a
# page so; where mma.sync would not, see the form of warps). Five stages, because the page number that a key's
# address depends on takes every other one: that leaves two pages (17 KB) for each program, both in flight while it
# waits, one while it multiplies. Three programs are what fits an sm_120 SM next to each other (168 registers, no
# spills); shares are equal, so a fourth would run alone after them. 25 KB in flight an SM at the least is 3 times
# what 1,792 GB/s need at a latency of 0.8 us. Measured on an H200 (one run, 64 rows of 128K, keys through shared
# memory): five stages and four programs 75.5 us, three programs 78.5, three stages 91.9, two 93.1, eight warps
# 101.6. On the larger cards with 64 heads no fifth program may fit beside four (97 to 128 registers a thread):
# where it did, programs of the next launch took that place as soon as there was one, so some SMs had five of them
# and others three (79.4 us for 75.5).
CONFIGS = {
    "fp8": LogitsConfig(4, 5, programs_per_sm=3, programs_per_large_sm=4),
    "bf16": LogitsConfig(4, 3, programs_per_sm=3, programs_per_large_sm=3),
    "fp32": LogitsConfig(4, 2, programs_per_sm=2, programs_per_large_sm=2),
}

# How keys get to the products (``indexer_page``): those of a page by itself, and of several in a loop.
#
# memory: what is not below.
# warps: where mma.sync multiplies fp8 (sm_89, sm_120), with up to 64 heads. A page's keys as a batch of four
# products of 16 are divided among four warps; as one product of 64 keys and 64 heads they would be among two by
# two, so that a sum over heads crosses warps (three barriers a page) and q takes eight more to its registers.
# Here there is none between a page's loads and its logits' stores, but that which orders the loads. q takes 64 of
# a thread's registers: of 128 heads it would spill, as widened to f16 (sm_121).
# group: for a warpgroup's products (sm_90), few rows and a page by itself. Once keys are there, no store to shared
# memory, fence and barrier comes before the products. A loop copies to shared memory ahead of time anyway, and
# through registers took 6 % more at 64 rows of 8K, 23 % at 2,048 rows (docs/tried.md).
FORMS = {
    "memory": ("memory", "memory"),
    "group": ("group", "memory"),
    "warps": ("warps", "warps"),
}


def form_for(device: torch.device, heads: int, dot_dtype: str, few: bool) -> str:
    """The one of FORMS for ``device``; ``few``: whether all rows are in one block."""
    if dot_dtype != "fp8" or heads > 64:
        return "memory"
    if capability(device) == (9, 0):
        return "group" if few else "memory"
    # triton 3.6.0 multiplies fp8 as it is there, and widens it first on the others that have mma.sync.
    if capability(device) in ((8, 9), (12, 0)):
        return "warps"
    return "memory"


@lru_cache(maxsize=None)
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of ``device``, which has an index; of the CPU that of sm_120, for which it stands."""
    if device.type != "cuda":
        return (12, 0)
    return torch.cuda.get_device_capability(device)
