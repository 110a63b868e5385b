"""What `bisect` keeps from one call to the next, and what of the user it leaves alone."""

from __future__ import annotations

import json
import os

import pytest

from made_bisect import FAKE, GAIN, SPEED, state
from made_series import commit_all, git, snapshot
from made_wheel import patchset
from patchset import base, lock
from patchset.bisect import plan as plans
from patchset.bisect import search, worktree
from patchset.errors import Exit


def test_figures_of_a_session_that_gave_up_are_kept(tree):
    made = tree("100", "exit 3", "exit 3", "20")
    made.bisect()
    assert made.measured[:2] == ["100", "20"]
    ends = len(made.measured)
    assert made.bisect().returncode == Exit.ENVIRONMENT
    assert made.measured[ends:] == ["exit 3"]


def test_what_python_compiles_is_no_change_of_the_harness(tree):
    made = tree("100", "exit 3", "20")
    env = {"PYTHONPYCACHEPREFIX": ""}
    made.bisect(**env)
    assert list((made.session / "harness").rglob("*.pyc"))
    before = len(made.measured)
    made.bisect(**env)
    assert made.measured[before:] == ["exit 3"]


def test_figures_of_another_program_are_kept_apart(tree, probe):
    made = tree("100", "exit 3", "20")
    made.bisect()
    probe(program=(*FAKE.program, "--stock", "other"))
    before = len(made.measured)
    made.bisect()
    assert made.measured[before:] == ["100", "20", "exit 3"]
    probe()
    before = len(made.measured)
    made.bisect()
    assert made.measured[before:] == ["exit 3"]
    assert len(list(made.out.iterdir())) == 2


def test_a_changed_harness_is_measured_afresh(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    (made.session / "harness" / "scripts" / "patchset" / "errors.py").write_text("")
    before = len(made.measured)
    made.bisect()
    assert made.measured[before : before + 2] == ["100", "20"]


def test_a_complete_session_is_kept_beside_the_next(tree):
    made = tree("100", "20")
    made.bisect()
    first = made.session
    kept = snapshot(first)
    again = made.bisect().stderr
    assert f"complete   {first}; measuring afresh in {first}-2\n" in again
    assert sorted(path.name for path in made.out.iterdir()) == [
        first.name,
        f"{first.name}-2",
    ]
    assert snapshot(first) == kept


def test_two_at_once(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    with lock.hold(made.session / ".lock"):
        done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "this bisect is at work already" in done.stderr


@pytest.mark.parametrize("changed", [False, True])
def test_a_tree_that_is_measured_is_not_replaced(tree, changed):
    made = tree("100", "20")
    apply = ["apply", "--patches", made.release.patches, "--wheel", made.release.wheel]
    line = [*apply, "--to", made.path, *([] if changed else ["--force"])]
    made.out.mkdir()
    if changed:
        (made.release.patches / "0010-step.patch").unlink()
    with worktree.detached(made.path, made.out):
        with lock.hold(made.out / worktree.LOCK):
            before = snapshot(made.path)
            done = patchset(*line)
            assert done.returncode == Exit.ENVIRONMENT, done.stderr
            assert "a bisect or a measure is at work on the target" in done.stderr
            assert f"{made.path}\n       {made.out}\n" in done.stderr
            assert "then make it again: " in done.stderr and "--force" in done.stderr
            assert snapshot(made.path) == before
        # What a killed one left is in nobody's way.
        assert patchset(*apply, "--to", made.path, "--force").returncode == 0


@pytest.mark.parametrize("when", ["at an end", "in the search"])
def test_a_tree_that_is_taken_away_is_named(tree, monkeypatch, when):
    made = tree("100", "50", "20", "20")
    module, name = {
        "at an end": (worktree, "check_out"),
        "in the search": (search, "_bisect_run"),
    }[when]
    before = getattr(module, name)

    def gone(*arguments):
        made.path.rename(made.directory / "elsewhere")
        monkeypatch.undo()
        before(*arguments)

    monkeypatch.setattr(module, name, gone)
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    error, place, state, after = done.stderr[done.stderr.index("error:") :].splitlines()
    assert error == "error: what is measured was replaced or removed meanwhile"
    assert place == f"where: {made.path}" and "are kept" in state
    assert f"bisect.sh --probe fake:speed --tree {made.path}" in after


def test_the_users_own_work_and_bisect_stay(tree):
    made = tree(*GAIN)
    git(made.path, "checkout", "--quiet", "-b", "mine")
    (made.path / SPEED).write_text("7\n")
    (made.path / "note.txt").write_text("mine\n")
    tip, first = made.commit("0070-step"), git(made.path, "rev-parse", base.REF)
    git(made.path, "stash", "--quiet")
    git(made.path, "bisect", "start", tip, first)
    git(made.path, "checkout", "--quiet", "mine")
    git(made.path, "stash", "pop", "--quiet")
    before = state(made.path)
    done = made.bisect("--json")
    assert json.loads(done.stdout)["name"] == "0040-step"
    assert "changes that are not committed are not measured" in done.stderr
    assert state(made.path) == before


def test_a_full_disk(tree, small_disk):
    made = tree("100", "20")
    made.out = small_disk / "out"
    made.out.mkdir()
    with open(small_disk / "filler", "wb") as filler:
        filler.write(b"\0" * (3 << 20))
        filler.flush()
    with open(small_disk / "rest", "wb") as rest:
        try:
            while True:
                rest.write(b"\0" * 65536)
                rest.flush()
        except OSError:
            pass
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the disk is full" in done.stderr and "Traceback" not in done.stderr
    assert not list(made.out.glob("*/.harness-*"))
    made.assert_untouched()


def large(made, megabytes: int) -> str:
    """A commit over the tree's last one, of many files of random bytes."""
    place = made.path / "python" / "sglang" / "large"
    place.mkdir()
    for number in range(16 * megabytes):
        (place / f"{number}.bin").write_bytes(os.urandom(1 << 16))
    return commit_all(made.path, "large")


@pytest.mark.parametrize("where", ["end", "step"])
def test_a_commit_for_which_there_is_no_room(tree, small_disk, where):
    made = tree("100", "20")
    made.out = small_disk / "out"
    large(made, 5)
    old = "0001"
    if where == "step":
        old = "0010"
        git(made.path, "rm", "-rq", "python/sglang/large")
        (made.path / SPEED).write_text("5\n")
        commit_all(made.path, "small again")
    done = made.bisect("--old", old)
    assert done.returncode == Exit.ENVIRONMENT
    error, place, *_ = done.stderr[done.stderr.index("error:") :].splitlines()
    assert error == "error: the disk is full", done.stderr
    assert place == f"where: {made.session}"
    assert "free some space, then run the same command again" in done.stderr
    assert "unable to write" not in done.stderr and "sglang/large" not in done.stderr
    made.assert_untouched()


def test_a_plan_of_another_version_is_not_gone_on_with(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    file = made.session / "plan.json"
    file.write_text(json.dumps({"over": "tree"}))
    before = len(made.measured)
    made.bisect()
    assert made.measured[before : before + 2] == ["100", "20"]
    assert plans.read(made.session).probe == "fake:speed"
