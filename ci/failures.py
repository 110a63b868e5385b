"""How the scripts of ci/ fail: with the four labelled lines and the exit codes of those in scripts/."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))
from patchset.errors import Exit, Failure  # noqa: E402

__all__ = ["ROOT", "Exit", "Failure", "exit_code"]

_WHOLE = "what is complete stays; nothing is half-written"


def exit_code(run: Callable[[], int]) -> int:
    """What `run` returns; for an expected failure its code, once its lines are printed."""
    try:
        return run()
    except Failure as failure:
        return _tell(failure)
    except KeyboardInterrupt:
        again = "run the same command again"
        return _tell(Failure(Exit.INTERRUPTED, "interrupted", state=_WHOLE, next=again))
    except OSError as error:
        return _tell(
            Failure(
                Exit.ENVIRONMENT,
                f"a file or folder can't be used: {error.strerror or error}",
                where=str(error.filename or "not told by the system"),
                state=_WHOLE,
                next="make room there and make it writable for this user, or name another place",
            )
        )


def _tell(failure: Failure) -> int:
    print("\n".join(failure.lines()), file=sys.stderr)
    return int(failure.code)
