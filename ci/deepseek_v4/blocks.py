"""transformers' DeepSeek-V4 with its attention in blocks: prompts of 30,000 tokens fit into memory.

The same sums as upstream's eager attention, which needs a square of the prompt's length for each head. The
last layer, whose outputs nothing but the head reads, may answer for the last tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as upstream

_ROWS = 512


@dataclass
class Seen:
    """What the last layer showed, a tensor for each block of rows.

    scores: of the indexer, -inf for entries that a row does not see. attention: weights of the entries.
    """

    scores: list[torch.Tensor] = field(default_factory=list)
    attention: list[torch.Tensor] = field(default_factory=list)


def attend_in_blocks() -> None:
    """From now on every model of transformers' DeepSeek-V4 runs so, without a cache of past tokens."""
    upstream.create_sliding_window_causal_mask = lambda **_: None
    upstream.DeepseekV4Attention.forward = _attention
    upstream.DeepseekV4DecoderLayer.forward = _layer


def last_logits(
    model, ids: torch.Tensor, count: int, seen: Seen | None = None
) -> torch.Tensor:
    """The logits of the last `count` tokens, [rows, count, vocabulary]; seen takes what its layer shows."""
    last = model.model.layers[-1].self_attn
    last.answered, last.seen = count, seen
    try:
        return model(input_ids=ids, use_cache=False).logits
    finally:
        last.answered = last.seen = None


def _layer(self, hidden_states, input_ids, **options):
    dtype = hidden_states.dtype
    post, comb, collapsed = self.attn_hc(hidden_states)
    output, _ = self.self_attn(self.input_layernorm(collapsed), **options)
    first = hidden_states.shape[1] - output.shape[1]
    mixed = torch.matmul(
        comb[:, first:].to(dtype).transpose(-1, -2), hidden_states[:, first:]
    )
    hidden_states = (
        post[:, first:].to(dtype).unsqueeze(-1) * output.unsqueeze(-2) + mixed
    )
    post, comb, collapsed = self.ffn_hc(hidden_states)
    output = self.mlp(
        self.post_attention_layernorm(collapsed), input_ids=input_ids[:, first:]
    )
    mixed = torch.matmul(comb.to(dtype).transpose(-1, -2), hidden_states)
    return post.to(dtype).unsqueeze(-1) * output.unsqueeze(-2) + mixed


def _attention(self, hidden_states, position_embeddings, position_ids, **_):
    rows, length, _ = hidden_states.shape
    first = length - (getattr(self, "answered", None) or length)
    cos, sin = position_embeddings[self.rope_layer_type]
    asking = hidden_states[:, first:]
    residual = self.q_a_norm(self.q_a_proj(asking))
    queries = self.q_b_proj(residual).view(rows, length - first, -1, self.head_dim)
    queries = upstream.apply_rotary_pos_emb(
        self.q_b_norm(queries.transpose(1, 2)), cos[:, first:], sin[:, first:]
    )
    window = self.kv_norm(self.kv_proj(hidden_states)).unsqueeze(1)
    window = upstream.apply_rotary_pos_emb(window, cos, sin)
    visible = _Visible(self, hidden_states, asking, residual, position_ids)
    outputs = []
    for start in range(first, length, _ROWS):
        end = min(start + _ROWS, length)
        oldest = max(0, start - self.sliding_window + 1)
        here = queries[:, :, start - first : end - first]
        near = _near(start, end, oldest, self.sliding_window, here)
        far = visible.bias(start - first, end - first)
        keys = torch.cat([window[:, :, oldest:end], visible.entries], dim=2)
        mask = torch.cat([near.expand(rows, 1, -1, -1), far], dim=-1)
        output, weights = _attended(self, here, keys, mask)
        if visible.seen is not None:
            visible.seen.attention.append(weights[..., end - oldest :])
        outputs.append(output)
    output = upstream.apply_rotary_pos_emb(
        torch.cat(outputs, dim=2), cos[:, first:], -sin[:, first:]
    ).transpose(1, 2)
    grouped = output.reshape(rows, length - first, self.config.o_groups, -1)
    return self.o_b_proj(self.o_a_proj(grouped).flatten(2)), None


def _near(start, end, oldest, window, like):
    row = torch.arange(start, end, device=like.device)[:, None]
    key = torch.arange(oldest, end, device=like.device)[None, :]
    seen = (key <= row) & (key > row - window)
    return torch.zeros_like(seen, dtype=like.dtype).masked_fill(~seen, float("-inf"))


