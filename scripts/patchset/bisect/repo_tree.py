"""The patched tree of one commit of this repository: its patches over the pinned release."""

from __future__ import annotations

from pathlib import Path

from .. import gitenv
from ..commits import commit_series
from ..errors import Exit, Failure
from ..layout import RELEASE, Layout
from ..pin import load_pin
from ..series import load_series, read_files


def make(checkout: Path, repo: Path) -> tuple[Path, str | None]:
    """Check out in `repo`, which holds the pinned base, what the patches of `checkout` make of it.

    Without any patch that is the release itself. Returns the tree, and why this commit has none: no pin,
    patches that are malformed or do not apply, another release. Raises Failure for anything that is
    not the commit's fault.
    """
    patches = Layout(checkout).patches
    if not (patches / "upstream.toml").is_file():
        return repo, f"it has no patches/{RELEASE}"
    try:
        tip = load_pin(patches).commit
        if not gitenv.has_commit(repo, tip):
            return repo, f"it is pinned to another base, {tip}"
        if read_files(patches):
            tip = commit_series(repo, tip, load_series(patches))[-1].commit
    except Failure as failure:
        if failure.code != Exit.PATCH:
            raise
        return repo, failure.what
    gitenv.run(repo, "checkout", "--quiet", "--force", "--detach", tip)
    gitenv.run(repo, "clean", "-fdxq")
    return repo, None
