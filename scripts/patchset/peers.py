"""Other people's kernels that do the same work, where this Python can import them.

None is a dependency. A peer that is not installed is left out; one that fails says so in the table.
"""

from __future__ import annotations

import importlib.util
from typing import Callable, Iterator


def logits_peers() -> Iterator[tuple[str, Callable]]:
    """(name, prepare) of each importable logits kernel. ``prepare(inputs)`` gives the call to time.

    What a peer plans once a step for all layers (DeepGEMM's schedule) is made in ``prepare``.
    """
    if importlib.util.find_spec("deep_gemm"):
        yield "DeepGEMM", _deep_gemm_logits
    if importlib.util.find_spec("tilelang"):
        yield "TileLang", _tilelang_logits


def _deep_gemm_logits(inputs) -> Callable:
    import deep_gemm

    q, kv, weights, lens, table, cap, _ = inputs
    lens = lens.reshape(-1, 1).contiguous()
    plan = deep_gemm.get_paged_mqa_logits_metadata(lens, 64, deep_gemm.get_num_sms())

    def call():
        return deep_gemm.fp8_paged_mqa_logits(
            q, kv, weights, lens, table, plan, cap, False
        )

    return call


def _tilelang_logits(inputs) -> Callable:
    from sglang.kernels.ops.attention.dsa.tilelang_kernel import (
        tilelang_fp8_paged_mqa_logits,
    )

    q, kv, weights, lens, table, cap, _ = inputs
    lens = lens.flatten()

    def call():
        return tilelang_fp8_paged_mqa_logits(
            q, kv, weights, lens, table, None, cap, False
        )

    return call
