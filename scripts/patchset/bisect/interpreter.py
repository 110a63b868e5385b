"""The Python that measures: whether it starts, and has what a probe needs of it."""

from __future__ import annotations

import os
import subprocess

from ..errors import Exit, Failure

# What it lacks of the modules that are named, and a GPU, on its last line.
_ASK = """
import importlib.util, sys
missing = [name for name in sys.argv[1:] if name != "CUDA" and not importlib.util.find_spec(name)]
if "CUDA" in sys.argv[1:] and not missing:
    import torch
    missing = [] if torch.cuda.is_available() else ["a GPU that torch can use (CUDA)"]
print("\\n" + ", ".join(missing))
"""
_LIMIT_S = 300
_STATE = "nothing was measured"
_NEXT = "name one that has it with --python PY"


def absolute(python: str) -> str:
    """A path as seen from here, since probes run elsewhere; a name on the PATH as it is."""
    return os.path.abspath(python) if os.sep in python else python


def require(python: str, needs: tuple[str, ...]) -> None:
    """Raise Failure(ENVIRONMENT) unless python starts and has what is needed: modules, or "CUDA"."""
    try:
        asked = subprocess.run(
            [python, "-P", "-c", _ASK, *needs],
            # As a probe is run: nothing of the caller's PYTHONPATH.
            env={**os.environ, "PYTHONPATH": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
        )
    except OSError as error:
        raise _failure(f"{python} does not start: {error.strerror}", python) from None
    except subprocess.TimeoutExpired:
        raise _failure(f"{python} says nothing for {_LIMIT_S} s", python) from None
    if asked.returncode:
        told = asked.stderr.strip().splitlines() or [f"exit {asked.returncode}"]
        raise _failure(f"{python} does not work", f"{python}\n{told[-1]}")
    missing = asked.stdout.rstrip("\n").rpartition("\n")[2]
    if missing:
        raise _failure(f"the Python that measures lacks {missing}", python)


def _failure(what: str, where: str) -> Failure:
    return Failure(Exit.ENVIRONMENT, what, where=where, state=_STATE, next=_NEXT)
