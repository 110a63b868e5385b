"""SHA256SUMS beside the raw files: which there are, and that none was changed since (`sha256sum -c`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .. import atomic

NAME = "SHA256SUMS"


def problems(raw: Path) -> list[str]:
    """Files of the list that are gone or have other bytes, and lines that are no entry."""
    found = []
    for name, digest in _listed(raw).items():
        file = raw / name
        if not file.is_file():
            found.append(f"{name} is gone")
        elif _digest(file) != digest:
            found.append(f"{name} was changed: its sha256 is not that of {NAME}")
    return found


def unlisted(raw: Path) -> list[str]:
    """Raw files that the list does not have yet."""
    return sorted(_names(raw) - _listed(raw).keys())


def add(raw: Path) -> list[str]:
    """Put the files that are missing in the list; no entry is changed. Returns their names.

    Raises OSError.
    """
    new = unlisted(raw)
    if new:
        put(raw, new)
    return new


def put(raw: Path, names: Iterable[str]) -> None:
    """Put files in the list as they are now. Raises OSError."""
    listed = {**_listed(raw), **{name: _digest(raw / name) for name in names}}
    text = "".join(f"{listed[name]}  {name}\n" for name in sorted(listed))
    atomic.write(raw / NAME, text.encode())


def _listed(raw: Path) -> dict[str, str]:
    try:
        lines = (raw / NAME).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {line[66:]: line[:64] for line in lines}


def _names(raw: Path) -> set[str]:
    return {
        path.relative_to(raw).as_posix()
        for path in raw.rglob("*")
        if path.is_file() and path.name != NAME and not path.name.startswith(".")
    }


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
