"""What patch 0060 calls: the MMA sparse-MLA kernel in the place of upstream's attention on sm_120."""

from __future__ import annotations

import os
from typing import Optional

import torch

from sglang.srt.environ import envs

from .compiler_check import check_compiled
from .decode import DecodeWorkspace, decode_workspace, sparse_mla_decode
from .dispatch import Route
from .stream_workspaces import StreamWorkspaces

ROUTE = Route(
    "SGLANG_SM120_DECODE",
    "attention",
    "MMA sparse-MLA kernel",
    minimum=(8, 9),
    why_minimum="older GPUs cannot convert fp8",
)


def active() -> bool:
    """Whether our attention kernel runs in this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_DECODE=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_DECODE.get(), _other_attention())


def chosen() -> bool:
    """As ``active``, without a log line."""
    return ROUTE.choice(envs.SGLANG_SM120_DECODE.get(), _other_attention()).active


def check(_server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_DECODE cannot work."""
    flag = envs.SGLANG_SM120_DECODE.get()
    check_compiled(ROUTE, "attention", flag, _other_attention())


def attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: Optional[torch.Tensor],
    attn_sink: Optional[torch.Tensor],
    head_dim_v: int,
    softmax_scale: float,
    extra_k_cache: Optional[torch.Tensor],
    extra_indices: Optional[torch.Tensor],
    extra_topk_length: Optional[torch.Tensor],
    num_splits: Optional[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """``sparse_mla_decode`` with the workspace of the current stream."""
    return sparse_mla_decode(
        q,
        k_cache,
        indices,
        topk_length,
        attn_sink,
        head_dim_v,
        softmax_scale,
        extra_k_cache,
        extra_indices,
        extra_topk_length,
        num_splits=num_splits,
        workspace=None if num_splits == 1 else _workspace(q),
    )


def _workspace(q: torch.Tensor) -> DecodeWorkspace:
    heads = q.shape[2]
    return _WORKSPACES.get(q.device, heads, kind=heads)


# The kernel's workspace depends on the heads only, so one serves every batch and graph of a stream.
_WORKSPACES = StreamWorkspaces(lambda device, heads: decode_workspace(heads, device))


def _other_attention() -> Optional[str]:
    # Upstream reads this one from the environment itself, once, when its module is imported.
    if os.environ.get("SGLANG_SM120_TRITON_FLASHMLA", "1") != "1":
        return "SGLANG_SM120_TRITON_FLASHMLA=0"
    return None
