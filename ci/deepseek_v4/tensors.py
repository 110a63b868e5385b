"""The tensors of a DeepSeek-V4 checkpoint: official names, shapes and types, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .geometry import HC, Geometry

EXPERTS = 256
CHOSEN = 6
_FLOAT32 = re.compile(r"hc_|attn_sink|\.ape$|gate\.bias$")


@dataclass(frozen=True)
class Tensor:
    """One tensor: bfloat16, float32 where the checkpoint keeps more, or int32 for numbers of experts."""

    name: str
    shape: tuple[int, ...]

    @property
    def float32(self) -> bool:
        return bool(_FLOAT32.search(self.name))

    @property
    def int32(self) -> bool:
        return self.name.endswith(".tid2eid")

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        return self.elements * (4 if self.float32 or self.int32 else 2)


def tensors(geometry: Geometry) -> Iterator[Tensor]:
    """Every tensor of a model of this geometry."""
    hidden, vocabulary = geometry.hidden, geometry.vocabulary
    yield Tensor("embed.weight", (vocabulary, hidden))
    for layer, ratio in enumerate(geometry.ratios):
        for name, shape in _layer(geometry, ratio, layer < geometry.hash_layers):
            yield Tensor(f"layers.{layer}.{name}", shape)
    yield Tensor("norm.weight", (hidden,))
    yield from (Tensor(f"hc_head_{n}", s) for n, s in _mixing(hidden, HC, 1))
    yield Tensor("head.weight", (vocabulary, hidden))


def _layer(
    geometry: Geometry, ratio: int, by_token: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, groups = geometry.hidden, geometry.heads, 8
    yield "attn_norm.weight", (hidden,)
    yield "attn.wq_a.weight", (geometry.q_lora, hidden)
    yield "attn.q_norm.weight", (geometry.q_lora,)
    yield "attn.wq_b.weight", (heads * 512, geometry.q_lora)
    yield "attn.wkv.weight", (512, hidden)
    yield "attn.kv_norm.weight", (512,)
    yield "attn.attn_sink", (heads,)
    yield "attn.wo_a.weight", (groups * geometry.o_lora, heads * 512 // groups)
    yield "attn.wo_b.weight", (hidden, groups * geometry.o_lora)
    if ratio:
        yield from _compressor("attn.compressor", hidden, ratio, 512)
    if ratio == 4:
        yield "attn.indexer.wq_b.weight", (64 * 128, geometry.q_lora)
        yield "attn.indexer.weights_proj.weight", (64, hidden)
        yield from _compressor("attn.indexer.compressor", hidden, ratio, 128)
    yield "ffn_norm.weight", (hidden,)
    yield "ffn.gate.weight", (EXPERTS, hidden)
    if by_token:
        yield "ffn.gate.tid2eid", (geometry.vocabulary, CHOSEN)
    else:
        yield "ffn.gate.bias", (EXPERTS,)
    for expert in ("shared_experts", *(f"experts.{e}" for e in range(EXPERTS))):
        yield f"ffn.{expert}.w1.weight", (geometry.expert_width, hidden)
        yield f"ffn.{expert}.w2.weight", (hidden, geometry.expert_width)
        yield f"ffn.{expert}.w3.weight", (geometry.expert_width, hidden)
    for part in ("attn", "ffn"):
        for name, shape in _mixing(hidden, (2 + HC) * HC, 3):
            yield f"hc_{part}_{name}", shape


def _compressor(
    prefix: str, hidden: int, ratio: int, width: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    # Windows of 4 overlap: a second half looks back.
    wide = 2 * width if ratio == 4 else width
    yield f"{prefix}.wkv.weight", (wide, hidden)
    yield f"{prefix}.wgate.weight", (wide, hidden)
    yield f"{prefix}.ape", (ratio, wide)
    yield f"{prefix}.norm.weight", (width,)


def _mixing(
    hidden: int, outputs: int, scales: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "fn", (outputs, HC * hidden)
    yield "base", (outputs,)
    yield "scale", (scales,)
