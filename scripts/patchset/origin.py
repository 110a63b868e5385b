"""What a tree was made from, recorded in its own git config: release, source, series, commits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import gitenv
from .series import Series

_SECTION = "patchset"


@dataclass(frozen=True)
class Origin:
    """The record in one tree; a key that is not there is "".

    Attributes:
        release, source: the SGLang version and where it came from, "wheel" or "git".
        series, hooks: digests of the patch files that the tree was made from: of all, and of
            those that are not generated. hooks moves on with each export from the tree.
        tip: the commit that `apply` left checked out.
        exported: the commit whose whole line `export` last wrote into the patch files.
    """

    release: str = ""
    source: str = ""
    series: str = ""
    hooks: str = ""
    tip: str = ""
    exported: str = ""


def write_new(tree: Path, series: Series, source: str, tip: str) -> None:
    """Write the record of a tree that is made from a whole series. Raises GitCommandError."""
    write(
        tree,
        release=series.pin.version,
        source=source,
        series=series.digest,
        hooks=series.hook_digest,
        tip=tip,
    )


def read(tree: Path) -> Origin:
    """The record in a tree; empty for one that this tool did not make."""
    # A parent directory may be a repository too: only the tree's own file counts.
    command = ["config", "--file", str(_file(tree)), "--null", "--get-regexp"]
    try:
        found = gitenv.text(tree, *command, rf"^{_SECTION}\.")
    except gitenv.GitCommandError:
        return Origin()
    entries = dict(entry.partition("\n")[::2] for entry in found.split("\0") if entry)
    known = {name: entries.get(f"{_SECTION}.{name}", "") for name in vars(Origin())}
    return Origin(**known)


def write(tree: Path, **values: str) -> None:
    """Change these keys of the record in a tree. Raises GitCommandError."""
    for name, value in values.items():
        command = ["config", "--file", str(_file(tree)), f"{_SECTION}.{name}", value]
        gitenv.run(tree, *command)


def _file(tree: Path) -> Path:
    # Absolute: git is started in the tree, where a relative path would name something else.
    return tree.absolute() / ".git" / "config"
