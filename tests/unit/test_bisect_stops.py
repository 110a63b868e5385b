"""`bisect` that is interrupted or killed: what it leaves, and that it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from made_bisect import interrupted, processes
from patchset.bisect import measuring
from patchset.errors import Exit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_and_the_same_command_goes_on(tree, number):
    made = tree("100", "100", "pause 100", "100", "20", "20")
    code, said = interrupted(made, number)
    assert code == 128 + number, said
    assert "run the same command again" in said
    made.assert_untouched()
    before = made.measured
    assert not [line for line in processes() if str(made.out) in line]
    done = made.bisect("--json")
    assert "going on with" in done.stderr
    assert json.loads(done.stdout)["name"] == "0040-step"
    # Only the step that was interrupted is measured again.
    again = made.measured[len(before) :]
    assert again.count("pause 100") == 1 and len(again) + len(before) - 1 <= 6


def test_a_killed_bisect_is_swept_away(tree):
    made = tree("100", "pause 100", "100", "20")
    code, _ = interrupted(made, signal.SIGKILL)
    assert code == -signal.SIGKILL
    left = list(made.out.glob("*/running-*"))
    assert len(left) == 1
    done = made.bisect("--json")
    assert json.loads(done.stdout)["name"] == "0030-step"
    made.assert_untouched()
    for line in processes():
        if str(made.out) in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_ctrl_c_while_it_cleans_up_leaves_nothing_either(tree, monkeypatch):
    made = tree("100", "20")
    remove = shutil.rmtree

    def again(path, **options):
        if Path(path).name.startswith("running-"):
            os.kill(os.getpid(), signal.SIGINT)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", again)
    made.bisect()
    made.assert_untouched()


# Presses Ctrl-C while git adds a work tree, whose record is locked until it is complete.
STOPPING_GIT = """#!/bin/sh
case " $* " in *" worktree add "*) ;; *) exec {git} "$@" ;; esac
{git} "$@" || exit
touch "$2"/.git/worktrees/worktree/locked
kill -INT "$PPID"
sleep 0.5
rm "$2"/.git/worktrees/worktree/locked
"""


def test_ctrl_c_while_git_makes_the_work_tree(tree):
    made = tree("100", "20")
    shim = made.directory / "shim" / "git"
    shim.parent.mkdir()
    shim.write_text(STOPPING_GIT.format(git=shutil.which("git")))
    shim.chmod(0o755)
    done = made.bisect(PATH=os.pathsep.join([str(shim.parent), os.environ["PATH"]]))
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    made.assert_untouched()


AT_AN_END, AT_A_STEP = ("serve", "20"), ("100", "serve", "serve", "20")


@pytest.mark.parametrize("speeds", [AT_AN_END, AT_A_STEP], ids=["end", "step"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_bisect_leaves_no_server(tree, speeds, number):
    made = tree(*speeds)
    code, said = interrupted(made, number)
    assert code == 128 + number, said
    (server,) = made.servers()
    assert not Path(f"/proc/{server}").exists()
    assert not [line for line in processes() if str(made.out) in line]
    made.assert_untouched()


@pytest.mark.parametrize("speeds", [AT_AN_END, AT_A_STEP], ids=["end", "step"])
def test_a_server_that_takes_too_long_is_stopped_with_the_probe(tree, probe, speeds):
    probe(limit_s=8)
    made = tree(*speeds)
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "it took more than 8 s" in done.stderr
    (server,) = made.servers()
    assert not Path(f"/proc/{server}").exists()


def test_a_step_that_does_not_end_when_asked_is_killed(tree, probe, monkeypatch):
    monkeypatch.setattr(measuring, "PATIENCE_S", 1.0)
    probe(limit_s=3)
    made = tree("stubborn", "20")
    done = made.bisect()
    assert "it took more than 3 s" in done.stderr
    assert not [line for line in processes() if str(made.out) in line]
