"""`bisect --over repo`: the commits of a repository of patches."""

from __future__ import annotations

import json

from made_bisect import state
from made_series import git
from made_wheel import patchset
from patchset.errors import Exit


def test_over_the_commits_of_a_repository(repository):
    made = repository("100", "99", "20", "21")
    git(made.root, "checkout", "--quiet", "-b", "mine")
    before = state(made.root)
    done = made.bisect("--old", made.commits[0], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["culprit"] == made.commits[2] and found["over"] == "repo"
    # Each is measured beside its own patches.
    said = {step["commit"]: step["step"] for step in found["steps"]}
    for commit, speed in zip(made.commits, ("100", "99", "20", "21")):
        if commit in said:
            assert f"\n+{speed}\n" in said[commit]
    assert len(said) >= 3
    # There a line of progress has the commit's own first line.
    assert f"{made.commits[2][:12]}  speed 20 " in done.stderr
    assert state(made.root) == before


def test_commits_whose_series_does_not_apply_are_skipped(repository):
    made = repository("100", "99", "conflict", "20", "21", "none", "22")
    done = made.bisect("--old", made.commits[0], "--json")
    found = json.loads(done.stdout)
    if found["culprit"] is None:
        assert made.commits[3] in found["candidates"]
    skipped = " ".join(found["skipped"])
    steps = {step["commit"]: step for step in found["steps"]}
    for commit in (made.commits[2], made.commits[5]):
        if commit in steps:
            assert commit[:12] in skipped and steps[commit]["skip"]


def test_over_a_repository_needs_an_end_and_a_repository(probe, tmp_path):
    line = ("bisect", "--probe", "fake:speed", "--over", "repo")
    done = patchset(*line, "--root", tmp_path)
    assert done.returncode == Exit.USAGE and "--old COMMIT" in done.stderr
    done = patchset(*line, "--root", tmp_path, "--old", "HEAD")
    assert done.returncode == Exit.ENVIRONMENT
    assert "not a git repository" in done.stderr
    told = " ".join(patchset("bisect", "--help").stdout.split())
    assert "(default: 0000-stock; with --over repo there is none, so name one)" in told
