"""SHA256SUMS beside the raw files: which there are, and that none was changed since (`sha256sum -c`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from .. import atomic, invocation
from ..errors import Exit, Failure

NAME = "SHA256SUMS"
_ENTRY = re.compile(r"([0-9a-f]{64})  (\S.*)")
_SHOWN = 60


def is_gone(raw: Path, recorded: Collection[str]) -> bool:
    """Whether there is no list, though there are raw files that records were read from."""
    return bool(recorded) and not (raw / NAME).is_file()


def problems(raw: Path, recorded: Collection[str]) -> list[str]:
    """Files of the list that are gone or have other bytes, lines that are no entry, and what the list
    lacks of the files (names in raw) that records were read from."""
    if is_gone(raw, recorded):
        return [f"{NAME} is gone"]
    entries, found = _read(raw)
    for name, digest in entries.items():
        file = raw / name
        if not file.is_file():
            found.append(f"{name} is gone")
        elif sha256(file) != digest:
            found.append(f"{name} was changed: its sha256 is not that of {NAME}")
    missing = sorted({*recorded} - entries.keys())
    return found + [f"{name} was recorded, and {NAME} lacks it" for name in missing]


def unlisted(raw: Path, recorded: Collection[str]) -> list[str]:
    """Raw files that the list does not have yet, without those that records were read from: these
    were in it."""
    if is_gone(raw, recorded):
        return []
    return sorted(names(raw) - _read(raw)[0].keys() - {*recorded})


def require(raw: Path, recorded: Collection[str]) -> None:
    """Raise Failure(PATCH) where the list is gone or has a line that is no entry: one that is written
    again from the files as they are would prove nothing."""
    wrong = [f"{NAME} is gone"] if is_gone(raw, recorded) else _read(raw)[1]
    if wrong:
        file = raw / NAME
        raise Failure(
            Exit.PATCH,
            "the list of raw files is not sound",
            where="\n".join([str(file), *wrong]),
            state="nothing was changed",
            next=f"put it back: git checkout -- {invocation.word(file)}",
        )


def put(raw: Path, new: Iterable[str]) -> None:
    """Put files in a sound list as they are now. Raises OSError."""
    listed = {**entries(raw), **{name: sha256(raw / name) for name in new}}
    text = "".join(f"{listed[name]}  {name}\n" for name in sorted(listed))
    atomic.write(raw / NAME, text.encode())


def entries(raw: Path) -> dict[str, str]:
    """The sha256 of each file in the list; empty where there is none."""
    return _read(raw)[0]


def names(raw: Path) -> set[str]:
    """The raw files that are there, but for the list itself."""
    return {
        path.relative_to(raw).as_posix()
        for path in raw.rglob("*")
        if path.is_file() and path.name != NAME and not path.name.startswith(".")
    }


def _read(raw: Path) -> tuple[dict[str, str], list[str]]:
    """The entries, and the lines that are none."""
    try:
        text = (raw / NAME).read_bytes().decode(errors="backslashreplace")
    except FileNotFoundError:
        return {}, []
    found, wrong = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            wrong.append(f"line {number} of {NAME} is no entry: {_shown(line)}")
        elif entry[2] in found:
            wrong.append(f"line {number} of {NAME} is a second entry of {entry[2]}")
        else:
            found[entry[2]] = entry[1]
    return found, wrong


def _shown(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")


def sha256(file: Path) -> str:
    """The sha256 of a file. Raises OSError."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
