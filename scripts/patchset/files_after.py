"""Files after a series, computed by git in a repository of its own, away from the files themselves.

Next to the files it can't be done: inside a project's work tree `git apply` skips whatever the project ignores, with
exit code 0, and an environment often lies in one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import disk, gitenv, scratchrepo
from .commits import commit_series
from .series import Series

_ANOTHER = (
    "name a writable temporary directory in TMPDIR, then run the same command again"
)


def files_after(
    series: Series, read: Callable[[str], bytes | None]
) -> dict[str, bytes | None]:
    """The bytes of each path that `series` touches once it is applied (None: the file is gone).

    `read` gives the bytes of a path before, or None. Raises Failure(PATCH) when a patch does not apply.
    """
    place = tempfile.gettempdir()
    with (
        disk.errors(place, "nothing was changed", _ANOTHER),
        scratchrepo.empty() as scratch,
    ):
        tip = commit_series(scratch, _base(series, read, scratch), series)[-1].commit
        last = {c.path: c for patch in series.patches for c in patch.changes}
        return {
            path: _blob(scratch, f"{tip}:{path}") if change.new_blob else None
            for path, change in last.items()
        }


def _base(series: Series, read: Callable[[str], bytes | None], scratch: Path) -> str:
    """A commit that has only the touched files, as `read` gives them."""
    modes = {
        change.path: change.old_mode
        for patch in reversed(series.patches)
        for change in patch.changes
    }
    entries = []
    for path in series.paths:
        data = read(path)
        if data is not None:
            command = ["hash-object", "-w", "--stdin"]
            blob = gitenv.run(scratch, *command, input=data).decode().strip()
            entries.append(f"{modes[path] or '100644'} {blob}\t{path}\0")
    index = {"GIT_INDEX_FILE": os.path.join(scratch, "scratch-index")}
    listing = "".join(entries).encode()
    gitenv.run(scratch, "update-index", "-z", "--index-info", input=listing, env=index)
    tree = gitenv.text(scratch, "write-tree", env=index)
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        who[f"GIT_{role}_NAME"] = "patchset"
        who[f"GIT_{role}_EMAIL"] = "patches@sm120.invalid"
        who[f"GIT_{role}_DATE"] = "@0 +0000"
    return gitenv.text(scratch, "commit-tree", tree, "-m", "base", env=who)


def _blob(repo_dir: Path, name: str) -> bytes:
    return gitenv.run(repo_dir, "cat-file", "blob", name)
