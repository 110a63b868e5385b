"""Which sglang a Python runs: the patched tree before the installed package, or that alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .errors import Exit, Failure
from .invocation import script

# scripts/*.sh put the caller's own PYTHONPATH there before they set ours.
CALLERS_PYTHONPATH = "PATCHSET_CALLERS_PYTHONPATH"


def find(default: Path, named: Path | None) -> Path | None:
    """The tree that is named, else the default where there is one, else None.

    Raises Failure(USAGE) when the named one is no SGLang tree.
    """
    tree = named or default
    if (tree / "python" / "sglang").is_dir():
        return tree.resolve()
    if named:
        raise Failure(
            Exit.USAGE,
            "this is no SGLang tree: it has no python/sglang",
            where=str(named),
            state="nothing was started",
            next=f"make one: {script('apply.sh')}",
        )
    return None


def variables(tree: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """The environment for a Python of SGLang: the given one as the caller had it, the tree first."""
    found = dict(given)
    callers = found.pop(CALLERS_PYTHONPATH, "")
    places = [str(tree / "python")] if tree else []
    found.pop("PYTHONPATH", None)
    if path := os.pathsep.join(filter(None, [*places, callers])):
        found["PYTHONPATH"] = path
    return found
