"""The tree that `apply` makes, and what it says about a target that is already there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from made_series import BASE, STEPS, after, commit_all, snapshot
from made_wheel import command, environment, make_release, patchset
from patchset import gitenv
from patchset.errors import Exit

ENVIRON = "python/sglang/srt/environ.py"
NEW = "python/sglang/srt/layers/sm120/config.py"


@pytest.fixture
def apply(small):
    """Run `apply` of the small release to a target."""

    def run(target: Path, *more, patches: Path = small.patches, **options):
        line = ["apply", "--patches", patches, "--wheel", small.wheel, "--to", target]
        return patchset(*line, *more, **options)

    return run


def refused(done, target: Path, *said: str, before=None) -> None:
    assert done.returncode == Exit.PATCH, done.stderr
    assert done.stdout == ""
    labels = [line.split(":")[0] for line in done.stderr.splitlines() if line[0] != " "]
    assert labels[-4:] == ["error", "where", "state", "next"]
    for part in (*said, str(target), "the target is as it was"):
        assert part in done.stderr
    if before is not None:
        assert snapshot(target) == before


def test_a_new_tree(small, apply, tmp_path):
    target = tmp_path / "new dir" / "t\u00fcr"
    done = apply(target)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    tip = gitenv.text(target, "rev-parse", "HEAD")
    commits = gitenv.text(target, "rev-list", "--reverse", "HEAD").split()
    assert [line.split()[0] for line in lines[:3]] == [c[:12] for c in commits[1:]]
    assert [line.split()[1] for line in lines[:3]] == [name for name, _ in STEPS]
    assert [line.split()[2:] for line in lines[:3]] == [
        ["2", "files", "+1", "-0"],
        ["1", "file", "+1", "-0"],
        ["3", "files", "+3", "-2"],
    ]
    assert len({line.index("file") for line in lines[:3]}) == 1
    assert lines[3] == f"tree  {target} (made)"
    assert lines[4] == f"tip   {tip}"
    assert lines[5].startswith("next  scripts/")
    assert list(target.parent.iterdir()) == [target]
    assert gitenv.text(target, "status", "--porcelain") == ""
    files = {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in (target / "python").rglob("*")
        if path.is_file()
    }
    assert files == after()
    assert os.access(target / "python/sglang/srt/layers/run.sh", os.X_OK)
    refs = gitenv.text(target, "for-each-ref", "--format=%(refname) %(objectname)")
    assert dict(line.split() for line in refs.splitlines()) == {
        "refs/heads/sm120-0.5.13": tip,
        "refs/patchset/base": small.series.pin.commit,
        "refs/tags/checkpoint/0000-stock": small.series.pin.commit,
        "refs/tags/checkpoint/0030-indexer": tip,
    }
    assert gitenv.text(target, "symbolic-ref", "HEAD") == "refs/heads/sm120-0.5.13"


def test_a_second_run_finds_it_there(small, apply, tmp_path):
    first = apply(tmp_path / "t")
    before = snapshot(tmp_path / "t")
    # Without a wheel to be had: none is needed.
    env = {"PATCHSET_CACHE": str(tmp_path / "none"), "PIP_NO_INDEX": "1"}
    line = ("--patches", small.patches, "--to", tmp_path / "t")
    again = patchset("apply", *line, env=env | {"PIP_CONFIG_FILE": os.devnull})
    assert again.returncode == 0
    assert again.stdout == first.stdout.replace("(made)", "(already there)")
    assert snapshot(tmp_path / "t") == before
    assert os.listdir(tmp_path) == ["t"]


def test_an_empty_directory_is_filled_and_a_link_followed(apply, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert apply(tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / NEW).exists()
    assert "(already there)" in apply(tmp_path / "link").stdout


def test_json(small, apply, tmp_path):
    done = apply(tmp_path / "t", "--json")
    result = json.loads(done.stdout)
    assert result["state"] == "made" and result["source"] == "wheel"
    assert result["base"] == small.series.pin.commit
    assert result["tip"] == gitenv.text(tmp_path / "t", "rev-parse", "HEAD")
    last = result["patches"][-1]
    assert last["commit"] == result["tip"] and last["evidence"] == "0030-indexer"
    tree = gitenv.text(tmp_path / "t", "rev-parse", "HEAD^{tree}")
    assert last["tree"] == tree
    again = json.loads(apply(tmp_path / "t", "--json").stdout)
    assert again == {**result, "state": "already there"}


def test_a_dry_run_tells_the_ids_and_writes_nothing(apply, tmp_path):
    target = tmp_path / "a" / "t"
    dry = apply(target, "--dry-run")
    assert dry.returncode == 0 and "(would be made)" in dry.stdout
    assert os.listdir(tmp_path) == []
    done = apply(target)
    assert dry.stdout.splitlines()[:3] == done.stdout.splitlines()[:3]
    assert dry.stdout.splitlines()[4] == done.stdout.splitlines()[4]
    before = snapshot(tmp_path)
    assert "(would be made)" in apply(target, "--dry-run", "--force").stdout
    assert snapshot(tmp_path) == before


def test_upto(apply, tmp_path):
    assert apply(tmp_path / "t", "--upto", "0020-environ").returncode == 0
    assert (tmp_path / "t" / ENVIRON).read_bytes() == after(2)[ENVIRON]
    assert "(already there)" in apply(tmp_path / "t", "--upto", "0020").stdout
    before = snapshot(tmp_path / "t")
    refused(
        apply(tmp_path / "t"),
        tmp_path / "t",
        "2 of 3 patches are applied, 3 were asked for (up to 0030-indexer)",
        "--force",
    )
    assert "applying 1 patch\n" in apply(tmp_path / "one", "--upto", "0010").stderr
    done = apply(tmp_path / "t", "--upto", "0010")
    refused(done, tmp_path / "t", "2 of 3 patches are applied, 1 was asked for")
    assert f"apply.sh --upto 0010-kernels --to {tmp_path / 't'} --force" in done.stderr
    assert snapshot(tmp_path / "t") == before
    assert apply(tmp_path / "t", "--upto", "0099").returncode == Exit.USAGE


@pytest.mark.parametrize("release", ["0000", "0", "0000-stock"])
def test_the_release_alone(apply, small, tmp_path, release):
    target = tmp_path / "t"
    done = apply(target, "--upto", release)
    assert done.returncode == 0, done.stderr
    assert "applying 0 patches" in done.stderr and "(made)" in done.stdout
    assert (target / ENVIRON).read_bytes() == after(0)[ENVIRON]
    commit = small.series.pin.commit
    assert f"tip   {commit}" in done.stdout
    assert gitenv.text(target, "rev-parse", "HEAD") == commit
    assert gitenv.text(target, "status", "--porcelain") == ""
    again = apply(target, "--upto", release, "--json")
    found = json.loads(again.stdout)
    assert (found["state"], found["tip"]) == ("already there", commit)
    assert found["patches"] == []
    refused(
        apply(target, "--upto", "0010"),
        target,
        "0 of 3 patches are applied, 1 was asked for (up to 0010-kernels)",
        "--force",
    )
    assert apply(target, "--force").returncode == 0
    done = apply(target, "--upto", release)
    refused(done, target, "3 of 3 patches are applied, 0 were asked for")
    assert "--upto 0000-stock --to" in done.stderr


@pytest.mark.parametrize("place", [("--installed",), ("--into", "x")])
def test_the_release_alone_is_nothing_for_another_place(place):
    done = patchset("apply", *place, "--upto", "0000")
    assert done.returncode == Exit.USAGE
    assert "--upto 0000, which is no patch, goes with a tree of its own" in done.stderr


def test_force_makes_it_again(apply, own_tree):
    (own_tree / ENVIRON).write_text("mine\n")
    done = apply(own_tree, "--force")
    assert done.returncode == 0, done.stderr
    assert (own_tree / ENVIRON).read_bytes() == after()[ENVIRON]
    assert [p for p in os.listdir(own_tree.parent) if p.startswith(".")] == []
    assert apply(own_tree, "--force", "--upto", "0010").returncode == 0
    assert (own_tree / ENVIRON).read_bytes() == BASE[ENVIRON]


def test_a_dirty_target_is_listed(apply, own_tree):
    (own_tree / ENVIRON).write_text("mine\n")
    (own_tree / "note").write_text("mine\n")
    before = snapshot(own_tree)
    refused(
        apply(own_tree),
        own_tree,
        "changes that are not committed",
        f"M {ENVIRON}",
        "?? note",
        f"git -C '{own_tree}' stash -u",
        before=before,
    )


def test_what_running_and_building_leave_is_not_dirt(apply, own_tree):
    cache = own_tree / "python" / "sglang" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").touch()
    (own_tree / "python" / "sglang.egg-info").mkdir()
    (own_tree / "python" / "sglang.egg-info" / "PKG-INFO").touch()
    assert "(already there)" in apply(own_tree).stdout


def test_git_am_in_progress(small, apply, own_tree):
    gitenv.run(own_tree, "checkout", "--quiet", "HEAD~1")
    bad = small.patches / "0010-kernels.patch"
    env = environment({"GIT_CONFIG_GLOBAL": os.devnull})
    env |= {"GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@example.invalid"}
    am = subprocess.run(
        ["git", "-C", own_tree, "am", bad], env=env, capture_output=True
    )
    assert am.returncode != 0
    before = snapshot(own_tree)
    refused(
        apply(own_tree),
        own_tree,
        "git am is in progress",
        f"git -C '{own_tree}' am --abort",
        before=before,
    )


def test_k_of_n_half_applied_and_foreign_are_told_apart(small, apply, own_tree):
    start = gitenv.text(own_tree, "rev-parse", "HEAD")

    def holds(**files: bytes | None) -> None:
        gitenv.run(own_tree, "reset", "--hard", "--quiet", start)
        for path, data in files.items():
            (own_tree / path).write_bytes(data)
        commit_all(own_tree, "someone's")

    gitenv.run(own_tree, "reset", "--hard", "--quiet", "HEAD~2")
    refused(apply(own_tree), own_tree, "1 of 3 patches is applied, 3 were asked for")

    gitenv.run(own_tree, "reset", "--hard", "--quiet", "HEAD~1")
    refused(apply(own_tree), own_tree, "0 of 3 patches are applied")

    holds(**{ENVIRON: BASE[ENVIRON]})
    refused(
        apply(own_tree),
        own_tree,
        "half-applied: the files stand at different patches",
        f"{ENVIRON}: pristine",
        "python/sglang/srt/layers/indexer.py: 0030-indexer",
    )

    holds(**{ENVIRON: b"something else\n"})
    done = apply(own_tree)
    refused(done, own_tree, "foreign tree: these files", ENVIRON, "scripts/export.sh")

    holds(**{"python/sglang/__init__.py": b"import this\n"})
    done = apply(own_tree)
    refused(
        done,
        own_tree,
        "3 of 3 patches are applied, and files outside the series were changed",
        "python/sglang/__init__.py",
    )


def test_the_same_tree_by_other_commits_is_there(small, apply, own_tree):
    tree = gitenv.text(own_tree, "rev-parse", "HEAD^{tree}")
    gitenv.run(own_tree, "reset", "--hard", "--quiet", "refs/patchset/base")
    env = environment({"GIT_CONFIG_GLOBAL": os.devnull})
    env |= {"GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@example.invalid"}
    files = sorted(small.patches.glob("*.patch"))
    subprocess.run(["git", "-C", own_tree, "am", "-q", *files], env=env, check=True)
    assert gitenv.text(own_tree, "rev-parse", "HEAD^{tree}") == tree
    assert "(already there)" in apply(own_tree).stdout


@pytest.mark.parametrize("kind", ["directory", "repository", "file", "worktree"])
def test_what_we_did_not_make_is_never_touched(apply, own_tree, tmp_path, kind):
    target = tmp_path / "theirs"
    if kind == "file":
        target.write_text("mine")
    elif kind == "worktree":
        gitenv.run(own_tree, "worktree", "add", "--quiet", "--detach", str(target))
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    if kind == "repository":
        gitenv.run(target, "init", "--quiet", "--template=")
    said = {
        "directory": "not a git repository",
        "repository": "did not make",
        "file": "not a directory",
        "worktree": "not a git repository",
    }[kind]
    before = snapshot(tmp_path)
    for more in ([], ["--force"], ["--force", "--dry-run"]):
        refused(apply(target, *more), target, said)
        assert snapshot(tmp_path) == before


def test_inside_another_repository_the_target_is_judged_by_itself(apply, tmp_path):
    gitenv.run(tmp_path, "init", "--quiet", "--template=")
    (tmp_path / ".git" / "config").open("a").write("[patchset]\n\trelease = 0.5.13\n")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "mine").touch()
    refused(apply(tmp_path / "plain", "--force"), tmp_path / "plain", "not a git rep")
    assert apply(tmp_path / "build" / "t").returncode == 0


def test_another_base_or_release(apply, small, own_tree, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_release(tmp_path / "other", {**BASE, "python/sglang/x.py": b""})
    done = patchset(
        *("apply", "--patches", other.patches, "--wheel", other.wheel, "--to", own_tree)
    )
    refused(done, own_tree, "the target's base differs", small.series.pin.commit)
    gitenv.run(own_tree, "config", "patchset.release", "0.5.12")
    refused(apply(own_tree), own_tree, "made for SGLang 0.5.12; the patches are for 0")
    gitenv.run(own_tree, "config", "patchset.release", "0.5.13")
    gitenv.run(own_tree, "config", "patchset.source", "git")
    refused(apply(own_tree), own_tree, "made with --source git, not wheel")
    gitenv.run(own_tree, "config", "patchset.source", "wheel")
    gitenv.run(own_tree, "update-ref", "-d", "refs/patchset/base")
    refused(apply(own_tree), own_tree, "lost its base (refs/patchset/base)")
    assert apply(own_tree, "--force").returncode == 0


def test_a_conflict_in_the_middle_leaves_nothing(own, own_tree, tmp_path):
    path = own.patches / "0020-environ.patch"
    path.write_bytes(path.read_bytes().replace(b"\n line 2\n", b"\n line two\n"))
    line = ["apply", "--patches", own.patches, "--wheel", own.wheel, "--to"]
    done = patchset(*line, tmp_path / "new" / "t")
    assert done.returncode == Exit.PATCH
    assert "error: 0020-environ conflicts in this hunk" in done.stderr
    assert f"where: {ENVIRON} @@ -1,6 +1,7 @@" in done.stderr
    assert not (tmp_path / "new").exists()
    before = snapshot(own_tree)
    assert patchset(*line, own_tree, "--force").returncode == Exit.PATCH
    assert snapshot(own_tree) == before


def test_the_wheel_is_not_the_pinned_base(own, tmp_path):
    pin = own.patches / "upstream.toml"
    pin.write_text(pin.read_text().replace('tree = "', 'tree = "', 1))
    tree = own.series.pin.tree
    pin.write_text(pin.read_text().replace(tree, "a" * 40))
    done = patchset(
        *("apply", "--patches", own.patches, "--wheel", own.wheel),
        *("--to", tmp_path / "new" / "t"),
    )
    assert done.returncode == Exit.PATCH
    assert f"differs from the pin: tree {tree}, pinned {'a' * 40}" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_broken_target(apply, own_tree):
    (own_tree / ".git" / "index").write_text("nonsense")
    refused(apply(own_tree), own_tree, "the target is broken: git cannot read it")
    (own_tree / ".git" / "HEAD").write_text("nonsense\n")
    refused(apply(own_tree), own_tree, "the target has lost its base")
    assert apply(own_tree, "--force").returncode == 0
    assert "(already there)" in apply(own_tree).stdout


def test_a_directory_of_that_name_that_is_not_ours_is_left(apply, own_tree):
    theirs = own_tree.with_name(f".{own_tree.name}.old")
    theirs.mkdir()
    (theirs / "mine").touch()
    assert "(already there)" in apply(own_tree).stdout
    before = snapshot(own_tree)
    done = apply(own_tree, "--force")
    assert done.returncode == Exit.ENVIRONMENT and "not empty" in done.stderr
    assert snapshot(own_tree) == before and (theirs / "mine").exists()


def test_two_at_once(small, apply, tmp_path):
    lines = command(
        *("apply", "--patches", small.patches, "--wheel", small.wheel),
        *("--to", tmp_path / "t"),
    )
    both = [
        subprocess.Popen(
            lines, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    seen = []
    for process in both:
        out, err = process.communicate(timeout=60)
        if process.returncode == 0:
            seen.append("made" if b"(made)" in out else "there")
            assert b"(made)" in out or b"(already there)" in out
        else:
            assert process.returncode == Exit.ENVIRONMENT, err
            assert b"error: another apply is at work on the same target" in err
            assert b"state: nothing was changed" in err
            seen.append("busy")
    assert seen.count("made") == 1
    assert os.listdir(tmp_path) == ["t"]
    assert "(already there)" in apply(tmp_path / "t").stdout


def test_a_held_lock_is_told_and_a_stale_one_is_not_in_the_way(apply, tmp_path):
    lock = tmp_path / ".t.lock"
    hold = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w');"
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    done = apply(tmp_path / "t")
    assert done.returncode == Exit.ENVIRONMENT
    assert "another apply is at work" in done.stderr
    assert os.listdir(tmp_path) == [lock.name]
    holder.kill()
    holder.wait()
    assert apply(tmp_path / "t").returncode == 0
    assert os.listdir(tmp_path) == ["t"]


def test_what_a_killed_force_left_is_put_right(apply, own_tree):
    """kill -9 between the two renames of the swap: the target is gone, its old self beside it."""
    old = own_tree.with_name(f".{own_tree.name}.old")
    stale = own_tree.with_name(f".{own_tree.name}.new-abc")
    own_tree.rename(old)
    shutil.copytree(old, stale)
    done = apply(own_tree)
    assert done.returncode == 0 and "(already there)" in done.stdout
    assert not old.exists() and not stale.exists()
