"""The workloads of the serving benchmark, read from ci/workload.toml."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import Exit, Failure


@dataclass(frozen=True)
class Workload:
    """One workload; digest is the sha256 of the file that it comes from."""

    id: str
    input_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    requests_per_slot: int
    rounds: int
    seed: int
    digest: str


def load(
    path: Path, wanted: str | None = None, *, option: str = "--workload ID[@C]"
) -> Workload:
    """The workload ID, or the first one; with ID@C at that concurrency alone.

    option is how the user names one. Raises Failure(USAGE) when the file can't be read, is malformed or
    has no such workload, and for a concurrency that the workload does not have.
    """
    try:
        data = path.read_bytes()
        tables = tomllib.loads(data.decode("utf-8"))["workload"]
        digest = hashlib.sha256(data).hexdigest()
        found = [_workload(table, digest) for table in tables]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _failure(path, f"the workloads can't be read: {error}", option) from None
    id, at, asked = (wanted or "").partition("@")
    for each in found:
        if wanted is None or each.id == id:
            return _narrowed(path, each, asked, option) if at else each
    names = ", ".join(each.id for each in found)
    raise _failure(path, f"no workload {id!r}; there are: {names or 'none'}", option)


def chosen(path: Path, case: str) -> tuple[Workload, int]:
    """The workload and the concurrency of WORKLOAD[@C], which is the workload's last without @C.

    Raises Failure(USAGE) as load().
    """
    found = load(path, case, option="--probe serving:WORKLOAD[@C]")
    return found, found.concurrency[-1]


def _narrowed(path: Path, work: Workload, asked: str, option: str) -> Workload:
    there = {str(each): each for each in work.concurrency}
    if asked not in there:
        what = f"the workload {work.id!r} has C={', '.join(there)}, and not C={asked!r}"
        raise _failure(path, what, option)
    return replace(work, concurrency=(there[asked],))


def _workload(table: dict, digest: str) -> Workload:
    made = Workload(
        **{**table, "concurrency": tuple(table["concurrency"])}, digest=digest
    )
    numbers = (
        made.input_tokens,
        made.output_tokens,
        made.requests_per_slot,
        made.rounds,
        *made.concurrency,
    )
    if not made.concurrency or any(type(n) is not int or n < 1 for n in numbers):
        raise ValueError(f"{made.id}: every number must be a whole one above 0")
    return made


def _failure(path: Path, what: str, option: str) -> Failure:
    return Failure(
        Exit.USAGE,
        what,
        where=str(path),
        state="nothing was measured",
        next=f"correct the file, or name a workload of it: {option}",
    )
