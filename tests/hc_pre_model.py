"""The DeepSeek-V4 model of a tree and its NextN layer on the CPU, made by their own constructors.

Real: both model files, so the stages, the layers with their hc_pre and hc_post, and what a stage hands on.
Made up, as torch modules of a few lines: attention, experts, norms, linears and the embedding. Upstream's
TileLang kernels for the Sinkhorn steps and hc_post are the reference and upstream's own torch path; our two
kernels run emulated and interpreted.
"""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import cuda_on_cpu
import sglang_stand_ins
import stock
from kernels.hc_pre import plan
from kernels.hc_pre_ref import hc_split_sinkhorn_ref

NEXTN, MODEL = "models.deepseek_v4_nextn", "models.deepseek_v4"
BATCH_INFO = "python/sglang/srt/model_executor/forward_batch_info.py"
HC, DIM, VOCABULARY = 4, 256, 50

CONFIG = SimpleNamespace(
    vocab_size=VOCABULARY,
    hidden_size=DIM,
    rms_norm_eps=1e-6,
    hc_eps=1e-6,
    hc_mult=HC,
    hc_sinkhorn_iters=20,
)

# What a server on sm_120 sets at start, and upstream's torch path for the kernel that needs a GPU.
SERVER = {
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "False",
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM": "False",
    "SGLANG_OPT_USE_TILELANG_MHC_POST": "False",
}


class Embedding(nn.Embedding):
    def __init__(self, count, dim, **_options):
        super().__init__(count, dim, dtype=torch.bfloat16)


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(dim, dtype=torch.bfloat16))

    def forward(self, x):
        scale = (
            x.float().square().mean(-1, keepdim=True) + self.variance_epsilon
        ).rsqrt()
        return (x.float() * scale).bfloat16() * self.weight


