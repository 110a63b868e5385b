"""What `apply` did to a tree of its own, as a person and as a script read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from . import invocation
from .commits import Applied, tip
from .listing import LIMIT, columns, counted
from .own_work import OwnWork

MADE, ALREADY = "made", "already there"
MADE_AGAIN = "made again: the series has changed"

_PROVES = "(proves the patches and the kernels on this machine)"
_AFTER_DRY_RUN = "the same command without --dry-run"


@dataclass(frozen=True)
class TreeResult:
    """A patched tree: where it is, its commits, and what happened to it in this run.

    Attributes:
        source: "wheel" or "git". state: MADE, ALREADY or MADE_AGAIN; "would be" before it in a
            dry run, which writes nothing.
        discarded: work of the user in a tree that was replaced because --force said so.
    """

    directory: str
    source: str
    state: str
    base: str
    applied: tuple[Applied, ...]
    discarded: OwnWork | None = None

    @property
    def tip(self) -> str:
        return tip(self.base, self.applied)

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "source": self.source,
            "directory": self.directory,
            "state": self.state,
            "base": self.base,
            "tip": self.tip,
            "discarded": self.discarded.as_json() if self.discarded else None,
            "patches": [_patch_as_json(each) for each in self.applied],
        }

    def lines(self) -> list[str]:
        """One aligned line per patch, then the tree, its tip and the next command."""
        planned = self.state.startswith("would")
        proof = f"{invocation.script('test.sh')}   {_PROVES}"
        facts = [
            ("tree", f"{self.directory} ({self.state})"),
            *_loss(self.discarded),
            ("tip", self.tip),
            ("next", _AFTER_DRY_RUN if planned else proof),
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


def _loss(discarded: OwnWork | None) -> list[tuple[str, str]]:
    if not discarded:
        return []
    lines = [*discarded.commits, *discarded.edits]
    told = [("", line) for line in lines[:LIMIT]]
    more = [("", f"and {len(lines) - LIMIT} more")] if len(lines) > LIMIT else []
    return [
        ("lost", f"{discarded.summary()}; the tip was {discarded.tip}"),
        *told,
        *more,
    ]


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
