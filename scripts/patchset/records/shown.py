"""The records that a rendered page shows: one that is gone must not take its rows with it unseen."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from .. import invocation
from ..errors import Exit, Failure
from ..listing import listed

# Name and address alike: a link that was edited is no record that is gone.
_LINK = re.compile(r"\[(\d{4}-[a-z0-9.-]+)\]\(ci/checkpoints/\1\.json\)")


def gone(page: Path, records: Path) -> list[str]:
    """Ids that a page has rows of and that have no record."""
    if not page.is_file():
        return []
    ids = set(_LINK.findall(page.read_bytes().decode(errors="replace")))
    return sorted(id for id in ids if not (records / f"{id}.json").exists())


def require(page: Path, records: Path, dropped: Collection[str] = ()) -> None:
    """Raise Failure(PATCH) where rendering would take rows out of a page whose records are gone, but
    for those that were dropped on purpose."""
    lost = [id for id in gone(page, records) if id not in dropped]
    if lost:
        drop = [word for id in lost for word in ("--drop", id)]
        render = invocation.again(*drop, verb="checkpoint render")
        files = [records / f"{id}.json" for id in lost]
        back = " ".join(invocation.word(file) for file in files)
        raise Failure(
            Exit.PATCH,
            f"{page.name} has rows of records that are gone",
            where=listed([str(file) for file in files]),
            state="nothing was changed",
            next=f"put back what is gone: git checkout -- {back}; to take their rows out: {render}",
        )
