"""The SGLANG_SM120_* variables that the patches add, and the words that each takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from .errors import Exit, Failure
from .series import Series

_CHOICE = re.compile(
    rb"^\+ {4}(SGLANG_SM120_\w+) = EnvChoice\(\"\w+\", (\(.+\))\)$", re.MULTILINE
)
_NUMBER = re.compile(rb"^\+ {4}(SGLANG_SM120_\w+) = EnvPositiveInt\(", re.MULTILINE)


def words_of(series: Series) -> dict[str, tuple[str, ...]]:
    """Each flag of the series that takes one of a few words, with these words."""
    return {
        name.decode(): ast.literal_eval(words.decode())
        for patch in series.patches
        for name, words in _CHOICE.findall(patch.diff)
    }


def routes(series: Series) -> list[str]:
    """The flags that choose a path of the series or upstream's, which a server tells of."""
    return [name for name, words in words_of(series).items() if "auto" in words]


def require_words(variables: Mapping[str, str], series: Series) -> None:
    """Raise Failure(USAGE) for a variable whose value would stop the server at its start."""
    for name, words in words_of(series).items():
        if name in variables and variables[name] not in words:
            raise _wrong(name, variables[name], f"one of {', '.join(words)}")
    for patch in series.patches:
        for name in (found.decode() for found in _NUMBER.findall(patch.diff)):
            value = variables.get(name, "1")
            if not value.isdecimal() or int(value) == 0:
                raise _wrong(name, value, "a whole number above 0")


def require_routes(names: list[str], series: Series) -> None:
    """Raise Failure(USAGE) for a name that is none of routes()."""
    known = routes(series)
    for name in names:
        if name not in known:
            raise Failure(
                Exit.USAGE,
                f"--active: there is no flag {name}",
                state="no server was asked",
                next=f"choose of: {', '.join(known)}",
            )


def _wrong(name: str, value: str, expected: str) -> Failure:
    return Failure(
        Exit.USAGE,
        f"{name}={value!r}: expected {expected}",
        where="an environment variable",
        state="no server was started",
        next=f"give it another value, or unset {name}",
    )
