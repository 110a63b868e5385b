"""Commits out of patches: the same ids as `git am`, no other repository state touched, strict."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from made_series import STEPS, commit_all, snapshot
from made_wheel import make_release, message
from patchset import base, export, gitenv
from patchset.commits import commit_series
from patchset.errors import Exit, Failure
from patchset.series import load_patch, load_series

ENVIRON = "python/sglang/srt/environ.py"
INDEXER = "python/sglang/srt/layers/indexer.py"


def by_hand(repo: Path, files: list[Path], *options: str) -> str:
    """What a person gets from `git am` on the base, with no tool of ours; the tip's id."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_COMMITTER_NAME": "sm120 patches",
        "GIT_COMMITTER_EMAIL": "patches@sm120.invalid",
    }
    command = ["git", "-C", str(repo), "am", "--quiet", *options, *map(str, files)]
    subprocess.run(command, env=environment, check=True)
    return gitenv.text(repo, "rev-parse", "HEAD")


def on_base(tree: Path) -> Path:
    gitenv.run(tree, "checkout", "--quiet", "-B", "by-hand", base.REF)
    return tree


def test_git_am_by_hand_gives_the_same_ids(small, own_tree):
    applied = commit_series(own_tree, small.series.pin.commit, small.series)
    files = sorted(small.patches.glob("*.patch"))
    option = "--committer-date-is-author-date"
    assert by_hand(on_base(own_tree), files, option) == applied[-1].commit
    bare = by_hand(on_base(own_tree), files)
    assert bare != applied[-1].commit
    tree = gitenv.text(own_tree, "rev-parse", f"{bare}^{{tree}}")
    assert tree == applied[-1].tree


AWKWARD: dict[str, bytes | None] = {
    ENVIRON: b"--- a/x\n+++ b/x\n@@ -1 +1 @@\ndiff --git a/x b/x\n-- \nFrom x\nno newline",
    "python/sglang/srt/new.py": b"\n\n--- \nlast",
    "python/sglang/srt/a file with spaces, and=more [1].json": b"{}\n",
    "python/sglang/srt/empty.py": b"",
    "python/sglang/srt/__init__.py": b"no longer empty\n",
    "python/sglang/srt/layers/indexer.py": None,
}


def test_awkward_content_survives(tmp_path):
    back = {**AWKWARD, ENVIRON: b"-- \n+++ b/x\nno newline", INDEXER: b"again\n"}
    steps = [STEPS[0], ("0020-awkward", AWKWARD), ("0030-back", back)]
    release = make_release(tmp_path, steps=steps)
    series, made = release.series, tmp_path / "made"
    applied = commit_series(made, series.pin.commit, series)
    assert applied[-1].commit == gitenv.text(made, "rev-parse", "HEAD")
    for each, (_, files) in zip(applied, steps, strict=True):
        changed = {change.path: change for change in each.patch.changes}
        for path, data in files.items():
            if data is None:
                assert changed[path].new_blob is None
            else:
                assert gitenv.run(made, "show", f"{each.commit}:{path}") == data
    files = sorted(release.patches.glob("*.patch"))
    tip = by_hand(on_base(made), files, "--committer-date-is-author-date")
    assert tip == applied[-1].commit


def test_a_change_of_mode_alone_is_refused(small_tree, tmp_path):
    tree = Path(shutil.copytree(small_tree, tmp_path / "tree", symlinks=True))
    (tree / ENVIRON).chmod(0o755)
    commit_all(tree, message("0040-mode"))
    (tmp_path / "0040-mode.patch").write_bytes(export.format_commit(tree, "HEAD"))
    with pytest.raises(Failure, match="a change of mode alone"):
        load_patch(tmp_path / "0040-mode.patch")


def test_only_objects_are_written(small, tmp_path):
    base.init_repository(tmp_path)
    base.import_base(tmp_path, small.wheel, small.series.pin)
    gitenv.run(tmp_path, "checkout", "--quiet", "-B", "theirs", base.REF)
    (tmp_path / ENVIRON).write_text("work of the user\n")
    before = without_objects(tmp_path)
    applied = commit_series(tmp_path, small.series.pin.commit, small.series)
    assert without_objects(tmp_path) == before
    assert gitenv.text(tmp_path, "cat-file", "-t", applied[-1].commit) == "commit"


def without_objects(repo: Path) -> dict:
    return {k: v for k, v in snapshot(repo).items() if ".git/objects" not in k}


