"""What `apply` did to a tree of its own, as a person and as a script read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from .commits import Applied
from .listing import columns, counted

MADE, ALREADY, WOULD = "made", "already there", "would be made"

_NEXT = "scripts/test.sh   (proves the patches and the kernels on this machine)"
_AFTER_DRY_RUN = "the same command without --dry-run"


@dataclass(frozen=True)
class TreeResult:
    """A patched tree: where it is, its commits, and what happened to it in this run.

    Attributes:
        source: "wheel" or "git". state: MADE, ALREADY or WOULD (a dry run writes nothing).
    """

    directory: str
    source: str
    state: str
    base: str
    applied: tuple[Applied, ...]

    @property
    def tip(self) -> str:
        return self.applied[-1].commit

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "source": self.source,
            "directory": self.directory,
            "state": self.state,
            "base": self.base,
            "tip": self.tip,
            "patches": [_patch_as_json(each) for each in self.applied],
        }

    def lines(self) -> list[str]:
        """One aligned line per patch, then the tree, its tip and the next command."""
        facts = [
            ("tree", f"{self.directory} ({self.state})"),
            ("tip", self.tip),
            ("next", _AFTER_DRY_RUN if self.state == WOULD else _NEXT),
        ]
        return [*patch_lines(self.applied), *columns(facts)]


def patch_lines(applied: Sequence[Applied]) -> list[str]:
    """One aligned line per patch: commit, name, number of files, lines added and removed."""
    return columns(
        (
            each.commit[:12],
            each.patch.name,
            counted(each.patch.changes, "file"),
            f"+{each.patch.added}",
            f"-{each.patch.removed}",
        )
        for each in applied
    )


def _patch_as_json(applied: Applied) -> dict:
    patch = applied.patch
    return {
        "number": patch.number,
        "name": patch.name,
        "commit": applied.commit,
        "tree": applied.tree,
        "files": len(patch.changes),
        "added": patch.added,
        "removed": patch.removed,
        "evidence": patch.evidence,
    }
