"""Whether what was measured is still what the series makes, and since which patch it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..commits import Applied
from ..pin import Pin
from ..series import RELEASE

STOCK = RELEASE


@dataclass(frozen=True)
class Now:
    """What the series makes today: the tree and the commit of each checkpoint, and for each file of
    kernels/ its ids (sha256, git's blob) and the patch that carries it."""

    trees: Mapping[str, str]
    commits: Mapping[str, str]
    kernels: Mapping[str, tuple[str, str]]
    carriers: Mapping[str, str]


def now(pin: Pin, applied: Sequence[Applied], kernels: Path | None) -> Now:
    """Read it from a series applied to its base, and the directory of the kernels, if it is known."""
    trees = {STOCK: pin.tree, **{each.patch.name: each.tree for each in applied}}
    commits = {STOCK: pin.commit, **{each.patch.name: each.commit for each in applied}}
    carriers = {
        file: each.patch.name
        for each in applied
        for file in each.patch.trailers.get("Generated-From", "").split()
    }
    hashes = {
        f"kernels/{path.name}": _ids(path.read_bytes())
        for path in sorted(kernels.glob("*") if kernels else ())
        if path.is_file()
    }
    return Now(trees, commits, hashes, carriers)


def since(id: str, measurement: Mapping, today: Now) -> str | None:
    """Why a measurement at checkpoint `id` is stale, naming the patch since which; None when it is
    not, or when its files do not tell what was measured."""
    if measurement["status"] == "reported":
        return None
    tree, commit = measurement["tree"], measurement["commit"]
    if tree:
        return _tree_since(id, tree, measurement["lineage"], today)
    if commit and today.commits.get(id) != commit:
        current = (today.commits.get(id) or "gone")[:12]
        return f"stale since {id} or below: its commit was {commit[:12]}, is {current}"
    for file, digest in (measurement["sources"] or {}).items():
        ids = today.kernels.get(file, ("gone", "gone"))
        if today.kernels and digest not in ids:
            patch = today.carriers.get(file, "it was removed")
            # As long as what was kept: a sha256, or a blob.
            current = ids[len(digest) == 40]
            return f"stale since {patch}: {file} was {digest[:12]}, is {current[:12]}"
    return None


def _ids(data: bytes) -> tuple[str, str]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return hashlib.sha256(data).hexdigest(), blob.hexdigest()


def _tree_since(id: str, tree: str, lineage: Mapping | None, today: Now) -> str | None:
    current = today.trees.get(id)
    if current == tree:
        return None
    changed = [
        name for name, then in (lineage or {}).items() if today.trees.get(name) != then
    ]
    patch = changed[0] if changed else id
    return (
        f"stale since {patch}: its tree was {tree[:12]}, is {(current or 'gone')[:12]}"
    )
