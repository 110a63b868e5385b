"""The names that `bench.sh kernel --case` takes, known without torch."""

from __future__ import annotations

from typing import Mapping, Sequence

from .errors import Exit, Failure

# Kernel -> its groups of shapes, as kernelbench has them.
GROUPS = {
    "indexer": (
        "text512",
        "few512",
        "full8k",
        "full128k",
        "full1m",
        "skewed",
        "prefill",
    ),
    "metadata": ("metadata-decode", "metadata-prefill"),
    "topk": (
        "topk-lengths",
        "topk-1024",
        "topk-rows",
        "topk-caps",
        "topk-skewed",
        "topk-recall",
        "topk-scores",
    ),
    "attention": (
        "decode-rows",
        "decode-heads",
        "decode-one-row",
        "decode-short",
        "decode-long",
        "decode-caps",
        "decode-prefill",
        "decode-scores",
    ),
    "hc_pre": ("hc-pre-rows",),
    "hc_sum": ("hc-sum-rows",),
}

# Measurements of an arm where nobody says how many.
SAMPLES = 25

# The peers that --without takes, as peers.py has them.
PEERS = ("stock", "DeepGEMM", "TileLang", "v1", "v2", "torch.topk", "FlashMLA")


def listing() -> str:
    """Every kernel with its groups, for --help."""
    kernels = (f"{kernel} ({', '.join(GROUPS[kernel])})" for kernel in GROUPS)
    return "; ".join(kernels)


def require_known(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
    """Raise Failure(USAGE) for a name that is neither a kernel nor a group."""
    known = [*groups, *(group for each in groups.values() for group in each)]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise Failure(
            Exit.USAGE,
            f"no case {', '.join(unknown)}",
            state="nothing was measured",
            next=f"name some of these with --case: {', '.join(known)}",
        )
