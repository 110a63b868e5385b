"""A server of the tree, patched or not, up to its MoE methods: arguments, draft's checkpoint, runner, method's class."""

from __future__ import annotations

import dataclasses
import importlib
import os
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import sglang_stand_ins
import stock

FP8 = "layers.quantization.fp8"
REAL = (
    "layers.quantization.base_config",
    "layers.moe.utils",
    "configs.model_config",
    "arg_groups.deepseek_v4_hook",
    "arg_groups.speculative_hook",
    "layers.quantization.mxfp4_marlin_moe",
    "server_args",
)
INVENTED = ("transformers",)
HOOK = "python/sglang/srt/layers/sm120/mxfp4_draft_hook.py"

FLAG = "SGLANG_SM120_MXFP4_DRAFT"
MARLIN, PLAIN = "Mxfp4MarlinMoEMethod", "Fp8MoEMethod"
TRTLLM, CUTLASS = "Mxfp4FlashinferTrtllmMoEMethod", "Mxfp4FlashinferCutlassMoEMethod"
NVFP4 = "the method of modelopt_fp4"

# What a checkpoint's config.json says, and whether its experts are packed to 4 bits.
CHECKPOINTS = {
    "mxfp4": ("fp8", True),
    "fp8": ("fp8", False),
    "nvfp4": ("modelopt_fp4", True),
}


class Server:
    """The modules of one process, with ``hook`` in a patched tree; ``start`` gives the arguments as a server
    settles them."""

    def __init__(self, capability: tuple[int, int]):
        self.fp8 = self.module(FP8)
        self.moe = self.module("layers.moe.utils")
        if (stock.tree() / HOOK).is_file():
            self.hook = self.module("layers.sm120.mxfp4_draft_hook")
        self._server_args = self.module("server_args")
        self._model_config = self.module("configs.model_config")
        self._speculative = self.module("arg_groups.speculative_hook")
        for module in (self.fp8, self._server_args):
            module.is_sm90_supported = lambda: capability[0] == 9
            module.is_sm100_supported = lambda: capability[0] == 10
            module.is_sm120_supported = lambda: capability[0] == 12
        self.fp8.cutlass_fp8_supported = lambda: True
        self.fp8.is_layer_skipped = lambda *_args, **_kwargs: False
        self._server_args.parse_connector_type = lambda _path: None
        self._server_args.ConnectorType = SimpleNamespace(INSTANCE="instance")
        self._server_args.get_linear_attn_spec_by_arch = lambda _arch: None
        self.fp8.log_info_on_rank0 = lambda *_args: None
        for module in (self._server_args, self._model_config):
            module.is_hip = lambda: False
        self._model_config.QUANTIZATION_METHODS = {
            "fp8": self.fp8.Fp8Config,
            "modelopt_fp4": self.fp8.Fp8Config,
        }

    @staticmethod
    def module(name: str):
        """A module of this process; its name without ``sglang.srt.``."""
        return importlib.import_module(f"sglang.srt.{name}")

    def start(self, target: str, **options):
        """Upstream's ServerArgs after its DeepSeek-V4 branch and its speculative one, in their order."""
        args = object.__new__(self._server_args.ServerArgs)
        for field in dataclasses.fields(args):
            if field.default_factory is not dataclasses.MISSING:
                setattr(args, field.name, field.default_factory())
            elif field.default is not dataclasses.MISSING:
                setattr(args, field.name, field.default)
        for name, value in (dict(model_path=target) | options).items():
            setattr(args, name, value)
        config = SimpleNamespace(architectures=["DeepseekV4ForCausalLM"])
        args.get_model_config = lambda: SimpleNamespace(hf_config=config)
        if args.speculative_draft_model_quantization is None:
            args.speculative_draft_model_quantization = args.quantization
        with mock.patch.object(
            self._model_config.ModelConfig, "from_server_args", self.draft_config
        ):
            args._handle_model_specific_adjustments()
        if args.speculative_algorithm is not None:
            self._speculative.handle_speculative_decoding(args)
        self.moe.initialize_moe_config(args)
        return args

    def draft_config(self, args, model_path, model_revision, is_draft_model):
        """A draft's ModelConfig: its quantization by upstream's own rule, its experts as they are stored."""
        method, packed = CHECKPOINTS[model_path]
        config = object.__new__(self._model_config.ModelConfig)
        config.is_draft_model = is_draft_model
        config.quantization = args.speculative_draft_model_quantization
        config._parse_quant_hf_config = lambda: {"quant_method": method}
        config._verify_quantization()
        config.is_fp4_experts = packed
        return config

    def draft_method(self, args) -> str:
        """The class of the method that the draft layer's experts get."""
        path = args.speculative_draft_model_path or args.model_path
        config = self.draft_config(args, path, None, True)
        with (
            self.moe.speculative_moe_backend_context(),
            self.moe.speculative_moe_a2a_backend_context(),
        ):
            return self._method(config, "model.decoder.mlp.experts")

    def target_method(self, args) -> str:
        """The class of the method that a layer's experts get in the target."""
        method, packed = CHECKPOINTS[args.model_path]
        config = SimpleNamespace(quantization=method, is_fp4_experts=packed)
        return self._method(config, "model.layers.3.mlp.experts")

    def _method(self, config, prefix: str) -> str:
        if config.quantization != "fp8":
            return f"the method of {config.quantization}"
        quantization = self.fp8.Fp8Config(
            is_checkpoint_fp8_serialized=True,
            activation_scheme="dynamic",
            weight_block_size=[128, 128],
        )
        quantization.is_fp4_experts = config.is_fp4_experts
        experts = self.module("layers.moe.fused_moe_triton").FusedMoE
        layer = type("Layer", (experts,), {})()
        return type(quantization.get_quant_method(layer, prefix)).__name__


@contextmanager
def process(capability: tuple[int, int], **environment: str):
    """A process on a card of this capability with these SGLang variables and no others."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    # Other hooks have tests of their own, and these ask for a compiler.
    clean |= {f"SGLANG_SM120_{name}": "off" for name in ("TOPK", "DECODE", "HC_PRE")}
    given = {
        f"utils.common.is_sm{sm}_supported": lambda major=major: capability[0] == major
        for sm, major in ((90, 9), (100, 10), (120, 12))
    }
    given["layers.deep_gemm_wrapper"] = SimpleNamespace(DEEPGEMM_SCALE_UE8M0=False)
    # Asked whether the draft is Gemma's.
    given["utils.hf_transformers_utils.get_config"] = lambda *_args, **_kwargs: None
    given["speculative.spec_info.SpeculativeAlgorithm"] = SimpleNamespace(
        from_string=lambda name: name
    )
    for trtllm in ("trtllm", "cutlass"):
        name = f"Mxfp4Flashinfer{trtllm.capitalize()}MoEMethod"
        given[f"layers.quantization.mxfp4_flashinfer_{trtllm}_moe.{name}"] = type(
            name, (), {"__init__": lambda self, _fp8, prefix: None}
        )
    with (
        mock.patch.dict(os.environ, clean | environment, clear=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_capability", return_value=capability),
        sglang_stand_ins.imported(FP8, real=REAL, invented=INVENTED, given=given),
    ):
        yield Server(capability)
