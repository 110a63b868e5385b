"""The measuring programs, copied out of what is measured, so that each commit meets the same ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

# Relative to the top of this repository; what the programs import, and where they expect it.
_COPIED = (
    *("scripts/patchset/**/*", "tests/*.py", "kernels/*_ref.py"),
    *("patches/**/*", "CHECKPOINTS.md", "ci/*.toml", "ci/smoke-model/*.json"),
)


def copy(root: Path, directory: Path, stock: dict[str, bytes]) -> str:
    """Put the harness of a session in directory/harness, as a whole, and return its digest.

    stock are files of the release itself, which results are compared with. Raises OSError.
    """
    new = Path(tempfile.mkdtemp(prefix=".harness-", dir=directory))
    try:
        for pattern in _COPIED:
            for source in sorted(root.glob(pattern)):
                if source.is_file() and source.parent.name != "__pycache__":
                    _copy(source, new / source.relative_to(root))
        (new / "stock").mkdir()
        for name, data in stock.items():
            (new / "stock" / name).write_bytes(data)
        target = directory / "harness"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return digest(target)


def digest(harness: Path) -> str:
    """The sha256 over the names and bytes of a harness; what Python compiles there is none of it."""
    total = hashlib.sha256()
    files = [path for path in harness.rglob("*") if path.is_file()]
    for file in sorted(files):
        if file.parent.name == "__pycache__":
            continue
        name = file.relative_to(harness).as_posix()
        total.update(f"{name}\0{file.stat().st_size}\0".encode())
        total.update(file.read_bytes())
    return total.hexdigest()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