def _attended(attention, queries, keys, mask):
    logits = torch.matmul(queries, keys.transpose(2, 3)) * attention.scaling + mask
    sinks = attention.sinks.view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    weights = torch.cat([logits, sinks.to(logits.dtype)], dim=-1).softmax(-1)[..., :-1]
    return torch.matmul(weights, keys), weights


class _Visible:
    """The compressed entries of a layer, and which of them a block of rows sees."""

    def __init__(self, attention, hidden_states, asking, residual, position_ids):
        self.seen = getattr(attention, "seen", None)
        self._compressor = attention.compressor
        self._rows, self._like = hidden_states.shape[0], hidden_states
        if self._compressor is None:
            self.entries = hidden_states.new_zeros(self._rows, 1, 0, attention.head_dim)
            return
        self._positions = position_ids[:, -asking.shape[1] :]
        self._selects = hasattr(self._compressor, "indexer")
        if not self._selects:
            self.entries, _ = self._compressor(
                hidden_states, None, position_ids[:, :1], None, attention.layer_idx
            )
            return
        self.entries = _overlapping(self._compressor, hidden_states).unsqueeze(1)
        indexer = self._compressor.indexer
        self._keys = _overlapping(indexer, hidden_states)
        cos, sin = indexer.rotary_emb(
            asking, position_ids=self._positions, layer_type=indexer.rope_layer_type
        )
        queries = indexer.q_b_proj(residual)
        queries = queries.view(*residual.shape[:2], -1, indexer.head_dim)
        queries = upstream.apply_rotary_pos_emb(queries.transpose(1, 2), cos, sin)
        self._queries = queries.transpose(1, 2)
        self._weights = (
            indexer.weights_proj(asking).float() * indexer.weights_scaling
        ).unsqueeze(2)

    def bias(self, start: int, end: int) -> torch.Tensor:
        """0 for an entry that is seen and -inf for another, [rows, 1, end - start, entries]."""
        count = self.entries.shape[2]
        if count == 0:
            return self._like.new_zeros(self._rows, 1, end - start, 0)
        complete = (self._positions[:, start:end] + 1) // self._compressor.compress_rate
        entry = torch.arange(count, device=complete.device)
        future = entry >= complete.unsqueeze(-1)
        if not self._selects:
            seen = ~future.expand(self._rows, -1, -1)
        else:
            scores = self._scores(start, end).masked_fill(future, float("-inf"))
            if self.seen is not None:
                self.seen.scores.append(scores)
            best = scores.topk(
                min(self._compressor.indexer.index_topk, count), dim=-1
            ).indices
            seen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
            seen &= ~future
        bias = torch.zeros_like(seen, dtype=self._like.dtype)
        return bias.masked_fill(~seen, float("-inf")).unsqueeze(1)

    def _scores(self, start: int, end: int) -> torch.Tensor:
        keys = self._keys.float().transpose(-1, -2).unsqueeze(1)
        products = torch.matmul(self._queries[:, start:end].float(), keys)
        positive = F.relu(products) * self._compressor.indexer.softmax_scale
        return torch.matmul(self._weights[:, start:end], positive).squeeze(2)


def _overlapping(compressor, hidden_states):
    """The entries of a compressor whose windows of 4 tokens reach back into the one before."""
    rows, ratio, width = (
        hidden_states.shape[0],
        compressor.compress_rate,
        compressor.head_dim,
    )
    count = hidden_states.shape[1] // ratio
    if count == 0:
        return hidden_states.new_zeros(rows, 0, width)
    values = compressor.kv_proj(hidden_states)[:, : count * ratio]
    gates = compressor.gate_proj(hidden_states)[:, : count * ratio]
    values = values.view(rows, count, ratio, -1)
    gates = gates.view(rows, count, ratio, -1) + compressor.position_bias.to(
        gates.dtype
    )
    values = _with_window_before(values, width, 0.0)
    gates = _with_window_before(gates, width, float("-inf"))
    shares = gates.softmax(dim=2, dtype=torch.float32).to(values.dtype)
    made = compressor.kv_norm((values * shares).sum(dim=2))
    positions = torch.arange(count, device=made.device)[None, :] * ratio
    cos, sin = compressor.rotary_emb(
        made,
        position_ids=positions.expand(rows, -1),
        layer_type=compressor.rope_layer_type,
    )
    return upstream.apply_rotary_pos_emb(made.unsqueeze(1), cos, sin).squeeze(1)


def _with_window_before(series, width, first):
    before = F.pad(series[:, :-1, :, :width], (0, 0, 0, 0, 1, 0), value=first)
    return torch.cat([before, series[..., width:]], dim=2)
