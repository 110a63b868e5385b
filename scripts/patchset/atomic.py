"""Files that are either as they were or as they should be, never half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Replace or create path with data, on disk before it is visible. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    spare = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        spare.chmod(path.stat().st_mode & 0o7777 if path.exists() else _default_mode())
        os.replace(spare, path)
    except BaseException:
        spare.unlink(missing_ok=True)
        raise


def _default_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
