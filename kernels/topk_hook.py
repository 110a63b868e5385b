"""What patch 0050 calls: the exact top-k in upstream's signature, with the workspace it needs."""

from __future__ import annotations

import importlib.util
from typing import Optional

import torch

from sglang.srt.environ import envs

from .dispatch import FlagError, Route
from .topk import TopkWorkspace, row_maxima, topk_page_indices

ROUTE = Route("SGLANG_SM120_TOPK", "top-k", "exact select in one launch")

# One for each stream: launches of one stream never run side by side.
_workspaces: dict[tuple[torch.device, int, int], TopkWorkspace] = {}
# A captured graph keeps the addresses it was captured with: what it uses is never given back.
_captured: list[TopkWorkspace] = []


def active() -> bool:
    """Whether our top-k runs in this process. The first answer is logged.

    Raises FlagError where SGLANG_SM120_TOPK=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_TOPK.get(), _other_topk())


def check(_server_args) -> None:
    """Raise FlagError where SGLANG_SM120_TOPK cannot work."""
    choice = ROUTE.choice(envs.SGLANG_SM120_TOPK.get(), _other_topk())
    if choice.active and not _has_compiler():
        raise FlagError(
            f"{choice.reason}: the top-k kernel is compiled with cuda.bindings, which this Python lacks:"
            " install SGLang's own requirement cuda-python, or set SGLANG_SM120_TOPK=off"
        )


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
    maxima = rows * row_maxima(width, k)
    stream = torch.cuda.current_stream(scores.device).cuda_stream
    key = (scores.device, stream, k)
    kept = _workspaces.get(key)
    capturing = torch.cuda.is_current_stream_capturing()
    if kept is not None:
        if kept.arrived.numel() >= rows and kept.maxima.numel() >= maxima:
            if capturing and not any(kept is one for one in _captured):
                _captured.append(kept)
            return kept
        rows = max(rows, kept.arrived.numel())
        maxima = max(maxima, kept.maxima.numel())
    # Powers of two: prompts of growing length do not each need a new one.
    made = TopkWorkspace(
        arrived=torch.zeros(
            _power_of_two(rows), dtype=torch.int32, device=scores.device
        ),
        maxima=torch.empty(
            _power_of_two(maxima), dtype=torch.int32, device=scores.device
        ),
    )
    # What is allocated inside a capture lives in that graph's pool: it is that graph's alone.
    if not capturing:
        _workspaces[key] = made
    return made


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _has_compiler() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def _other_topk() -> Optional[str]:
    if envs.SGLANG_TOPK_TRANSFORM_512_TORCH.get():
        return "SGLANG_TOPK_TRANSFORM_512_TORCH=1"
    return None
