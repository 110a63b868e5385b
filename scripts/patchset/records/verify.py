"""Recompute every figure of the records from their raw files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import Failure
from ..layout import Layout
from . import draft, readers, schema, shown, sources, sums
from .stale import Now, since

_CAMPAIGN = "campaign"
_NOTHING = object()
# Letters of a long value, and those of them before what differs.
_MOST, _BEFORE = 120, 40


@dataclass(frozen=True)
class Found:
    """What verify found.

    Attributes: problems: lines that say no. stale: measurements of what has changed since, which is
    no fault of the record. notes: what nothing is known of. figures: how many measurements were
    recomputed. gone: files of the evidence itself that are gone, which are among the problems.
    """

    problems: tuple[str, ...]
    stale: tuple[str, ...]
    notes: tuple[str, ...]
    figures: int
    gone: tuple[Path, ...] = ()


def run(root: Path, records: Path, today: Now) -> Found:
    """Check the list of raw files, that no record of the page is gone, then each record: its form, its
    seal, the raw files' bytes and every field that follows from them. Paths of raw files are below
    root, and so is the page."""
    found, stale, figures, ids, known = [], [], 0, set(), []
    for path in sorted(records.glob("*.json")):
        try:
            record = schema.load(path)
        except Failure as failure:
            found += [f"{path.stem}: {text}" for text in failure.where.splitlines()[1:]]
            ids.add(path.stem)
            continue
        ids.add(record["id"])
        known.append(record)
        if not _is_known(record, today):
            found.append(f"{path.stem}: no checkpoint of the series has this name")
        for number, measurement in enumerate(record["measurements"], 1):
            name = f"{path.stem}, measurement {number}"
            figures += 1
            found += [f"{name}: {text}" for text in recomputed(root, measurement)]
            why = since(record["id"], measurement, today)
            if why:
                stale.append(f"{name} ({measurement['what']}): {why}")
    raw, recorded = records / "raw", sources.names(known)
    page = Layout(root).checkpoints
    lost = shown.gone(page, records)
    evidence = [f"{id} has rows in {page.name}, and its record is gone" for id in lost]
    evidence += [f"raw files: {text}" for text in sums.problems(raw, recorded)]
    gone = [records / f"{id}.json" for id in lost]
    if sums.is_gone(raw, recorded):
        gone.append(raw / sums.NAME)
    notes = [f"{id} has no record" for id in today.trees if id not in {*ids, *lost}]
    notes += [
        f"{name} is a raw file that {sums.NAME} does not list"
        for name in sums.unlisted(raw, recorded)
    ]
    problems = (*evidence, *found)
    return Found(problems, tuple(stale), tuple(notes), figures, tuple(gone))


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
        found += _differing(name, measurement[name], derived[name])
    return found


def _differing(name: str, kept: object, given: object) -> list[str]:
    """A line for each figure that differs, however deep in it."""
    if isinstance(kept, Mapping) and isinstance(given, Mapping):
        return [
            line
            for key in {**kept, **given}
            for line in _differing(
                f"{name}.{key}", kept.get(key, _NOTHING), given.get(key, _NOTHING)
            )
        ]
    if kept == given:
        return []
    return [
        f"{name} is {_shown(kept, given)}, the raw files give {_shown(given, kept)}"
    ]


def _shown(value: object, other: object) -> str:
    """A value for a person; of a long text, what is around the first letter that is another one."""
    if value is _NOTHING:
        return "nothing"
    text, beside = repr(value), repr(other)
    if len(text) <= _MOST:
        return text
    same = os.path.commonprefix([text, beside])
    start = max(0, len(same) - _BEFORE)
    end = start + _MOST
    return f"{'...' * (start > 0)}{text[start:end]}{'...' * (end < len(text))}"


def _is_known(record: Mapping, today: Now) -> bool:
    if record["id"] in today.trees:
        return True
    return all(each["reader"] == _CAMPAIGN for each in record["measurements"])
