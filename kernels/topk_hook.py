"""What patch 0050 calls: the exact top-k in upstream's signature, with the workspace it needs."""

from __future__ import annotations

from typing import Optional

import torch

from sglang.srt.environ import envs

from .compiler_check import check_compiled
from .dispatch import Route
from .stream_workspaces import StreamWorkspaces
from .topk import TopkWorkspace, row_maxima, topk_page_indices

ROUTE = Route("SGLANG_SM120_TOPK", "top-k", "exact select in one launch")


def active() -> bool:
    """Whether our top-k runs in this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_TOPK=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_TOPK.get(), _other_topk())


def check(_server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_TOPK cannot work."""
    check_compiled(ROUTE, "top-k", envs.SGLANG_SM120_TOPK.get(), _other_topk())


def select(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: Optional[torch.Tensor] = None,
) -> None:
    """``topk_page_indices`` with the workspace of the current stream."""
    topk_page_indices(
        scores,
        seq_lens,
        page_table,
        out_page_indices,
        page_size,
        out_raw_indices,
        workspace=_workspace(scores, out_page_indices.shape[1]),
    )


def _workspace(scores: torch.Tensor, k: int) -> TopkWorkspace:
    rows, width = scores.shape
    return _WORKSPACES.get(scores.device, rows, rows * row_maxima(width, k), kind=k)


def _make(device: torch.device, rows: int, maxima: int) -> TopkWorkspace:
    return TopkWorkspace(
        arrived=torch.zeros(rows, dtype=torch.int32, device=device),
        maxima=torch.empty(maxima, dtype=torch.int32, device=device),
    )


_WORKSPACES = StreamWorkspaces(_make)


def _other_topk() -> Optional[str]:
    if envs.SGLANG_TOPK_TRANSFORM_512_TORCH.get():
        return "SGLANG_TOPK_TRANSFORM_512_TORCH=1"
    return None
