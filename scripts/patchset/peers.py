"""Other people's kernels that do the same work, where this Python can import them.

None is a dependency. A peer that is not installed is left out; one that fails says so on stderr.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache, partial
from typing import Callable, Iterable, Iterator, Sequence

import torch

from stock import attention_module, call_stock, indexer_functions

# The stock logits gather, widen and multiply the whole width: bytes per (row, position).
STOCK_LOGITS_BYTES = 1160

Peer = tuple[str, Callable]

_noted: set[tuple[str, str]] = set()
_left_out: set[str] = set()


def leave_out(name: str) -> None:
    """Neither prepare nor time this peer in this process."""
    _left_out.add(name)


def is_wanted(name: str) -> bool:
    """Whether this peer was not left out."""
    return name not in _left_out


def arms(peers: Iterable[Peer], inputs: Sequence, case: str) -> dict[str, list]:
    """The calls of each peer on each of ``inputs``, for the peers whose first call works."""
    found = {}
    for name, prepare in peers:
        if name in _left_out:
            continue
        try:
            calls = [prepare(one) for one in inputs]
            calls[0]()
            torch.cuda.synchronize()
        except Exception as error:
            _note(name, case, (str(error).strip() or repr(error)).splitlines()[0][:160])
        else:
            found[name] = calls
    return found


def _note(name: str, case: str, why: str) -> None:
    # A peer that cannot be built fails in each case alike.
    if (name, why) not in _noted:
        _noted.add((name, why))
        print(f"note: {name} on {case}: {why}", file=sys.stderr)


def logits_peers(batch: int, width: int, room: float) -> Iterator[Peer]:
    """(name, prepare) of the logits kernels: the stock function where its temporaries fit ``room`` bytes,
    and those that can be imported. ``prepare(inputs)`` gives the call to time.

    What a peer plans once a step for all layers (DeepGEMM's schedule) is made in ``prepare``.
    """
    if batch * width * STOCK_LOGITS_BYTES < room:
        yield "stock", _stock_logits
    if importlib.util.find_spec("deep_gemm"):
        yield "DeepGEMM", _deep_gemm_logits
    if importlib.util.find_spec("tilelang"):
        yield "TileLang", _tilelang_logits


def _stock_logits(inputs) -> Callable:
    (function,) = indexer_functions("fp8_paged_mqa_logits_torch_sm120")
    return partial(call_stock, function, inputs)


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
    from sglang.srt.layers.attention.dsa.tilelang_kernel import (
        tilelang_fp8_paged_mqa_logits,
    )

    q, kv, weights, lens, table, cap, _ = inputs
    lens = lens.flatten()

    def call():
        return tilelang_fp8_paged_mqa_logits(
            q, kv, weights, lens, table, None, cap, False
        )

    return call


def sglang_topk() -> Iterator[Peer]:
    """SGLang's top-k kernels, for 512 and 1,024: v1, its default on sm_120, and v2, which needs clusters.

    What v2 plans once a step for all layers is made in ``prepare``.
    """
    if importlib.util.find_spec("sglang"):
        yield "v1", _topk_v1
        yield "v2", _topk_v2


def topk_peers(lens: Sequence[int], k: int) -> Iterator[Peer]:
    """SGLang's kernels, and torch.topk for rows of one length: it knows no other."""
    yield from sglang_topk()
    if len(set(lens)) == 1 and lens[0] >= k:
        yield "torch.topk", partial(_torch_topk, lens[0], k)


def _topk_v1(inputs) -> Callable:
    from sglang.jit_kernel.dsv4 import topk_transform_512

    lens = inputs.seq_lens.flatten()

    def call():
        topk_transform_512(
            inputs.scores,
            lens,
            inputs.page_table,
            inputs.out_page_indices,
            inputs.page_size,
        )

    return call


def _topk_v2(inputs) -> Callable:
    from sglang.jit_kernel.dsv4 import plan_topk_v2, topk_transform_512_v2

    lens = inputs.seq_lens.flatten()
    plan = plan_topk_v2(lens)

    def call():
        topk_transform_512_v2(
            inputs.scores,
            lens,
            inputs.page_table,
            inputs.out_page_indices,
            inputs.page_size,
            plan,
        )

    return call


def _torch_topk(length: int, k: int, inputs) -> Callable:
    return partial(torch.topk, inputs.scores[:, :length], k, dim=1)


def stock_attention() -> Iterator[Peer]:
    """The Triton kernel that SGLang runs on sm_120, of the patched tree."""
    yield "stock", _stock_attention


def flash_mla(heads: int) -> Iterator[Peer]:
    """FlashMLA of SGLang's kernels, for the heads that it takes; sm_90 and sm_100."""
    if heads in (64, 128) and importlib.util.find_spec("sgl_kernel"):
        yield "FlashMLA", _flash_mla


def _stock_attention(inputs) -> Callable:
    kernel = _attention_module().flash_mla_sparse_decode_triton
    return partial(kernel, *_as_e4m3(inputs))


# Once: what its autotuner found stays with the module.
@cache
def _attention_module():
    return attention_module("flash_mla_sm120_triton.py")


def _flash_mla(inputs) -> Callable:
    from sgl_kernel import flash_mla

    # What it plans once a step for all layers is made by its first call, here.
    plan, _ = flash_mla.get_mla_metadata()
    inputs = _as_e4m3(inputs)

    def call():
        return flash_mla.flash_mla_with_kvcache(
            inputs.q,
            inputs.k_cache,
            None,
            None,
            inputs.head_dim_v,
            plan,
            softmax_scale=inputs.softmax_scale,
            is_fp8_kvcache=True,
            indices=inputs.indices,
            attn_sink=inputs.attn_sink,
            extra_k_cache=inputs.extra_k_cache,
            extra_indices_in_kvcache=inputs.extra_indices,
            topk_length=inputs.topk_length,
            extra_topk_length=inputs.extra_topk_length,
        )

    call()
    return call


def _as_e4m3(inputs):
    """The caches with the type that SGLang gives them."""
    caches = {
        name: getattr(inputs, name).view(torch.float8_e4m3fn)
        for name in ("k_cache", "extra_k_cache")
        if getattr(inputs, name) is not None
    }
    return inputs._replace(**caches)
