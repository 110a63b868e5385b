"""The pinned SGLang revision that a patch directory belongs to, read from its upstream.toml."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .errors import Exit, Failure

FILE_NAME = "upstream.toml"

_HEX = {40: "a 40-digit git object id", 64: "a 64-digit sha256"}


@dataclass(frozen=True)
class Wheel:
    """One published wheel whose bytes were checked."""

    name: str
    sha256: str
    platform: str
    python: str


@dataclass(frozen=True)
class Pin:
    """One upstream release: its wheels, and the tree and commit ids of the imported base."""

    version: str
    tag: str
    wheels: tuple[Wheel, ...]
    tree: str
    commit: str
    git_url: str

    @property
    def wheel(self) -> Wheel:
        """The wheel that everybody imports, whatever Python runs the tool: the first one listed."""
        return self.wheels[0]


def load_pin(directory: Path) -> Pin:
    """Read upstream.toml in a patch directory. Raises Failure(PATCH) naming the bad key."""
    path = Path(directory) / FILE_NAME
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _bad(path, "is missing") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad(path, f"cannot be read: {error}") from None
    wheels = values.get("wheel")
    if not isinstance(wheels, list) or not wheels:
        raise _bad(path, "needs at least one [[wheel]]")
    return Pin(
        version=_text(path, values, "version"),
        tag=_text(path, values, "tag"),
        wheels=tuple(_wheel(path, number, item) for number, item in enumerate(wheels)),
        tree=_hex(path, values, "tree", 40),
        commit=_hex(path, values, "commit", 40),
        git_url=_text(path, values, "git_url"),
    )


def _wheel(path: Path, number: int, item: object) -> Wheel:
    if not isinstance(item, dict):
        raise _bad(path, f"[[wheel]] {number + 1} is not a table")
    return Wheel(
        name=_text(path, item, "name"),
        sha256=_hex(path, item, "sha256", 64),
        platform=_text(path, item, "platform"),
        python=_text(path, item, "python"),
    )


def _text(path: Path, values: dict, key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise _bad(path, f"needs a string {key!r}, found {value!r}")
    return value


def _hex(path: Path, values: dict, key: str, digits: int) -> str:
    value = _text(path, values, key)
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
        raise _bad(path, f"{key!r} is not {_HEX[digits]}: {value!r}")
    return value


def _bad(path: Path, what: str) -> Failure:
    return Failure(
        Exit.PATCH,
        f"{path.name} {what}",
        where=str(path),
        state="nothing was changed",
        next=f"restore it: git checkout -- {shlex.quote(str(path))}",
    )
