"""What a record is: its fields, its seal, its file.

ci/checkpoints/NNNN-slug.json:

    id, title, parent     the checkpoint, what it does, the one below it (null for the first)
    measurements          one or more, each with
        status            reported by others | measured here | reproduced elsewhere | retracted
        command           how to see it again
        reader, select    how its figures are read from its raw files (readers.py), and which
        runs              its raw files: arm, order, file (from the top of the repository), sha256
        lineage           the trees of the series up to here when it was recorded, or null
        and what the reader gives: what, date, commit, tree, sources, flags, machine, model,
        server_args, workload, result, correctness, notes; what was not kept is null
    seal                  the sha256 over all of the rest
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from .. import atomic
from ..errors import Exit, Failure

ID = re.compile(r"\d{4}-[a-z0-9][a-z0-9.-]*")
STATUSES = ("reported", "measured", "reproduced", "retracted")
DERIVED = (
    *("what", "date", "commit", "tree", "sources", "flags", "machine", "model"),
    *("server_args", "workload", "result", "correctness", "notes"),
)
_RECORD = {"id", "title", "parent", "measurements", "seal"}
_MEASUREMENT = {
    *("status", "command", "reader", "select", "runs", "lineage"),
    *DERIVED,
}
_RUN = {"arm", "order", "file", "sha256"}


def seal(record: dict) -> str:
    """The sha256 over a record without its seal, whatever the order of its keys."""
    rest = {key: value for key, value in record.items() if key != "seal"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def problems(record: object, name: str) -> list[str]:
    """What keeps a value from being the record of this name; empty for a sound one."""
    if not isinstance(record, dict) or record.keys() != _RECORD:
        return [f"it must have the fields {', '.join(sorted(_RECORD))}, and no other"]
    found = []
    if record["id"] != name or not ID.fullmatch(str(record["id"])):
        found.append(f"its id is {record['id']!r}")
    if not isinstance(record["measurements"], list) or not record["measurements"]:
        return [*found, "it has no measurement"]
    for number, measurement in enumerate(record["measurements"], 1):
        found += [f"measurement {number}: {text}" for text in _wrong(measurement)]
    if record["seal"] != seal(record):
        found.append("its seal does not match: it was changed after it was recorded")
    return found


def _wrong(measurement: object) -> list[str]:
    if not isinstance(measurement, dict) or measurement.keys() != _MEASUREMENT:
        given = set(measurement) if isinstance(measurement, dict) else set()
        odd = sorted(given ^ _MEASUREMENT)
        return [f"fields too many or missing: {', '.join(odd)}"]
    if measurement["status"] not in STATUSES:
        return [f"status {measurement['status']!r} is none of {', '.join(STATUSES)}"]
    runs = measurement["runs"]
    if not isinstance(runs, list) or not runs:
        return ["it has no raw file"]
    if any(not isinstance(run, dict) or run.keys() != _RUN for run in runs):
        return [f"a run has other fields than {', '.join(sorted(_RUN))}"]
    return []


def named(which: str, ids: Iterable[str]) -> str | None:
    """The first id of this number (20 is taken as 0020) or name; None where there is none."""
    return next((id for id in ids if which == id or which.zfill(4) == id[:4]), None)


def load(path: Path) -> dict:
    """The record in a file. Raises Failure(PATCH) for one that is not sound."""
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise _bad(path, [f"it cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise _bad(path, [f"it is not JSON: {error}"]) from None
    found = problems(record, path.stem)
    if found:
        raise _bad(path, found)
    return record


def load_all(directory: Path) -> dict[str, dict]:
    """Every record of a directory, by id and in order. Raises as load()."""
    return {path.stem: load(path) for path in sorted(directory.glob("*.json"))}


def write(path: Path, record: dict) -> dict:
    """Seal a record and write it as a whole; returns it. Raises OSError."""
    sealed = {**record, "seal": seal(record)}
    found = problems(sealed, path.stem)
    assert not found, found
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, (json.dumps(sealed, indent=1) + "\n").encode())
    return sealed


def _bad(path: Path, found: list[str]) -> Failure:
    return Failure(
        Exit.PATCH,
        f"the record {path.stem} is not sound",
        where="\n".join([str(path), *found]),
        state="nothing was changed",
        next=f"restore it: git checkout -- {path}",
    )
