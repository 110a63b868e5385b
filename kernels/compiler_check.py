"""The check at start of the flags whose kernel is in CUDA C++: whether this Python can compile it."""

from __future__ import annotations

import importlib.util
from typing import Optional

from .dispatch import FlagError, Route


def check_compiled(
    route: Route, kernel: str, flag: str, conflict: Optional[str]
) -> None:
    """Log the choice of ``route``, whose path is ``kernel``.

    ``flag`` and ``conflict`` are those of ``Route.active``. Raises FlagError where the flag cannot work, as
    where ``kernel`` would run and the compiler's bindings are missing.
    """
    choice = route.choice(flag, conflict)
    if choice.active and not _has_bindings():
        raise FlagError(
            f"{choice.reason}: the {kernel} kernel is compiled with cuda.bindings, which this Python lacks:"
            f" install SGLang's own requirement cuda-python, or set {route.name}=off"
        )
    route.active(flag, conflict)


def _has_bindings() -> bool:
    try:
        # The first launches, the second finds the compiler's library.
        return all(
            importlib.util.find_spec(name) is not None
            for name in ("cuda.bindings", "cuda.pathfinder")
        )
    except ModuleNotFoundError:
        return False
