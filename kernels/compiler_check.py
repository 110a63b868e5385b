"""Whether this Python can compile the kernels in CUDA C++."""

from __future__ import annotations

import importlib.util

from .dispatch import Choice, FlagError


def require_compiler(choice: Choice, kernel: str, flag: str) -> None:
    """Raise FlagError where ``choice`` runs ``kernel`` and the compiler's bindings are missing.

    ``flag`` is what turns the kernel off.
    """
    if choice.active and not _has_bindings():
        raise FlagError(
            f"{choice.reason}: the {kernel} kernel is compiled with cuda.bindings, which this Python lacks:"
            f" install SGLang's own requirement cuda-python, or set {flag}=off"
        )


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False
