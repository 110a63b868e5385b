"""The patched tree of one commit of this repository: its patches over the pinned release."""

from __future__ import annotations

from pathlib import Path

from .. import gitenv
from ..commits import commit_series
from ..errors import Exit, Failure
from ..layout import RELEASE, Layout
from ..series import load_series


def make(checkout: Path, repo: Path) -> tuple[Path, str | None]:
    """Check out in `repo`, which holds the pinned base, what the patches of `checkout` make of it.

    Returns the tree, and why this commit has none: no patches, patches that are malformed or do not
    apply, another release. Raises Failure for anything that is not the commit's fault.
    """
    patches = Layout(checkout).patches
    if not (patches / "upstream.toml").is_file():
        return repo, f"it has no patches/{RELEASE}"
    try:
        series = load_series(patches)
        if not gitenv.has_commit(repo, series.pin.commit):
            return repo, f"it is pinned to another base, {series.pin.commit}"
        applied = commit_series(repo, series.pin.commit, series)
    except Failure as failure:
        if failure.code != Exit.PATCH:
            raise
        return repo, failure.what
    gitenv.run(repo, "checkout", "--quiet", "--force", "--detach", applied[-1].commit)
    gitenv.run(repo, "clean", "-fdxq")
    return repo, None
