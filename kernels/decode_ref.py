"""Reference of the sparse MLA attention: float64, row by row, written from the contract and the caches' layout."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch


class Attention(NamedTuple):
    """out float64 [B, 1, H, 512]; lse float64 [B, H, 1]; magnitude [B, 1, H, 512]: sums of absolute terms."""

    out: torch.Tensor
    lse: torch.Tensor
    magnitude: torch.Tensor


def sparse_mla_decode_ref(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: Optional[torch.Tensor],
    attn_sink: Optional[torch.Tensor],
    head_dim_v: int,
    softmax_scale: Optional[float],
    extra_k_cache: Optional[torch.Tensor] = None,
    extra_indices: Optional[torch.Tensor] = None,
    extra_topk_length: Optional[torch.Tensor] = None,
) -> Attention:
    """Attention of each row to the keys that count: column below the length, index not negative."""
    batch, _, heads, dims = q.shape
    scale = dims**-0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros(batch, 1, heads, dims, dtype=torch.float64, device=q.device)
    magnitude = torch.zeros_like(out)
    lse = torch.full(
        (batch, heads, 1), float("-inf"), dtype=torch.float64, device=q.device
    )
    for row in range(batch):
        keys = [_keys(k_cache, indices[row], topk_length, row)]
        if extra_k_cache is not None:
            keys.append(
                _keys(extra_k_cache, extra_indices[row], extra_topk_length, row)
            )
        keys = torch.cat(keys)
        if not len(keys):
            continue
        scores = q[row, 0].double() @ keys.T * scale
        total = torch.logsumexp(scores, 1)
        lse[row, :, 0] = total
        if attn_sink is not None:
            total = torch.logaddexp(total, attn_sink.double())
        weights = torch.exp(scores - total[:, None])
        out[row, 0] = weights @ keys
        magnitude[row, 0] = weights @ keys.abs()
    return Attention(out, lse, magnitude)


def _keys(cache, indices, lengths, row) -> torch.Tensor:
    """The keys of one row in one cache, float64 [n, 512]."""
    indices = indices.reshape(-1)
    if lengths is not None:
        indices = indices[: max(0, int(lengths[row]))]
    indices = indices[indices >= 0].long()
    pages, page = cache.shape[:2]
    stride = cache.stride(0)
    flat = cache.view(torch.uint8).as_strided((pages, page * 584), (stride, 1))
    page_of, slot = indices // page, indices % page
    columns = torch.arange(576, device=cache.device)
    data = flat[page_of[:, None], slot[:, None] * 576 + columns]
    columns = torch.arange(7, device=cache.device)
    exponents = flat[page_of[:, None], page * 576 + slot[:, None] * 8 + columns]
    scales = torch.exp2(exponents.double() - 127).repeat_interleave(64, 1)
    quantised = data[:, :448].contiguous().view(torch.float8_e4m3fn).double() * scales
    rope = data[:, 448:].contiguous().view(torch.bfloat16).double()
    return torch.cat([quantised, rope], 1)
