"""An edit at any place, then `export` and `apply`: all agree, and no newer work is undone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from made_series import commit_all, snapshot
from made_wheel import command, environment, message, patchset
from patchset import export, gitenv
from patchset.errors import Exit

ENVIRON = "python/sglang/srt/environ.py"
KERNEL = "python/sglang/srt/layers/sm120/config.py"
INDEXER = "python/sglang/srt/layers/indexer.py"
WHO = {
    "GIT_AUTHOR_NAME": "someone",
    "GIT_AUTHOR_EMAIL": "x@example.invalid",
    "GIT_COMMITTER_NAME": "someone",
    "GIT_COMMITTER_EMAIL": "x@example.invalid",
}


class Place:
    """A patch repository of its own and the tree made from it."""

    def __init__(self, release, tree: Path):
        self.release, self.tree = release, tree
        self.root, self.patches = release.wheel.parent, release.patches
        (self.root / "CHECKPOINTS.md").write_text("stale\n")

    def apply(self, *more, **options) -> subprocess.CompletedProcess:
        where = ("--patches", self.patches, "--wheel", self.release.wheel)
        return patchset("apply", *where, "--to", self.tree, *more, **options)

    def export(self, *more, **options) -> subprocess.CompletedProcess:
        where = ("--patches", self.patches, "--from", self.tree)
        return patchset("export", *where, *more, **options)

    def check(self) -> subprocess.CompletedProcess:
        where = ("--root", self.root, "--wheel", self.release.wheel)
        return patchset("check", *where)

    def git(self, *line: str) -> str:
        return gitenv.text(self.tree, *line, env=WHO)

    def pull(self) -> None:
        """A newer series, as `git pull` brings it: the last hook is another one."""
        with tempfile.TemporaryDirectory() as scratch:
            newer = shutil.copytree(self.tree / ".git", Path(scratch) / ".git")
            gitenv.run(newer.parent, "checkout", "-fq", "checkpoint/0030-indexer")
            file = newer.parent / INDEXER
            file.write_bytes(file.read_bytes().replace(b"row seven", b"row SEVEN"))
            amend = ["commit", "--quiet", "-a", "--amend", "--no-edit"]
            gitenv.run(newer.parent, *amend, env=WHO)
            data = export.format_commit(newer.parent, "HEAD")
            (self.patches / "0030-indexer.patch").write_bytes(data)


@pytest.fixture
def place(own, own_tree) -> Place:
    return Place(own, own_tree)


def test_an_edited_kernel_reaches_patches_page_and_tree(place):
    (place.root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    hook = (place.patches / "0020-environ.patch").read_bytes()
    done = place.export()
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert rows[:4] == [
        ["written", "0010-kernels.patch"],
        ["unchanged", "0020-environ.patch"],
        ["unchanged", "0030-indexer.patch"],
        ["written", "CHECKPOINTS.md"],
    ]
    assert rows[-1][0] == "next" and rows[-1][1].endswith("scripts/check.sh")
    assert (place.patches / "0020-environ.patch").read_bytes() == hook
    assert place.check().returncode == 0
    again = place.apply()
    assert again.returncode == 0, again.stderr
    assert f"{place.tree} (made again: the series has changed)" in again.stdout
    assert (place.tree / KERNEL).read_text() == "WIDTH = 8\n"
    assert "(already there)" in place.apply().stdout
    assert "0 different files" in place.export().stdout


def test_a_stale_tree_never_takes_a_newer_kernel_back(place):
    """The finding: apply called the tree foreign and sent to export, which undid the edit."""
    (place.root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    assert place.export().returncode == 0
    before = snapshot(place.patches)
    assert place.export().returncode == 0
    assert snapshot(place.patches) == before


def test_a_newer_hook_is_not_undone_from_a_stale_tree(place):
    place.pull()
    before = snapshot(place.patches)
    done = place.export()
    assert done.returncode == Exit.PATCH and done.stdout == ""
    said = "exporting would undo changes made to the patches since this tree was made"
    assert (
        f"error: {said}" in done.stderr and "0030-indexer.patch differs" in done.stderr
    )
    assert f"scripts/apply.sh --to '{place.tree}' --force" in done.stderr
    assert snapshot(place.patches) == before


def test_a_tree_without_work_is_made_again_after_a_pull(place):
    place.pull()
    before = snapshot(place.tree)
    dry = place.apply("--dry-run")
    assert "(would be made again: the series has changed)" in dry.stdout
    assert snapshot(place.tree) == before
    done = place.apply("--json")
    assert json.loads(done.stdout)["state"] == "made again: the series has changed"
    assert "row SEVEN" in (place.tree / INDEXER).read_text()
    assert "(already there)" in place.apply().stdout


def a_commit(place) -> None:
    (place.tree / "python/sglang/__init__.py").write_text("mine = 1\n")
    commit_all(place.tree, message("0040-mine"))


def an_edit(place) -> None:
    (place.tree / ENVIRON).write_text("mine\n")


def a_stash(place) -> None:
    an_edit(place)
    place.git("stash", "push", "--quiet")


def another_branch(place) -> None:
    place.git("switch", "--quiet", "-c", "mine")
    a_commit(place)
    place.git("switch", "--quiet", "-")


def an_untracked_file(place) -> None:
    place.git("config", "status.showUntrackedFiles", "no")
    (place.tree / "notes").write_text("mine\n")


def an_environment(place) -> None:
    (place.tree / ".venv").mkdir()
    (place.tree / ".venv" / "mine").touch()


def a_work_tree(place) -> None:
    place.git("worktree", "add", "--quiet", "--detach", str(place.root / "linked"))


@pytest.mark.parametrize(
    "work, said",
    [
        (a_commit, "1 commit of your own"),
        (an_edit, "1 change not committed"),
        (a_stash, "2 commits of your own"),
        (another_branch, "1 commit of your own"),
        (an_untracked_file, "1 change not committed"),
        (an_environment, "ignored files: .venv/"),
        (a_work_tree, "linked work trees"),
    ],
)
def test_work_on_an_older_series_is_never_replaced(place, work, said):
    work(place)
    place.pull()
    before = snapshot(place.tree)
    done = place.apply()
    assert done.returncode == Exit.PATCH, done.stdout
    assert "error: the target holds work of yours" in done.stderr
    assert said in done.stderr and "and the series has changed since" in done.stderr
    assert "format-patch -o DIR" in done.stderr
    assert f"--to '{place.tree}' --force --wheel" in done.stderr
    assert snapshot(place.tree) == before


def test_the_way_out_of_a_refusal_works_as_it_is_printed(place):
    a_commit(place)
    place.pull()
    told = (
        place.apply().stderr.partition("next:")[2].replace("DIR", str(place.root / "w"))
    )
    lines = [line.partition(": ")[2] for line in told.strip().splitlines()]
    env = environment({"GIT_CONFIG_GLOBAL": os.devnull, **WHO})
    for line in lines:
        if "apply.sh" in line:
            _script, *options = shlex.split(line)
            line = shlex.join([*command("apply"), *options])
        assert (
            subprocess.run(line, shell=True, env=env, cwd=os.getcwd()).returncode == 0
        )
    assert "row SEVEN" in (place.tree / INDEXER).read_text()
    assert (place.tree / "python/sglang/__init__.py").read_text() == "mine = 1\n"
    done = place.export()
    assert done.returncode == 0 and "written    0040-mine.patch" in done.stdout


def test_exported_commits_are_not_in_the_way_of_a_new_tree(place):
    a_commit(place)
    assert place.export().returncode == 0
    assert "(made again: the series has changed)" in place.apply().stdout
    assert place.git("log", "-1", "--format=%an") == "sm120 patches"
    assert place.check().returncode == 0


def test_an_exported_commit_that_the_patches_lost_again_is_work(place):
    a_commit(place)
    assert place.export().returncode == 0
    (place.patches / "0040-mine.patch").unlink()
    place.pull()
    before = snapshot(place.tree)
    done = place.apply()
    assert done.returncode == Exit.PATCH and "1 commit of your own" in done.stderr
    assert snapshot(place.tree) == before


def test_hooks_can_be_exported_twice_with_a_kernel_between(place):
    a_commit(place)
    (place.root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    assert place.export().returncode == 0
    (place.tree / "python/sglang/__init__.py").write_text("mine = 2\n")
    place.git("commit", "--quiet", "-a", "--amend", "--no-edit")
    done = place.export()
    assert done.returncode == 0, done.stderr
    assert "written    0040-mine.patch" in done.stdout
    assert b"+WIDTH = 8" in (place.patches / "0010-kernels.patch").read_bytes()
    assert "made again" in place.apply().stdout
    assert (place.tree / "python/sglang/__init__.py").read_text() == "mine = 2\n"


def test_what_is_not_exported_is_said(place):
    (place.tree / ENVIRON).write_text("mine\n")
    (place.tree / "note").touch()
    done = place.export()
    assert done.returncode == 0
    assert "warning: not exported, because it is not committed:" in done.stderr
    assert f"M {ENVIRON}" in done.stderr and "?? note" in done.stderr


def test_a_generated_file_changed_in_the_tree_is_said_and_kept(place):
    (place.tree / KERNEL).write_text("WIDTH = 16\n")
    commit_all(place.tree, "fixup! 0010")
    done = place.export()
    assert done.returncode == Exit.PATCH
    assert "error: a fixup! commit is not yet squashed" in done.stderr
    rebase = f"git -C '{place.tree}' rebase -i --autosquash checkpoint/0000-stock"
    assert rebase in done.stderr
    place.git("reset", "--quiet", "--hard", "refs/patchset/base")
    files = sorted(place.patches.glob("*.patch"))
    place.git("am", "--quiet", str(files[0]))
    (place.tree / KERNEL).write_text("WIDTH = 16\n")
    place.git("commit", "--quiet", "-a", "--amend", "--no-edit")
    place.git("am", "--quiet", *map(str, files[1:]))
    done = place.export()
    assert done.returncode == 0
    assert "because it comes from kernels/ (change it there):" in done.stderr
    assert "0010-kernels.patch" in done.stderr
    (place.root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    assert place.export().returncode == 0
    done = place.apply()
    assert done.returncode == Exit.PATCH and "work of yours" in done.stderr


def test_a_git_operation_in_the_tree_is_finished_first(place):
    (place.tree / ".git" / "rebase-merge").mkdir()
    done = place.export()
    assert done.returncode == Exit.PATCH
    assert "git rebase is in progress in the tree" in done.stderr
    assert "rebase --abort" in done.stderr


def test_without_a_tree_kernels_and_page_still_agree(own):
    """Called for the repository that the scripts are in: nothing is built there yet."""
    root = own.wheel.parent
    (root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    code = (
        "import sys; from pathlib import Path; from patchset import cli, layout\n"
        "cli.here = lambda: layout.Layout(Path(sys.argv[1]))\n"
        "sys.exit(cli.main(sys.argv[2:]))"
    )
    line = [*command()[:1], "-P", "-c", code, root, "export", "--wheel", own.wheel]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "its patches stay as they are" in done.stderr
    assert "written    CHECKPOINTS.md" in done.stdout
    checked = patchset("check", "--root", root, "--wheel", own.wheel)
    assert checked.returncode == 0, checked.stdout


def test_force_says_what_was_lost(place):
    assert "\nlost " not in place.apply("--force").stdout
    a_commit(place)
    an_edit(place)
    tip = place.git("rev-parse", "HEAD")
    done = place.apply("--force", "--dry-run")
    assert "1 commit of your own" in done.stdout
    done = place.apply("--force", "--json")
    lost = json.loads(done.stdout)["discarded"]
    assert lost["tip"] == tip and len(lost["commits"]) == 1
    assert lost["edits"] == [f" M {ENVIRON}"]
    an_edit(place)
    done = place.apply("--force")
    assert "lost  1 change not committed; the tip was" in done.stdout
    assert f" M {ENVIRON}" in done.stdout


def test_a_tree_without_a_record_is_replaced_only_with_force(place):
    for key in ("series", "hooks", "tip"):
        place.git("config", "--unset", f"patchset.{key}")
    assert "(already there)" in place.apply().stdout
    (place.root / "kernels" / "config.py").write_text("WIDTH = 8\n")
    assert place.export().returncode == 0
    done = place.apply()
    assert done.returncode == Exit.PATCH
    assert "made by an older version of this tool" in done.stderr
    assert place.apply("--force").returncode == 0
