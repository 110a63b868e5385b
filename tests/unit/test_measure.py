"""`checkpoint measure`: where its raw file goes, and which earlier figures it goes on with."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from made_bisect import FAKE, Tree
from made_wheel import patchset
from patchset import atomic
from patchset.bisect import probes
from patchset.errors import Exit
from patchset.verbs import checkpoint_record

REAL = probes.find


class Measured(Tree):
    """A patched tree, and what `measure` keeps of it."""

    def measure(self, out: Path, *more) -> subprocess.CompletedProcess:
        line = ["checkpoint", "measure", "--probe", "fake:speed", "--tree", self.path]
        return patchset(*line, "--out", out, *more, env=self.env())

    def sessions(self) -> list[Path]:
        return sorted(self.out.iterdir()) if self.out.exists() else []


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Measured:
    made = Measured(tmp_path, ["100", "50", "20"])
    monkeypatch.setattr(probes, "find", lambda *_: FAKE)
    monkeypatch.setattr(checkpoint_record, "_kept", lambda layout: made.out)
    return made


def test_every_commit_is_in_the_raw_file(tree, tmp_path):
    out = tmp_path / "new" / "raw.json"
    done = tree.measure(out)
    assert done.returncode == 0, done.stderr
    values = [step["values"] for step in json.loads(out.read_text())["steps"]]
    assert values == [[100.0], [100.0], [50.0], [20.0]]
    assert list(out.parent.iterdir()) == [out]


def test_a_tree_and_a_file_of_relative_paths(tree):
    line = ["checkpoint", "measure", "--probe", "fake:speed", "--tree", "tree"]
    done = patchset(*line, "--out", "raw.json", env=tree.env(), cwd=tree.directory)
    assert done.returncode == 0, done.stderr
    assert (tree.directory / "raw.json").exists()


def test_a_place_that_cannot_be_written_is_told_before_the_first_step(tree, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "raw.json"
    done = tree.measure(out)
    assert done.returncode == Exit.ENVIRONMENT and str(out) in done.stderr
    assert "nothing was measured" in done.stderr
    assert "checkpoint.sh measure" in done.stderr and "--out FILE" in done.stderr
    assert tree.measured == [] and tree.sessions() == []


def test_a_file_that_is_there_is_not_written_over(tree, tmp_path):
    """As `bench.sh steps` has it; and its next line goes on with the figures there are."""
    out = tmp_path / "raw.json"
    out.write_text("evidence")
    for there in (out, tmp_path):
        done = tree.measure(there)
        assert done.returncode == Exit.USAGE and f"where: {there}\n" in done.stderr
        assert "state: nothing was measured" in done.stderr
        assert tree.measured == [] and tree.sessions() == []
    assert out.read_text() == "evidence"
    out.unlink()
    assert tree.measure(out).returncode == 0
    whole, measured = out.read_bytes(), tree.measured
    (tmp_path / "raw-2.json").touch()
    done = tree.measure(out)
    following = shlex.split(done.stderr.partition("measured again): ")[2])
    assert following[-2:] == ["--out", str(tmp_path / "raw-3.json")]
    assert patchset("checkpoint", *following[1:], env=tree.env()).returncode == 0
    assert out.read_bytes() == whole
    # But for when it was written.
    both = [
        json.loads(each) | {"date": None}
        for each in (whole, (tmp_path / "raw-3.json").read_bytes())
    ]
    assert both[0] == both[1]
    assert tree.measured == measured


def test_an_unknown_workload_is_told_before_the_first_step(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "find", REAL)
    line = ("--tree", tree.path, "--out", tree.out, "--probe", "serving:foo")
    bisected = patchset("bisect", *line)
    measured = tree.measure(tmp_path / "raw.json", "--probe", "serving:foo")
    for done in (bisected, measured):
        assert done.returncode == Exit.USAGE
        assert "no workload 'foo'; there are: sweep-256-256" in done.stderr
    assert tree.sessions() == []


def test_servers_of_no_model_are_refused_before_the_first_step(
    tree, tmp_path, monkeypatch
):
    monkeypatch.setattr(probes, "find", REAL)
    done = tree.measure(tmp_path / "raw.json", "--probe", "serving:sweep-256-256")
    assert done.returncode == Exit.USAGE and "no model is named" in done.stderr
    assert "bisect.sh --probe serving:sweep-256-256 --serve" in done.stderr
    assert tree.sessions() == []


def test_a_place_lost_meanwhile_costs_no_figure(tree, tmp_path, monkeypatch):
    def fails(path: Path, data: bytes) -> None:
        if path.name == "raw.json":
            raise PermissionError(13, "Permission denied", str(path))
        whole(path, data)

    whole = atomic.write
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write", fails)
        done = tree.measure(tmp_path / "raw.json")
    assert done.returncode == Exit.ENVIRONMENT
    (session,) = tree.sessions()
    assert f"every figure is kept in {session}" in done.stderr
    following = shlex.split(done.stderr.partition("\nnext:")[2])
    made = ["measure", "--probe", "fake:speed", "--tree", str(tree.path)]
    assert following[-7:] == [*made, "--out", "FILE"]
    before = tree.measured
    assert tree.measure(tmp_path / "other.json").returncode == 0
    assert tree.measured == before and (tmp_path / "other.json").exists()


def test_figures_of_another_python_are_kept_apart(tree, tmp_path):
    other = tmp_path / "python"
    os.symlink(sys.executable, other)
    assert tree.measure(tmp_path / "one.json").returncode == 0
    one = len(tree.measured)
    done = tree.measure(tmp_path / "two.json", "--python", other)
    assert done.returncode == 0 and len(tree.measured) == 2 * one
    assert len(tree.sessions()) == 2
    assert tree.measure(tmp_path / "three.json").returncode == 0
    assert len(tree.measured) == 2 * one
