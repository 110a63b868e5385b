"""How much of a series a tree already holds, read from blob ids alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Callable

from .series import Series


@dataclass(frozen=True)
class State:
    """What a tree holds.

    applied is the number of leading patches whose files are all in place; foreign lists the paths
    that no step of the series has in this form; partial lists (path, last patch it holds or
    "pristine") when the known files stand at different steps.
    """

    applied: int
    total: int
    foreign: tuple[str, ...] = ()
    partial: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> str:
        """One of: foreign, half-applied, pristine, applied, partly (the first k of n)."""
        if self.foreign:
            return "foreign"
        if self.partial:
            return "half-applied"
        if self.applied == 0:
            return "pristine"
        return "applied" if self.applied == self.total else "partly"


def read_state(blob_of: Callable[[str], str | None], series: Series) -> State:
    """Compare each touched path's blob with those it has after 0, 1, ... n patches.

    blob_of gives the blob id of a path in the tree, or None when it is absent.
    """
    total = len(series.patches)
    steps = {
        path: [k for k, blob in enumerate(blobs) if blob == blob_of(path)]
        for path, blobs in _blobs(series).items()
    }
    foreign = tuple(path for path, known in steps.items() if not known)
    known = {path: found for path, found in steps.items() if found}
    agreed = set(range(total + 1)).intersection(*map(set, known.values()))
    if agreed:
        return State(applied=max(agreed), total=total, foreign=foreign)
    names = ["pristine", *(patch.name for patch in series.patches)]
    partial = tuple(
        (path, names[_last(series, path, found)]) for path, found in known.items()
    )
    applied = min(max(found) for found in known.values())
    return State(applied=applied, total=total, foreign=foreign, partial=partial)


def blob_id(data: bytes | None) -> str | None:
    """Git's id of a file of these bytes; None where there is no file."""
    if data is None:
        return None
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _blobs(series: Series) -> dict[str, list[str | None]]:
    """For each path, its blob after 0, 1, ... n patches."""
    blobs: dict[str, list[str | None]] = {}
    for path in series.paths:
        touching = {
            step: change
            for step, patch in enumerate(series.patches, start=1)
            for change in patch.changes
            if change.path == path
        }
        current = touching[min(touching)].old_blob
        blobs[path] = [current]
        for step in range(1, len(series.patches) + 1):
            if step in touching:
                current = touching[step].new_blob
            blobs[path].append(current)
    return blobs


def _last(series: Series, path: str, steps: list[int]) -> int:
    """The last patch that touched path at or before the first of the steps it may stand at."""
    first = steps[0]
    while first and all(
        change.path != path for change in series.patches[first - 1].changes
    ):
        first -= 1
    return first
