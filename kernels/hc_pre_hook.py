"""What patch 0090 calls: the hyper-connection pre-linear and weighted sum on the bf16 state."""

from __future__ import annotations

from typing import Optional

import torch

from sglang.srt.environ import envs

from .compiler_check import check_compiled
from .dispatch import FlagError, Route, current_device, log_once
from .hc_pre import HcPreWorkspace, hc_pre_linear, partial_floats, tiles
from .hc_sum import hc_weighted_sum
from .stream_workspaces import StreamWorkspaces

ROUTE = Route(
    "SGLANG_SM120_HC_PRE", "hc_pre", "tensor cores on the bf16 state in one launch"
)

# Upstream's paths that come before ours, in its order.
EARLIER = ("SGLANG_OPT_USE_TILELANG_MHC_PRE", "SGLANG_OPT_DEEPGEMM_HC_PRENORM")


def active(dtype: torch.dtype) -> bool:
    """Whether our hc_pre runs in this process, on a state of this type. The first answer is logged.

    Raises FlagError where SGLANG_SM120_HC_PRE=on cannot work.
    """
    return ROUTE.active(envs.SGLANG_SM120_HC_PRE.get(), _conflict(dtype))


def check(server_args) -> None:
    """Log the choices. Raises FlagError where SGLANG_SM120_HC_PRE cannot work with these arguments."""
    flag = envs.SGLANG_SM120_HC_PRE.get()
    # Read where it changes nothing too: a typo must not wait for another card.
    weights = envs.SGLANG_SM120_HC_PRE_WEIGHTS.get()
    default = [name for name in EARLIER if _taken(name) and not _set(name)]
    if flag == "on" and default:
        raise FlagError(
            f"SGLANG_SM120_HC_PRE=on needs {' and '.join(f'{name}=0' for name in default)} on this card, where"
            " it is 1 by default and upstream's path of that name comes first"
        )
    dtype = getattr(server_args, "dtype", "auto")
    known = {"auto": torch.bfloat16, "half": torch.float16, "float": torch.float32}
    dtype = known[dtype] if dtype in known else getattr(torch, dtype)
    check_compiled(ROUTE, "hc_pre", flag, _conflict(dtype))
    if active(dtype):
        log_once("hc_pre weights", f"{weights} (SGLANG_SM120_HC_PRE_WEIGHTS={weights})")


def mixes(x: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """``hc_pre_linear`` of a state [T, H, D], as [T, 1, N]."""
    rows = x.flatten(1)
    workspace = HcPreWorkspace(
        # Enough for 16,384 rows at once.
        arrived=_COUNTERS.get(x.device, max(1024, tiles(rows.shape[0]))),
        partial=torch.empty(
            partial_floats(*rows.shape, fn.shape[0]),
            dtype=torch.float32,
            device=x.device,
        ),
    )
    weights = envs.SGLANG_SM120_HC_PRE_WEIGHTS.get()
    out = hc_pre_linear(rows, fn, eps, weights=weights, workspace=workspace)
    return out.unsqueeze(1)


def weighted_sum(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """``hc_weighted_sum`` of a state [T, H, D] by ``pre`` [T, 1, H]."""
    return hc_weighted_sum(x.contiguous(), pre.squeeze(1))


# Left zero by each launch, so that the next of its stream needs no other.
_COUNTERS = StreamWorkspaces(
    lambda device, size: torch.zeros(size, dtype=torch.int32, device=device)
)


def _conflict(dtype: torch.dtype) -> Optional[str]:
    for name in EARLIER:
        if _taken(name):
            return f"{name}=1"
    if dtype != torch.bfloat16:
        return f"activations of {dtype}"
    return None


def _taken(name: str) -> bool:
    # Unset, both are on, but a server on sm_120 turns them off (which it may not have done yet).
    if not _set(name) and (current_device().capability or (0, 0))[0] == 12:
        return False
    return getattr(envs, name).get()


def _set(name: str) -> bool:
    return getattr(envs, name).is_set()
