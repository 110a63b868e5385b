"""The raw files that records were read from: which they are, and which are not what was read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

# Raw files lie there, from the top of the repository.
RAW = "ci/checkpoints/raw/"


def digests(known: Iterable[Mapping]) -> dict[str, set[str]]:
    """The sha256 of each raw file as records have it, by its name from the top of the repository."""
    found: dict[str, set[str]] = {}
    for _, run in _runs(known):
        found.setdefault(run["file"], set()).add(run["sha256"])
    return found


def names(known: Iterable[Mapping]) -> set[str]:
    """The same files by their names in the directory of raw files."""
    return {file.removeprefix(RAW) for file in digests(known)}


def warnings(root: Path, known: Iterable[Mapping]) -> list[str]:
    """A line for each raw file that is gone or has other bytes than when it was recorded."""
    readers: dict[str, list[str]] = {}
    for id, run in _runs(known):
        why = _why_not(root / run["file"], run["sha256"])
        if why:
            ids = readers.setdefault(f"{run['file']} {why}", [])
            if id not in ids:
                ids.append(id)
    return [
        f"{what}: figures of {ids[0]}{_more(ids)} were read from it"
        for what, ids in readers.items()
    ]


def _runs(known: Iterable[Mapping]):
    for record in known:
        for measurement in record["measurements"]:
            for run in measurement["runs"]:
                yield record["id"], run


def _why_not(file: Path, digest: str) -> str | None:
    try:
        data = file.read_bytes()
    except OSError as error:
        return f"can't be read ({error.strerror})"
    same = hashlib.sha256(data).hexdigest() == digest
    return None if same else "was changed since it was recorded"


def _more(ids: list[str]) -> str:
    return f" and {len(ids) - 1} more" if len(ids) > 1 else ""
