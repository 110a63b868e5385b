"""The command that the user gave, and how to call a script from where they are: for `next:` lines."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

_SCRIPTS = Path(__file__).resolve().parents[1]

# What is done where, then what it is done with: more options stand best between the two.
_PLACE = (
    *("installed", "python", "into", "source", "upto", "to", "from", "tip"),
    *("find", "probe", "over", "tree", "old", "new", "out"),
    *("serve", "smoke", "bench", "rounds"),
)
_MATERIAL = ("url", "wheel", "patches")

_DESTINATIONS = {"from": "tree", "tree": "patched"}

_Option = tuple[str, ...]
_given: dict[str, tuple[_Option, ...]] = {}


def remember(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Keep a verb's options that differ from their defaults, for again()."""
    _given.clear()
    path, _, action = parser.prog.partition(" ")
    if Path(path).suffix != ".sh":
        return
    options = []
    for name in (*_PLACE, *_MATERIAL):
        destination = _DESTINATIONS.get(name, name)
        value = getattr(arguments, destination, None)
        if value != parser.get_default(destination):
            flag = f"--{name}"
            options.append((flag,) if value is True else (flag, str(value)))
    _given[f"{Path(path).stem} {action}".strip()] = tuple(options)


def script(name: str) -> str:
    """A script of this repository as a shell word that works from the current directory."""
    return word(_SCRIPTS / name)


def word(path: Path) -> str:
    """A path in this repository as a shell word: relative from inside it, else absolute."""
    try:
        inside = Path.cwd().is_relative_to(_SCRIPTS.parent)
    except OSError:  # the current directory is gone
        inside = False
    if not inside:
        return shlex.quote(str(path))
    relative = os.path.relpath(path)
    return shlex.quote(relative if os.sep in relative else f"./{relative}")


def again(*more: str, verb: str | None = None, drop: Iterable[str] = ()) -> str:
    """The user's own command, as shell words that work from the current directory.

    Arguments: more are words to add, with what they replace left out; verb is another command
    than the user's (with their options if it is the same); drop names options to leave out. Only
    options that say where and of what are kept, so `--json`, `--dry-run` and `--force` are not.
    """
    verb = verb or next(iter(_given), "apply")
    gone = {word.removeprefix("--") for word in more if word.startswith("--")} | {*drop}
    kept = [
        option
        for option in _given.get(verb, ())
        if option[0].removeprefix("--") not in gone
    ]
    place = [option for option in kept if option[0].removeprefix("--") in _PLACE]
    material = [option for option in kept if option not in place]
    words = [*_words(place), *more, *_words(material)]
    name, *action = verb.split()
    return f"{script(f'{name}.sh')} {shlex.join([*action, *words])}".rstrip()


def _words(options: list[_Option]) -> list[str]:
    return [word for option in options for word in option]
