"""What a server does once for DeepSeek-V4 at start: flags checked, defaults that a user can override."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Iterator

from sglang.srt.environ import envs

logger = logging.getLogger(__name__)

# Upstream turns these to this value on sm_120. What a user's other value leads to there:
SM120_DEFAULTS = {
    "SGLANG_OPT_FP8_WO_A_GEMM": (
        False,
        "the output projection calls DeepGEMM, which has no sm_120 kernel: it fails at the first request",
    ),
    "SGLANG_OPT_USE_TOPK_V2": (
        False,
        "top-k v2 asks for thread-block clusters and more shared memory than sm_120 has: its launch fails",
    ),
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": (False, None),
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM": (
        False,
        "the hyper-connection norm calls DeepGEMM, which has no sm_120 kernel: it fails at the first request",
    ),
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": (
        True,
        "wherever SGLANG_SM120_INDEXER does not run, the indexer calls DeepGEMM, which has no sm_120 kernel",
    ),
}

# Upstream leaves this one as it is, and its path does not exist on sm_120 either.
FATAL_IF_SET = {
    "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL": "the sparse prefill kernel exists for sm_90 and sm_100 only: a"
    " prompt crashes the server",
}


def apply_sm120_defaults() -> None:
    """Set upstream's defaults for sm_120 where the user has set nothing; warn of a fatal setting.

    What is set here stays in the environment, for worker processes and for a second engine in this
    process: there it equals the default and is left alone, as a user's own setting is.
    """
    for name, (value, consequence) in SM120_DEFAULTS.items():
        field = getattr(envs, name)
        if not field.is_set():
            field.set(value)
        elif field.get() != value and consequence is not None:
            _warn(name, field.get(), consequence)
    for name, consequence in FATAL_IF_SET.items():
        if getattr(envs, name).get():
            _warn(name, True, consequence)


def check_flags(server_args) -> None:
    """Ask each hook of this package whether its flag can work with these arguments.

    Raises dispatch.FlagError where one is ``on`` and cannot, so a server dies at start with the
    reason instead of serving another path.
    """
    for hook in hooks():
        hook.check(server_args)


def hooks() -> Iterator[ModuleType]:
    """The modules of this package that upstream's code calls, each with its ROUTE."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.endswith("_hook"):
            hook = importlib.import_module(f".{module.name}", __package__)
            # The patch that calls a hook also registers its flag; the one before brings the file.
            if hasattr(envs, hook.ROUTE.name):
                yield hook


@lru_cache(maxsize=None)
def _warn(name: str, value, consequence: str) -> None:
    logger.warning(
        "%s=%s is kept as you set it, but on sm_120 %s. Unset it to get the default.",
        name,
        value,
        consequence,
    )
