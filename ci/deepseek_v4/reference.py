"""transformers' own DeepSeek-V4 as the reference: loading, and greedy answers with their gaps.

Needs torch and transformers 5.8.1.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as upstream
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

from . import blocks
from .geometry import Geometry
from .tokenizer import EOS_ID, decode, encode

VERSION = "5.8.1"
_LAYERS = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}


@dataclass(frozen=True)
class Greedy:
    """A greedy answer: its tokens with EOS, and best minus second-best log-probability of each."""

    text: str
    ids: tuple[int, ...]
    gaps: tuple[float, ...]


def hf_config(geometry: Geometry) -> DeepseekV4Config:
    """The geometry as transformers takes it."""
    yarn = {
        "rope_type": "yarn",
        "factor": float(geometry.context // geometry.original_context),
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": geometry.original_context,
    }
    return DeepseekV4Config(
        vocab_size=geometry.vocabulary,
        hidden_size=geometry.hidden,
        moe_intermediate_size=geometry.expert_width,
        num_hidden_layers=len(geometry.ratios),
        num_attention_heads=geometry.heads,
        head_dim=512,
        q_lora_rank=geometry.q_lora,
        num_experts_per_tok=6,
        n_routed_experts=256,
        o_groups=8,
        o_lora_rank=geometry.o_lora,
        index_n_heads=64,
        index_head_dim=128,
        index_topk=512,
        layer_types=[_LAYERS[ratio] for ratio in geometry.ratios],
        mlp_layer_types=[
            "hash_moe" if layer < geometry.hash_layers else "moe"
            for layer in range(len(geometry.ratios))
        ],
        max_position_embeddings=geometry.context,
        sliding_window=128,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        routed_scaling_factor=1.5,
        swiglu_limit=10.0,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        rope_parameters=yarn,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=0.02,
        attn_implementation="eager",
    )


def load(directory: Path, dtype: torch.dtype = torch.bfloat16):
    """The model of an exported checkpoint, through transformers' own map of the official names."""
    compute_fast()
    model = upstream.DeepseekV4ForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    ).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            # 5.8.1 keeps these in float32, and F.linear then meets two types.
            parameter.data = parameter.data.to(dtype)
    return model


def compute_fast() -> None:
    """The same sums with all experts as one matrix, masked by the routing weights, and attention in blocks."""
    blocks.attend_in_blocks()
    upstream.DeepseekV4Experts.forward = _dense_experts


def _dense_experts(self, hidden_states, top_k_index, top_k_weights):
    rows = hidden_states.shape[0]
    experts, double_width, hidden = self.gate_up_proj.shape
    matrix = self.gate_up_proj.reshape(experts * double_width, hidden)
    gated = self._apply_gate(
        F.linear(hidden_states, matrix).view(rows, experts, double_width)
    )
    weights = gated.new_zeros(rows, experts)
    weights = weights.scatter(1, top_k_index, top_k_weights.to(gated.dtype))
    down = self.down_proj.permute(0, 2, 1).reshape(-1, hidden).to(gated.dtype)
    mixed = (gated * weights.unsqueeze(-1)).reshape(rows, -1) @ down
    return mixed.to(hidden_states.dtype)


@torch.no_grad()
def answers_greedily(model, prompt: str, answer: str) -> Greedy | None:
    """The greedy answer to a prompt, if it is the expected one; None if it is another.

    One pass over prompt and answer together: greedy decoding would follow it token by token.
    """
    before, after = encode(prompt), [*encode(answer), EOS_ID]
    ids = torch.tensor([before + after], device=model.device)
    count = len(after)
    logits = blocks.last_logits(model, ids, count + 1)
    scores = logits[0, :-1].float().log_softmax(-1)
    if scores.argmax(-1).tolist() != after:
        return None
    best = scores.topk(2).values
    gaps = tuple(round(gap, 4) for gap in (best[:, 0] - best[:, 1]).tolist())
    return Greedy(decode(after), tuple(after), gaps)


@contextmanager
def experts_counted(model):
    """Collects the experts that run, a set for each layer, while the context lasts."""
    used: list[set[int]] = [set() for _ in model.model.layers]
    numbers = {layer.mlp.experts: i for i, layer in enumerate(model.model.layers)}
    forward = upstream.DeepseekV4Experts.forward

    def counting(self, hidden_states, top_k_index, top_k_weights):
        used[numbers[self]].update(top_k_index.flatten().tolist())
        return forward(self, hidden_states, top_k_index, top_k_weights)

    upstream.DeepseekV4Experts.forward = counting
    try:
        yield used
    finally:
        upstream.DeepseekV4Experts.forward = forward
