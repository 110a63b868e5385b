"""The shape of a DeepSeek-V4 model, and its config.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

HC = 4
LAYERS = 43
# kMaxVecBytes of SGLang's kernels is 32 from Blackwell on: 16 numbers in bfloat16.
_STEP = 16


@dataclass(frozen=True)
class Geometry:
    """What may differ between a test model and DeepSeek-V4-Flash.

    The rest is fixed: heads of 448 + 64, an indexer of 64 heads of 128 that keeps 512 entries, a window
    of 128, 256 experts of which 6 run and one shared, 4 hyper-connection streams. SGLang's kernels
    take nothing else (its fused gate reads uninitialised memory below 225 experts).

    Attributes:
        ratios: one for each layer: 0 (window only), 4 or 128 (tokens in a compressed entry).
        original_context, context: of YaRN and in all.
        note: what the weights are; it stands in config.json.
        hash_layers: so many first layers choose experts by a table of tokens, the others by a learned gate.
    """

    hidden: int
    expert_width: int
    heads: int
    q_lora: int
    o_lora: int
    vocabulary: int
    ratios: tuple[int, ...]
    original_context: int
    context: int
    note: str
    hash_layers: int = 0

    def config(self) -> dict:
        """config.json as SGLang reads it."""
        yarn = {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": self.context // self.original_context,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": self.original_context,
        }
        return {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "torch_dtype": "bfloat16",
            "sm120_weights": self.note,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "head_dim": 512,
            "num_attention_heads": self.heads,
            "num_key_value_heads": 1,
            "q_lora_rank": self.q_lora,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 448,
            "v_head_dim": 512,
            "kv_lora_rank": 512,
            "o_groups": 8,
            "o_lora_rank": self.o_lora,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 512,
            "sliding_window": 128,
            "window_size": 128,
            "num_hidden_layers": len(self.ratios),
            "compress_ratios": list(self.ratios),
            "compress_rope_theta": 160000,
            "rope_theta": 10000,
            "rope_scaling": yarn,
            "max_position_embeddings": self.context,
            "intermediate_size": self.expert_width,
            "moe_intermediate_size": self.expert_width,
            "moe_layer_freq": 1,
            "first_k_dense_replace": 0,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "scoring_func": "sqrtsoftplus",
            "swiglu_limit": 10.0,
            "num_hash_layers": self.hash_layers,
            "num_nextn_predict_layers": 0,
            "hc_mult": HC,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "vocab_size": self.vocabulary,
            "use_cache": True,
            "initializer_range": 0.02,
        }

    def what(self) -> str:
        """One phrase for a person."""
        return (
            f"{len(self.ratios)} layers, hidden {self.hidden}, {self.heads} heads, "
            f"256 experts of {self.expert_width}"
        )

    def as_json(self) -> dict:
        """The geometry itself."""
        return asdict(self)


# The trained test model. c4 comes last, so that a needle must come through its entries, and c128
# first, so that no layer after the mixing offers a way around it. No layer has a learned gate: a
# step of rounding would turn its choice somewhere, and move gaps by more than most faults do.
SMOKE = Geometry(
    hidden=128,
    expert_width=16,
    heads=16,
    q_lora=128,
    o_lora=32,
    vocabulary=320,
    ratios=(128, 0, 4),
    original_context=32_768,
    context=131_072,
    note="trained test model: 72 products and codes in filler text",
    hash_layers=3,
)

# A layer of DeepSeek-V4-Flash.
FLASH = Geometry(
    hidden=4096,
    expert_width=2048,
    heads=64,
    q_lora=1024,
    o_lora=1024,
    vocabulary=129_280,
    ratios=(),
    original_context=65_536,
    context=1_048_576,
    note="random",
)

# The real kernels' shapes with a small rest: 2.2 GB in bf16.
TINY = replace(
    FLASH,
    hidden=1024,
    expert_width=256,
    o_lora=256,
    vocabulary=8192,
    ratios=(0, 4, 128, 4),
    context=262_144,
)


def flash_slice(layers: int, expert_width: int | None = None) -> Geometry:
    """So many layers of Flash: one of its window-only layers, then c4 and c128 by turns, as in Flash.

    expert_width other than 2,048 makes the experts narrower; 512 in bf16 are about the bytes that
    Flash's 2,048 are in MXFP4. Raises ValueError below 3 layers, which would leave a kind out, above
    Flash's own, and for a width that SGLang can't run.
    """
    if not 3 <= layers <= LAYERS:
        raise ValueError(
            f"a slice has 3 layers, one of each kind, to {LAYERS}, as many as Flash; not {layers}"
        )
    width = FLASH.expert_width if expert_width is None else expert_width
    if width % _STEP or not _STEP <= width <= FLASH.expert_width:
        raise ValueError(
            f"experts are {_STEP} to {FLASH.expert_width:,} wide, in steps of {_STEP}: SGLang's "
            f"activation kernel takes so many at a time; not {width}"
        )
    ratios = (0, *((4, 128)[i % 2] for i in range(layers - 1)))
    return replace(FLASH, ratios=ratios, expert_width=width)
