"""Recompute every figure of the records from their raw files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import Failure
from . import draft, readers, schema, sums
from .stale import Now, since

_CAMPAIGN = "campaign"


@dataclass(frozen=True)
class Found:
    """What verify found.

    Attributes: problems: lines that say no. stale: measurements of what has changed since, which is
    no fault of the record. notes: what nothing is known of. figures: how many measurements were
    recomputed.
    """

    problems: tuple[str, ...]
    stale: tuple[str, ...]
    notes: tuple[str, ...]
    figures: int


def run(root: Path, records: Path, today: Now) -> Found:
    """Check the list of raw files, then each record: its form, its seal, the raw files' bytes and
    every field that follows from them. Paths of raw files are below root."""
    found = [f"raw files: {text}" for text in sums.problems(records / "raw")]
    stale, figures, ids = [], 0, set()
    for path in sorted(records.glob("*.json")):
        try:
            record = schema.load(path)
        except Failure as failure:
            found += [f"{path.stem}: {text}" for text in failure.where.splitlines()[1:]]
            ids.add(path.stem)
            continue
        ids.add(record["id"])
        if not _is_known(record, today):
            found.append(f"{path.stem}: no checkpoint of the series has this name")
        for number, measurement in enumerate(record["measurements"], 1):
            name = f"{path.stem}, measurement {number}"
            figures += 1
            found += [f"{name}: {text}" for text in recomputed(root, measurement)]
            why = since(record["id"], measurement, today)
            if why:
                stale.append(f"{name} ({measurement['what']}): {why}")
    notes = [f"{id} has no record" for id in today.trees if id not in ids]
    notes += [
        f"{name} is a raw file that {sums.NAME} does not list"
        for name in sums.unlisted(records / "raw")
    ]
    return Found(tuple(found), tuple(stale), tuple(notes), figures)


def recomputed(root: Path, measurement: Mapping) -> list[str]:
    """How a measurement differs from what its raw files give; empty when it does not."""
    raws, found = [], []
    for run in measurement["runs"]:
        try:
            data = (root / run["file"]).read_bytes()
        except OSError as error:
            return [f"{run['file']} can't be read: {error.strerror}"]
        if hashlib.sha256(data).hexdigest() != run["sha256"]:
            found.append(f"{run['file']} was changed: its sha256 differs")
        raws.append(draft.Raw(run["arm"], run["file"], data))
    try:
        parsed = {raw.arm: raw.parsed() for raw in raws}
        derived = readers.read(measurement["reader"], parsed, measurement["select"])
    except readers.Unreadable as error:
        return [*found, str(error)]
    for name in schema.DERIVED:
        if measurement[name] != derived[name]:
            found.append(
                f"{name} is {measurement[name]!r:.120}, the raw files give {derived[name]!r:.120}"
            )
    return found


def _is_known(record: Mapping, today: Now) -> bool:
    if record["id"] in today.trees:
        return True
    return all(each["reader"] == _CAMPAIGN for each in record["measurements"])