def test_a_tree_that_starts_at_sglang_gets_the_same_files(small, own_tree):
    subtree = gitenv.text(own_tree, "rev-parse", f"{base.REF}:python")
    top = gitenv.text(own_tree, "commit-tree", subtree, "-m", "bare", env=_who())
    applied = commit_series(own_tree, top, small.series, strip_prefix="python/")
    whole = commit_series(own_tree, small.series.pin.commit, small.series)
    for one, other in zip(applied, whole, strict=True):
        assert one.tree == gitenv.text(own_tree, "rev-parse", f"{other.commit}:python")


def _who() -> dict[str, str]:
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL")
    names += ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    return dict.fromkeys(names, "someone")


def test_each_refusal_is_told_apart(small, own_tree):
    series = small.series
    applied = commit_series(own_tree, series.pin.commit, series)

    def refused(commit, *patches) -> Failure:
        with pytest.raises(Failure) as caught:
            commit_series(own_tree, commit, replace(series, patches=patches))
        assert caught.value.code == Exit.PATCH
        return caught.value

    first, second, third = series.patches
    again = refused(applied[0].commit, first)
    assert again.what == "0010-kernels is already applied"
    assert "sm120/config.py" in again.where

    # One of the third patch's files is as the patch leaves it, the others as before.
    half = edited_tree(own_tree, applied[1].commit, ENVIRON, third)
    partly = refused(half, third)
    assert partly.what == "0030-indexer is partly applied"
    assert f"already changed: {ENVIRON};" in partly.where
    assert "still as before: python/sglang/srt/layers/indexer.py" in partly.where

    # The second patch is missing below the third: its hunk finds other lines.
    below = edited_tree(own_tree, applied[0].commit, ENVIRON, b"nothing of it\n")
    conflict = refused(below, second)
    assert conflict.what == "0020-environ conflicts in this hunk"
    assert f"{ENVIRON} @@ -1,6 +1,7 @@" in conflict.where
    assert f"foreign files: {ENVIRON}" in conflict.where

    # The hunk would fit, but the file is not the one that the patch was made for.
    text = gitenv.run(own_tree, "show", f"{applied[0].commit}:{ENVIRON}")
    longer = edited_tree(own_tree, applied[0].commit, ENVIRON, text + b"new last\n")
    foreign = refused(longer, second)
    assert foreign.what == "0020-environ meets files that it was not made for"
    assert foreign.where == ENVIRON


def edited_tree(repo: Path, commit: str, path: str, content) -> str:
    """A commit like this one, with one file as `content`: bytes, or a patch that has its blob."""
    if isinstance(content, bytes):
        command = ["hash-object", "-w", "--stdin"]
        blob = gitenv.run(repo, *command, input=content).decode().strip()
    else:
        (blob,) = [c.new_blob for c in content.changes if c.path == path]
    env = {"GIT_INDEX_FILE": str(repo / ".git" / "test-index"), **_who()}
    gitenv.run(repo, "read-tree", commit, env=env)
    gitenv.run(repo, "update-index", "--cacheinfo", f"100644,{blob},{path}", env=env)
    tree = gitenv.text(repo, "write-tree", env=env)
    return gitenv.text(repo, "commit-tree", tree, "-m", "edited", env=env)


def test_an_edited_hunk_is_refused_although_it_applies(own, own_tree):
    path = own.patches / "0020-environ.patch"
    path.write_bytes(path.read_bytes().replace(b"+flag = 1\n", b"+flag = 2\n"))
    series = load_series(own.patches)
    with pytest.raises(Failure) as caught:
        commit_series(own_tree, series.pin.commit, series)
    assert "another result than its index line says" in caught.value.what
    assert ENVIRON in caught.value.where and "export" in caught.value.next


def test_a_conflict_in_the_middle_names_patch_file_and_hunk(own, own_tree):
    path = own.patches / "0020-environ.patch"
    path.write_bytes(path.read_bytes().replace(b"\n line 2\n", b"\n line two\n"))
    series = load_series(own.patches)
    with pytest.raises(Failure) as caught:
        commit_series(own_tree, series.pin.commit, series)
    assert caught.value.what == "0020-environ conflicts in this hunk"
    assert caught.value.where == f"{ENVIRON} @@ -1,6 +1,7 @@"


def test_the_steps_are_what_the_release_says(small, own_tree):
    applied = commit_series(own_tree, small.series.pin.commit, small.series)
    for each, (_, files) in zip(applied, STEPS, strict=True):
        for path, data in files.items():
            assert gitenv.run(own_tree, "show", f"{each.commit}:{path}") == data
