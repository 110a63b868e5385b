"""Patch files out of commits: the round trip, and every way in which it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_series import commit_all, snapshot
from made_wheel import ROOT, message, patchset
from patchset import base, export, gitenv
from patchset.commits import commit_series
from patchset.errors import Exit, Failure
from patchset.series import load_series, read_files

ENVIRON = "python/sglang/srt/environ.py"

# Settings of a user or of the tree itself that change what `git format-patch` writes.
LOUD = {
    "format.headers": "X-Mine: 1\n",
    "format.signOff": "true",
    "format.signature": "mine",
    "format.subjectPrefix": "MINE",
    "format.numbered": "true",
    "format.attach": "true",
    "format.notes": "true",
    "format.thread": "deep",
    "format.from": "Someone <someone@example.invalid>",
    "format.to": "list@example.invalid",
    "format.useAutoBase": "whenAble",
    "format.coverLetter": "true",
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.context": "9",
    "diff.interHunkContext": "40",
    "diff.algorithm": "patience",
    "diff.renames": "copies",
    "diff.indentHeuristic": "false",
    "diff.suppressBlankEmpty": "true",
    "diff.statGraphWidth": "10",
    "diff.external": "false",
    "core.abbrev": "7",
    "core.quotePath": "false",
    "core.attributesFile": "/dev/stdin",
    "color.ui": "always",
    "i18n.logOutputEncoding": "latin1",
    "log.date": "relative",
    "core.commentChar": "%",
    "diff.orderFile": "/dev/null",
}


def patch_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.patch")}


def test_the_round_trip_is_exact(small, small_tree):
    files = export.export_tree(small_tree, base.REF, "HEAD")
    assert files == patch_files(small.patches)


def test_the_real_round_trip_is_exact(real_base):
    series = load_series(ROOT / "patches" / "0.5.13")
    applied = commit_series(real_base, series.pin.commit, series)
    files = export.export_tree(real_base, series.pin.commit, applied[-1].commit)
    assert files == patch_files(series.directory)


def test_settings_of_the_tree_and_of_the_user_change_nothing(small, own_tree, tmp_path):
    for key, value in LOUD.items():
        gitenv.run(own_tree, "config", key, value)
    (own_tree / ".git" / "info" / "attributes").write_text("* -diff\n")
    home = tmp_path / "home"
    home.mkdir()
    loud = (own_tree / ".git" / "config").read_text()
    (home / ".gitconfig").write_text(loud)
    env = {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / ".gitconfig")}
    env |= {"GIT_DIFF_OPTS": "-u9", "GIT_EXTERNAL_DIFF": "false", "COLUMNS": "40"}
    done = patchset(
        "export", "--from", own_tree, "--patches", small.patches, "--dry-run", env=env
    )
    assert (done.returncode, done.stdout) == (0, "3 patches, 0 different files\n")


def test_a_replaced_commit_changes_nothing(small, own_tree):
    tip = gitenv.text(own_tree, "rev-parse", "HEAD")
    gitenv.run(own_tree, "replace", tip, f"{tip}~1")
    assert export.export_tree(own_tree, base.REF, tip) == patch_files(small.patches)


def add_patch(tree: Path, name: str = "0040-more") -> None:
    (tree / ENVIRON).write_bytes((tree / ENVIRON).read_bytes() + b"one more\n")
    commit_all(tree, message(name))


def test_a_new_commit_becomes_a_new_file_that_applies(own, own_tree, tmp_path):
    add_patch(own_tree)
    where = ("--from", own_tree, "--patches", own.patches)
    before = snapshot(own.patches)
    dry = patchset("export", *where, "--dry-run")
    assert dry.returncode == Exit.NO
    assert dry.stdout.splitlines()[0] == "0040-more.patch has no file"
    assert snapshot(own.patches) == before
    done = patchset("export", *where, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["missing"] == ["0040-more.patch"]
    series = load_series(own.patches)
    assert [p.name for p in series.patches][-1] == "0040-more"
    applied = commit_series(own_tree, series.pin.commit, series)
    assert applied[-1].commit == gitenv.text(own_tree, "rev-parse", "HEAD")


def test_another_author_is_written_as_the_series_author(own, own_tree):
    who = {"GIT_AUTHOR_NAME": "Someone", "GIT_AUTHOR_EMAIL": "someone@example.invalid"}
    who |= {"GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@example.invalid"}
    (own_tree / ENVIRON).write_bytes(b"other\n")
    gitenv.run(own_tree, "commit", "-aqm", message("0040-more"), env=who)
    files = export.export_tree(own_tree, base.REF, "HEAD")
    line = b"From: sm120 patches <patches@sm120.invalid>\n"
    assert files["0040-more.patch"].count(line) == 1
    assert b"Someone" not in files["0040-more.patch"]


def test_a_changed_file_is_told_with_its_first_line(own, own_tree):
    path = own.patches / "0020-environ.patch"
    path.write_bytes(path.read_bytes().replace(b"+flag = 1", b"+flag = 2"))
    difference = export.compare(
        read_files(own.patches), export.export_tree(own_tree, base.REF, "HEAD")
    )
    (line,) = difference.lines()
    assert line.startswith("0020-environ.patch differs at line ")
    assert "file '+flag = 2', exported '+flag = 1'" in line
    assert export.first_difference(b"a\nb", b"a\nb\nc") == "line 3: one ends there"


def test_files_without_a_commit_are_kept_unless_pruned(own, own_tree):
    gitenv.run(own_tree, "reset", "--hard", "--quiet", "HEAD~1")
    where = ("--from", own_tree, "--patches", own.patches)
    before = snapshot(own.patches)
    done = patchset("export", *where)
    assert done.returncode == Exit.PATCH
    assert "no commit in the tree: 0030-indexer.patch" in done.stderr
    assert snapshot(own.patches) == before
    assert patchset("export", *where, "--prune").returncode == 0
    assert sorted(patch_files(own.patches)) == [
        "0010-kernels.patch",
        "0020-environ.patch",
    ]


def refused(tree: Path, tip: str = "HEAD") -> str:
    with pytest.raises(Failure) as caught:
        export.export_tree(tree, base.REF, tip)
    assert caught.value.code == Exit.PATCH and "export.sh" in caught.value.next
    return caught.value.what


def test_commits_that_make_no_series_are_refused(own_tree):
    start = gitenv.text(own_tree, "rev-parse", "HEAD")
    commit_all(own_tree, "no change")
    assert "the commit changes nothing" in refused(own_tree)
    gitenv.run(own_tree, "reset", "--hard", "--quiet", start)
    (own_tree / ENVIRON).write_bytes(b"no trailer\n")
    commit_all(own_tree, "no trailer")
    assert "needs a trailer 'Patch: NNNN-slug', found ''" in refused(own_tree)
    gitenv.run(own_tree, "reset", "--hard", "--quiet", start)
    add_patch(own_tree, "0030-indexer")
    assert "two commits have the trailer Patch: 0030-indexer" in refused(own_tree)
    gitenv.run(own_tree, "reset", "--hard", "--quiet", start)
    add_patch(own_tree, "0025-late")
    assert "0025-late comes after 0030-indexer" in refused(own_tree)
    gitenv.run(own_tree, "reset", "--hard", "--quiet", start)
    add_patch(own_tree, "x/../y")
    assert "needs a trailer 'Patch: NNNN-slug', found 'x/../y'" in refused(own_tree)


def test_a_merge_and_a_foreign_base_are_refused(own_tree):
    start = gitenv.text(own_tree, "rev-parse", "HEAD")
    who = dict.fromkeys(
        (
            "GIT_AUTHOR_NAME",
            "GIT_AUTHOR_EMAIL",
            "GIT_COMMITTER_NAME",
            "GIT_COMMITTER_EMAIL",
        ),
        "someone",
    )
    tree = gitenv.text(own_tree, "rev-parse", "HEAD^{tree}")
    parents = ["-p", start, "-p", f"{start}~1"]
    command = ["commit-tree", tree, *parents, "-m", message("0040-merge")]
    assert "has a merge" in refused(own_tree, gitenv.text(own_tree, *command, env=who))
    orphan = gitenv.text(own_tree, "commit-tree", tree, "-m", "alone", env=who)
    assert "not below the tip" in refused(own_tree, orphan)


def test_export_needs_a_tree_that_is_ours(small, tmp_path):
    absent = patchset("export", "--from", tmp_path / "no", "--patches", small.patches)
    assert absent.returncode == Exit.USAGE
    assert "no patched tree to export" in absent.stderr
    foreign = tmp_path / "theirs"
    foreign.mkdir()
    gitenv.run(foreign, "init", "--quiet", "--template=")
    done = patchset("export", "--from", foreign, "--patches", small.patches)
    assert done.returncode == Exit.PATCH and "did not make" in done.stderr


def test_a_tip_that_is_no_commit(small, small_tree):
    done = patchset(
        "export", "--from", small_tree, "--patches", small.patches, "--tip", "nope"
    )
    assert done.returncode == Exit.USAGE
    assert "nope" in done.stderr and "Traceback" not in done.stderr