class Linear(nn.Linear):
    def __init__(self, inputs, outputs, **_options):
        super().__init__(inputs, outputs, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return super().forward(x), None


class Block(nn.Module):
    """In place of attention and of experts: a function of each token alone."""

    def __init__(self, **_options):
        super().__init__()
        self.proj = Linear(DIM, DIM)

    def forward(self, hidden_states=None, *_batch, x=None, **_options):
        return torch.tanh(self.proj(hidden_states if x is None else x)[0])


class Stage(NamedTuple):
    """Of a pipeline: which of how many."""

    rank: int = 0
    size: int = 1


class Model:
    """The classes of one tree; ``mixes`` and ``launches`` list what hc_pre made since the last ``clear``."""

    def __init__(self, nextn, model):
        self._nextn, self._model = nextn, model
        self.mixes: list[torch.Tensor] = []
        self.launches: list[str] = []

    def draft(self, seed: int) -> nn.Module:
        """The NextN model."""
        return drawn(self._nextn.DeepseekV4ModelNextN(CONFIG), seed)

    def stage(self, stage: Stage, seed: int, layers: int) -> nn.Module:
        """The model's part of this stage, with the weights that it has in each division."""
        self._model.get_pp_group = lambda: SimpleNamespace(
            rank_in_group=stage.rank,
            world_size=stage.size,
            is_first_rank=stage.rank == 0,
            is_last_rank=stage.rank == stage.size - 1,
        )
        config = SimpleNamespace(**vars(CONFIG), num_hidden_layers=layers)
        return drawn(self._model.DeepseekV4Model(config), seed)

    def proxy(self, state: torch.Tensor):
        """A state as the next stage receives it: the first rows of the runner's buffer."""
        buffer = torch.zeros(len(state) + 3, HC * DIM, dtype=torch.bfloat16)
        buffer[: len(state)].copy_(state)
        return self._model.PPProxyTensors({"hidden_states": buffer[: len(state)]})

    def clear(self) -> None:
        self.mixes.clear()
        self.launches.clear()


def drawn(model: nn.Module, seed: int) -> nn.Module:
    """``model`` with its weights drawn, each from its name."""
    for name, weight in model.named_parameters():
        gen = torch.Generator().manual_seed(seed + sum(map(ord, name)) * 1_000_003)
        size = 1.0 if weight.dim() < 2 or "embed" in name else weight.shape[1] ** -0.5
        weight.data.copy_(torch.randn(weight.shape, generator=gen) * size)
    return model


@contextmanager
def imported(tree: Path, **environment: str):
    """The model of ``tree``, patched or not, in a process on an sm_120 card with these SGLang variables."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    clean |= SERVER | environment | {"PATCHSET_TREE": str(tree)}
    made = dict(
        VocabParallelEmbedding=("layers.vocab_parallel_embedding", Embedding),
        RMSNorm=("layers.layernorm", Norm),
        ReplicatedLinear=("layers.linear", Linear),
        DeepseekV2MoE=("models.deepseek_v2", Block),
        PPMissingLayer=("layers.utils", nn.Identity),
        make_layers=("utils", _make_layers),
    )
    given = {f"{place}.{name}": value for name, (place, value) in made.items()}
    given |= {
        f"models.deepseek_v2._is_{which}": False for which in ("cuda", "hip", "npu")
    }
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.dict(os.environ, clean, clear=True))
        enter(mock.patch("torch.cuda.is_available", return_value=True))
        enter(mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)))
        enter(
            mock.patch(
                "torch.cuda.current_stream", lambda *_: SimpleNamespace(cuda_stream=1)
            )
        )
        enter(mock.patch("torch.cuda.is_current_stream_capturing", lambda: False))
        nextn = enter(
            sglang_stand_ins.imported(
                NEXTN, real=(MODEL,), invented=("transformers",), given=given
            )
        )
        model = importlib.import_module(f"sglang.srt.{MODEL}")
        found = Model(nextn, model)
        for module in (nextn, model):
            _one_rank(module)
        model.MQALayer = Block
        (model.PPProxyTensors,) = stock.load_functions(
            BATCH_INFO, ["PPProxyTensors"], {}
        )
        mhc = importlib.import_module("sglang.srt.layers.mhc")
        mhc.hc_split_sinkhorn = lambda mixes, *rest: (
            found.mixes.append(mixes) or hc_split_sinkhorn_ref(mixes, *rest)
        )
        importlib.import_module("sglang.srt.layers.mhc_head").fused_hc_head = _hc_head
        if hasattr(model, "sm120_hc_pre"):
            _run_on_the_cpu(model.sm120_hc_pre, found.launches)
        enter(torch.no_grad())
        yield found


def _one_rank(module) -> None:
    """What the module asks of the server, on one rank without data parallel attention."""
    module.add_prefix = lambda name, prefix: f"{prefix}.{name}"
    module.compile_in_capture_mode = lambda function: function
    module.get_global_server_args = lambda: SimpleNamespace(
        disable_piecewise_cuda_graph=False
    )
    module.get_attention_dp_size = module.get_attention_tp_size = lambda: 1
    module.is_dp_attention_enabled = module.is_dsa_enable_prefill_cp = lambda: False
    module.dsa_use_prefill_cp = lambda _batch: False


def _make_layers(count, layer, pp_rank, pp_size, prefix):
    """Upstream's division of the layers, where it comes out even."""
    each = count // pp_size
    assert each * pp_size == count
    start, end = pp_rank * each, (pp_rank + 1) * each
    mine = [
        layer(idx=i, prefix=f"{prefix}.{i}") if start <= i < end else nn.Identity()
        for i in range(count)
    ]
    return nn.ModuleList(mine), start, end


def _hc_head(x, fn, scale, base, norm_eps, hc_eps):
    flat = x.flatten(1).float()
    mixes = (
        F.linear(flat, fn) * (flat.square().mean(-1, keepdim=True) + norm_eps).rsqrt()
    )
    pre = torch.sigmoid(mixes * scale + base) + hc_eps
    return (pre.unsqueeze(-1) * x).sum(1).to(x.dtype)


def _run_on_the_cpu(hook, launches: list[str]) -> None:
    """Let the launches of our two kernels run on the CPU, and list them."""
    weighted_sum = hook.hc_weighted_sum

    def linear(x, fn, eps, *, weights, workspace):
        out = torch.empty(x.shape[0], fn.shape[0])
        cuda_on_cpu.run(plan(x, fn, eps, weights=weights, out=out, workspace=workspace))
        launches.append(f"linear {weights}")
        return out

    def summed(x, w):
        # The interpreter rounds to bf16 wrongly.
        out = torch.empty(x.shape[0], x.shape[2])
        launches.append("sum")
        return weighted_sum(x, w, out=out).bfloat16()

    hook.hc_pre_linear, hook.hc_weighted_sum = linear, summed
