"""transformers' names of DeepSeek-V4's tensors -> the official ones, and the checkpoint folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from .folder import save_rest
from .geometry import Geometry
from .tensors import Tensor, tensors

_WHOLE = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
}
# In this order: the indexer's compressor stands inside the layer's own.
_STEPS = (
    (r"^model\.hc_head\.hc_", "hc_head_"),
    (r"^model\.layers\.", "layers."),
    (r"\.(attn|ffn)_hc\.(fn|base|scale)$", r".hc_\1_\2"),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (
        r"\.self_attn\.compressor\.indexer\.(q_b_proj|weights_proj)\.",
        r".attn.indexer.\1.",
    ),
    (r"\.self_attn\.compressor\.indexer\.", ".attn.indexer.compressor."),
    (r"\.self_attn\.", ".attn."),
    (r"\.compressor\.kv_proj\.", ".compressor.wkv."),
    (r"\.compressor\.gate_proj\.", ".compressor.wgate."),
    (r"\.compressor\.kv_norm\.", ".compressor.norm."),
    (r"\.position_bias$", ".ape"),
    (r"\.sinks$", ".attn_sink"),
    (r"\.q_a_proj\.", ".wq_a."),
    (r"\.q_a_norm\.", ".q_norm."),
    (r"\.q_b_proj\.", ".wq_b."),
    (r"\.attn\.kv_proj\.", ".attn.wkv."),
    (r"\.o_a_proj\.", ".wo_a."),
    (r"\.o_b_proj\.", ".wo_b."),
    (r"\.mlp\.", ".ffn."),
    (r"\.gate\.e_score_correction_bias$", ".gate.bias"),
    (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."),
    (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
    (r"\.shared_experts\.up_proj\.", ".shared_experts.w3."),
)


def official(
    state: Mapping[str, torch.Tensor], geometry: Geometry
) -> dict[str, torch.Tensor]:
    """The checkpoint of a transformers model's state, in the official types.

    Raises ValueError when its names or shapes are not those of the geometry.
    """
    found = dict(_named(state, geometry.expert_width))
    wanted = {each.name: each for each in tensors(geometry)}
    if found.keys() != wanted.keys():
        odd = sorted(found.keys() ^ wanted.keys())
        raise ValueError(f"{len(odd)} tensors too many or missing, such as {odd[0]}")
    made = {}
    for name, each in wanted.items():
        if tuple(found[name].shape) != each.shape:
            raise ValueError(
                f"{name}: expected {each.shape}, got {tuple(found[name].shape)}"
            )
        made[name] = found[name].detach().cpu().to(_kind(each)).contiguous().clone()
    return made


def _kind(tensor: Tensor) -> torch.dtype:
    if tensor.int32:
        return torch.int32
    return torch.float32 if tensor.float32 else torch.bfloat16


def save(
    checkpoint: Mapping[str, torch.Tensor], geometry: Geometry, directory: Path
) -> None:
    """Write a folder that SGLang and transformers load."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "model.safetensors"
    save_file(dict(checkpoint), str(file), metadata={"format": "pt"})
    save_rest(geometry, directory)


def without_unused_experts(
    checkpoint: Mapping[str, torch.Tensor], used: list[set[int]]
) -> dict[str, torch.Tensor]:
    """The checkpoint with zeros for experts that never ran: it answers the same, and packs smaller."""
    made = {}
    for name, tensor in checkpoint.items():
        found = re.fullmatch(r"layers\.(\d+)\.ffn\.experts\.(\d+)\..*", name)
        unused = found and int(found[2]) not in used[int(found[1])]
        made[name] = torch.zeros_like(tensor) if unused else tensor
    return made


def _named(
    state: Mapping[str, torch.Tensor], width: int
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in state.items():
        if "inv_freq" in name:
            continue
        if ".experts." not in name:
            yield _official_name(name), tensor
            continue
        layer = name.split(".")[2]
        for expert in range(tensor.shape[0]):
            prefix = f"layers.{layer}.ffn.experts.{expert}"
            if name.endswith("down_proj"):
                yield f"{prefix}.w2.weight", tensor[expert]
            else:
                yield f"{prefix}.w1.weight", tensor[expert, :width]
                yield f"{prefix}.w3.weight", tensor[expert, width:]


def _official_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    for pattern, replacement in _STEPS:
        name = re.sub(pattern, replacement, name)
    return name
