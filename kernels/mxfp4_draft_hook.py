"""What patch 0100 calls: the runner of a draft layer's MXFP4 experts, and a clear error where none fits."""

from __future__ import annotations

import logging
from typing import Optional

from sglang.srt.environ import envs
from sglang.srt.utils.common import is_sm90_supported, is_sm120_supported

from .dispatch import Choice, Route

logger = logging.getLogger(__name__)

# The one runner whose MXFP4 method has a path for sm_120: Triton, on the experts as they are stored.
RUNNER = "marlin"

# Upstream makes the layer a DeepEPMoE behind these, which has DeepGEMM's kernels only, whatever the runner.
_DEEP_GEMM_ALL_TO_ALL = ("deepep", "mooncake", "nixl", "mori")
_SKIPPED = "(SGLANG_SM120_MXFP4_DRAFT=off skips this test)"

ROUTE = Route(
    "SGLANG_SM120_MXFP4_DRAFT",
    "MXFP4 experts",
    f"the runner {RUNNER}, for a draft's too",
    minimum=(9, 0),
    why_minimum="upstream's MXFP4 Marlin kernel starts there",
)


def check(server_args) -> None:
    """Log the choice. Raises FlagError where SGLANG_SM120_MXFP4_DRAFT=on cannot work."""
    _active(_users_runner(server_args))


def pick_runner(server_args) -> None:
    """Give the draft's experts the runner ``RUNNER`` where they are MXFP4 and would inherit another.

    A draft inherits the target's runner, which the target's quantization chooses. Call it when the
    target's runner is settled.
    """
    if server_args.speculative_algorithm is None:
        return
    if not _active(_users_runner(server_args)):
        return
    inherited = server_args.moe_runner_backend
    named = server_args.speculative_moe_runner_backend
    if RUNNER == (named or inherited):
        return
    if not _draft_is_mxfp4(server_args):
        logger.info(
            "sm_120 MXFP4 experts: the draft has none, its own keep %s",
            named or inherited,
        )
        return
    server_args.speculative_moe_runner_backend = RUNNER
    if server_args.speculative_moe_a2a_backend is None:
        # The method takes tokens that no all-to-all has sorted.
        server_args.speculative_moe_a2a_backend = "none"
    logger.info(
        "sm_120 MXFP4 experts: %s for the draft instead of %s",
        RUNNER,
        named or inherited,
    )


def require_kernel(runner, prefix: str) -> None:
    """Raise ValueError where the MXFP4 experts of layer ``prefix`` have no kernel with what was chosen.

    ``runner`` is upstream's MoeRunnerBackend; the all-to-all is the one of the layer that is being made.
    With SGLANG_SM120_MXFP4_DRAFT=off nothing is refused.
    """
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    # A layer that needs the runner says nothing of the draft: the choice that was logged at start stays.
    choice = ROUTE.choice(envs.SGLANG_SM120_MXFP4_DRAFT.get(), None, _missing())
    if ROUTE.taken is None:
        _log_in_worker(choice)
    if not choice.active or not is_sm120_supported():
        return
    if runner.value != RUNNER:
        raise ValueError(
            f"the MXFP4 experts of {prefix} have no sm_120 kernel with the runner {runner.value}: pass"
            f" --moe-runner-backend {RUNNER}, or --speculative-moe-runner-backend {RUNNER} if this is the"
            f" draft's layer {_SKIPPED}"
        )
    all_to_all = get_moe_a2a_backend().value
    if all_to_all in _DEEP_GEMM_ALL_TO_ALL:
        raise ValueError(
            f"the MXFP4 experts of {prefix} have no sm_120 kernel behind the all-to-all {all_to_all}, which"
            " takes DeepGEMM's: pass --moe-a2a-backend none, or --speculative-moe-a2a-backend none if this"
            f" is the draft's layer {_SKIPPED}"
        )


def _log_in_worker(choice: Choice) -> None:
    """Log the choice in a process that was handed the settled arguments, as far as these still tell it."""
    from sglang.srt.layers.moe.utils import get_speculative_moe_runner_backend

    # Another runner is the user's, or that of a draft without MXFP4 experts.
    if not choice.active or get_speculative_moe_runner_backend().value == RUNNER:
        _active(None)


def _active(conflict: Optional[str]) -> bool:
    flag = envs.SGLANG_SM120_MXFP4_DRAFT.get()
    return ROUTE.active(flag, conflict, _missing())


def _users_runner(server_args) -> Optional[str]:
    runner = server_args.speculative_moe_runner_backend
    # "auto" leaves the choice to the server, as for the target.
    if runner in (None, "auto", RUNNER):
        return None
    return f"--speculative-moe-runner-backend {runner}"


def _missing() -> Optional[str]:
    if is_sm90_supported() or is_sm120_supported():
        return None
    return f"upstream's MXFP4 method for {RUNNER} takes sm_90 and sm_120 only"


def _draft_is_mxfp4(server_args) -> bool:
    """Whether the draft's checkpoint holds its experts as MXFP4: an FP8 checkpoint with packed experts."""
    from sglang.srt.configs.model_config import ModelConfig

    path = server_args.speculative_draft_model_path
    revision = server_args.speculative_draft_model_revision
    draft = ModelConfig.from_server_args(
        server_args,
        model_path=path or server_args.model_path,
        model_revision=(revision or "main") if path else server_args.revision,
        is_draft_model=True,
    )
    return draft.quantization == "fp8" and draft.is_fp4_experts
