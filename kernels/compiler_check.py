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
        # The first launches, the second finds the compiler's library.
        return all(
            importlib.util.find_spec(name) is not None
            for name in ("cuda.bindings", "cuda.pathfinder")
        )
    except ModuleNotFoundError:
        return False
