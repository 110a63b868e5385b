"""Make records: from raw files, through the same readers that verify uses."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import benchnames
from ..errors import Exit, Failure
from . import readers, schema


@dataclass(frozen=True)
class Raw:
    """A raw file: the arm that it holds, its name from the top of the repository, its bytes."""

    arm: str
    file: str
    data: bytes

    def parsed(self) -> object:
        """Its JSON. Raises Unreadable."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise readers.Unreadable(f"{self.file} is not JSON: {error}") from None


def measurement(
    reader: str,
    raws: Sequence[Raw],
    select: Mapping[str, str],
    *,
    status: str,
    command: str,
    lineage: dict[str, str] | None = None,
) -> dict:
    """One measurement, its figures read from the raw files. Raises readers.Unreadable."""
    derived = readers.read(reader, {raw.arm: raw.parsed() for raw in raws}, select)
    if reader == "kernel-bench":
        _require_samples(command, derived["result"]["candidate"]["n"])
    return {
        "status": status,
        "command": command,
        "reader": reader,
        "select": dict(select),
        "runs": [
            {
                "arm": raw.arm,
                "order": order,
                "file": raw.file,
                "sha256": hashlib.sha256(raw.data).hexdigest(),
            }
            for order, raw in enumerate(raws)
        ],
        "lineage": lineage,
        **derived,
    }


def _require_samples(command: str, samples: int) -> None:
    """Raise Unreadable for a command of the bench that would measure another number of times."""
    said = re.search(r"--samples[ =](\d+)", command)
    measured = int(said[1]) if said else benchnames.SAMPLES
    if samples != measured:
        raise readers.Unreadable(
            f"it has {samples} samples of an arm, and --command measures {measured}: say "
            f"--samples {samples} there"
        )


def from_steps(
    raw: bytes, file: str, step: str, against: str, title: str, find: str = "gain"
) -> dict:
    """A record of one step and the one below it, not sealed yet: a draft to be recorded.

    find: "gain" or "loss", what a bisect of the two finds again.
    """
    steps = json.loads(raw)
    words = "".join(f" {shlex.quote(word)}" for word in steps.get("words", ()))
    made = measurement(
        "steps",
        [Raw("all", file, raw)],
        {"step": step, "against": against},
        status="measured",
        command=f"scripts/bisect.sh --find {find} --probe {steps['probe']}"
        f" --old {against} --new {step}{words}",
    )
    return {"id": step, "title": title, "parent": against, "measurements": [made]}


def merged(
    path: Path,
    record: dict | None,
    id: str,
    title: str,
    parent: str | None,
    made: dict,
) -> tuple[dict, bool]:
    """A record (None: that in `path`, or a new one) with a measurement added or in the place of the
    one that read the same of the same case; and whether it is another than the one in `path`.

    Raises Failure for a record there that is not sound.
    """
    there = schema.load(path) if path.exists() else None
    before = record or there
    kept = before["measurements"] if before else []
    others = [each for each in kept if _subject(each) != _subject(made)]
    record = {
        "id": id,
        "title": title,
        "parent": parent,
        "measurements": sorted([*others, made], key=_rank),
    }
    return record, there is None or schema.seal(record) != there["seal"]


def replaced(path: Path, made: dict) -> dict | None:
    """What the record in `path` has of the same measurement; None where it has none.

    Raises Failure for a record there that is not sound.
    """
    there = schema.load(path)["measurements"] if path.exists() else []
    return next((each for each in there if _subject(each) == _subject(made)), None)


def raw_file(root: Path, path: Path, arm: str = "all") -> Raw:
    """A raw file of the repository's ci/checkpoints/raw/. Raises Failure(USAGE) for one elsewhere,
    and Failure(ENVIRONMENT) for one that can't be read."""
    inside = path.resolve()
    if not inside.is_relative_to(root.resolve() / "ci" / "checkpoints" / "raw"):
        raise Failure(
            Exit.USAGE,
            "a raw file must lie in ci/checkpoints/raw/, or nobody could read it again",
            where=str(path),
            state="nothing was recorded",
            next="copy it to ci/checkpoints/raw/ and name it there",
        )
    try:
        data = inside.read_bytes()
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the raw file can't be read: {error.strerror}",
            where=str(path),
            state="nothing was recorded",
            next="name another file",
        ) from None
    return Raw(arm, inside.relative_to(root.resolve()).as_posix(), data)


_ORDER = (
    *("serving", "server-steps", "campaign", "kernel-bench", "local-heads"),
    *("server-answers", "steps"),
)


def _rank(made: dict) -> tuple:
    return _ORDER.index(made["reader"]), json.dumps(made["select"], sort_keys=True)


def _subject(made: dict) -> tuple:
    """What makes two measurements the same one at different times."""
    # The commit below a step may be another one by now.
    other = {"sources", "against"} if made["reader"] == "steps" else {"sources"}
    select = {key: value for key, value in made["select"].items() if key not in other}
    workload = made["workload"]["id"] if made["workload"] else None
    return made["reader"], json.dumps(select, sort_keys=True), workload
