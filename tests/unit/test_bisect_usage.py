"""`bisect` called wrongly, or without what its probe needs."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace

import pytest

from made_bisect import FAKE
from made_wheel import ROOT, patchset
from patchset.bisect import interpreter, probes
from patchset.errors import Exit, Failure


def test_a_python_that_is_not_there(tree):
    made = tree("100", "20")
    done = made.bisect("--python", "/nowhere/python")
    assert done.returncode == Exit.ENVIRONMENT
    assert "/nowhere/python does not start" in done.stderr
    assert "nothing was measured" in done.stderr and not made.out.exists()


def test_a_python_without_what_the_probe_needs_is_refused_first(tree, probe):
    probe(needs=("json", "no_such_module"))
    made = tree("100", "20")
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the Python that measures lacks no_such_module" in done.stderr
    assert "--python PY" in done.stderr
    assert made.measured == [] and not made.out.exists()


def test_kernels_need_a_gpu_and_counting_none():
    assert probes.find("kernel:indexer").needs == ("torch", "triton", "CUDA")
    assert probes.find("work:indexer").needs == ("torch", "triton")


def test_a_gpu_is_asked_of_torch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: HAS)\n"
    )
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    with (tmp_path / "torch.py").open("a") as file:
        file.write("import os\nHAS = os.environ['HAS'] == 'yes'\n")
    monkeypatch.setenv("HAS", "yes")
    interpreter.require(str(python), ("torch", "CUDA"))
    monkeypatch.setenv("HAS", "no")
    with pytest.raises(Failure, match="a GPU that torch can use") as raised:
        interpreter.require(str(python), ("torch", "CUDA"))
    assert raised.value.code == Exit.ENVIRONMENT


def test_a_python_of_a_relative_path_is_found_from_where_the_user_is(tree):
    made = tree("100", "20")
    (made.directory / "python").symlink_to(sys.executable)
    line = made.command("--python", "./python")
    done = patchset(*line, env=made.env(), cwd=made.directory)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "place, name", [(".", "tree"), ("tree", "."), ("sub", "../tree")]
)
def test_a_tree_of_a_relative_path_is_found_from_where_the_user_is(tree, place, name):
    made = tree("100", "20")
    (made.directory / "sub").mkdir()
    line = made.command("--tree", name)
    done = patchset(*line, env=made.env(), cwd=made.directory / place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "case, said",
    [
        ("nothing", "no workload 'nothing'; there are: sweep-256-256, long-8192-256"),
        ("nothing@1", "no workload 'nothing'"),
        ("sweep-256-256@7", "has C=1, 16, 64, and not C='7'"),
        ("sweep-256-256@", "and not C=''"),
        ("sweep-256-256@x", "and not C='x'"),
    ],
)
def test_a_workload_that_is_not_there_is_refused_first(tree, probe, case, said):
    probe(workload=case)
    made = tree("100", "20")
    done = made.bisect()
    assert done.returncode == Exit.USAGE and said in done.stderr
    assert "--probe serving:WORKLOAD[@C]" in done.stderr
    assert made.measured == [] and not made.out.exists()


def test_a_model_that_is_not_there_is_refused_first(tree, monkeypatch):
    monkeypatch.undo()
    made = tree("100", "20")
    given = "--serve=--model-path ./none"
    done = made.bisect("--probe", "serving:sweep-256-256", given)
    assert done.returncode == Exit.USAGE
    assert "there is no such folder of a model" in done.stderr
    assert made.measured == [] and not made.out.exists()


def test_places_in_the_words_for_a_server_are_found_from_where_the_user_is(
    tree, monkeypatch
):
    def known(name, words):
        given = [f"--{command}={text}" for command, text in words.items()]
        return replace(FAKE, program=(*FAKE.program, *given))

    monkeypatch.setattr(probes, "find", known)
    made = tree("100", "20")
    (made.directory / "models" / "m").mkdir(parents=True)
    (made.directory / "stock").mkdir()
    words = ["--serve=--model-path models/m --tp 1", "--smoke=--build stock"]
    line = made.command("--probe", "serving:x", *words)
    done = patchset(*line, env=made.env(), cwd=made.directory)
    assert done.returncode == 0, done.stderr
    assert json.loads((made.session / "steps.json").read_text())["words"] == [
        f"--serve=--model-path {made.directory}/models/m --tp 1",
        "--smoke=--build stock",
    ]
    for given in ("--model-path=m", "--model m", "--model-path m"):
        line = made.command("--probe", "serving:x", f"--serve={given}")
        patchset(*line, env=made.env(), cwd=made.directory / "models")
    told = [json.loads(file.read_text()) for file in made.out.glob("*/steps.json")]
    assert sum(f"{made.directory}/models/m" in str(each["words"]) for each in told) == 4


@pytest.mark.parametrize("given", ["", "--tp 1"])
def test_a_server_without_a_model_is_refused_first(tree, monkeypatch, given):
    monkeypatch.undo()
    made = tree("100", "20")
    line = made.command("--probe", "serving:sweep-256-256@1", f"--serve={given}")
    done = patchset(*line, env=made.env())
    assert done.returncode == Exit.USAGE
    assert "starts a server, and no model is named for it" in done.stderr
    words = shlex.split(done.stderr.partition("\nnext:  name one: ")[2])
    assert words[words.index("--serve") + 1].split()[-2:] == [
        "--model-path",
        "DIR_OR_NAME",
    ]
    assert given in words[words.index("--serve") + 1] and str(made.path) in words
    assert made.measured == [] and not made.out.exists()


@pytest.mark.parametrize(
    "line, said",
    [
        (("--old", "0030", "--new", "0010"), "the old end is not before the new end"),
        (("--old", "0010", "--new", "10"), "the old end is not before the new end"),
        (("--old", "0999"), "no commit '0999'"),
        (("--new", "-x"), "expected one argument"),
        (("--serve", "--tp-size 8"), "go with serving:"),
        (("--probe", "serving:x", "--serve=--api-key k-1"), "--serve has a key"),
        (("--probe", "serving:x", "--smoke=--api-key=k-1"), "--smoke has a key"),
        (("--probe", "serving:x", "--bench=--tag 'k-1"), "no list of words"),
        (("--over", "repo", "--old", "x"), "--tree means nothing with --over repo"),
        (("--find", "luck"), "invalid choice"),
    ],
)
def test_usage(tree, line, said):
    made = tree("100", "50", "50", "20")
    done = made.bisect(*line)
    assert done.returncode == Exit.USAGE
    assert said in done.stderr and "k-1" not in done.stderr
    assert made.measured == [] and not list(made.out.rglob("plan.json"))


def test_a_wheel_that_is_wrong_is_refused_also_where_none_is_needed(tree):
    made = tree("100", "20")
    (made.directory / "none of ours.whl").write_bytes(b"x")
    for name, code in (
        ("none.whl", Exit.ENVIRONMENT),
        ("none of ours.whl", Exit.PATCH),
    ):
        done = made.bisect("--wheel", made.directory / name)
        assert done.returncode == code and name in done.stderr
        following = done.stderr.partition("\nnext:")[2]
        assert "bisect.sh --probe fake:speed" in following, following
    assert made.measured == [] and not made.out.exists()


def test_an_unknown_probe_names_those_there_are(tmp_path):
    done = patchset("bisect", "--probe", "work:luck", "--tree", tmp_path)
    assert done.returncode == Exit.USAGE
    assert "no probe 'work:luck'" in done.stderr and "work:indexer" in done.stderr


def test_no_tree(probe, tmp_path):
    done = patchset("bisect", "--probe", "fake:speed", "--tree", tmp_path / "none")
    assert done.returncode == Exit.USAGE
    assert "there is no patched tree" in done.stderr and "apply.sh" in done.stderr


@pytest.mark.parametrize("holds", ["nothing", "a repository of git"])
def test_a_tree_of_another_kind(probe, tmp_path, holds):
    if holds != "nothing":
        (tmp_path / ".git").mkdir()
    done = patchset("bisect", "--probe", "fake:speed", "--tree", tmp_path)
    assert done.returncode == Exit.PATCH
    after = done.stderr.partition("\nnext:")[2].strip()
    assert after.startswith("name a tree that scripts/apply.sh made: ")
    assert after.endswith("scripts/bisect.sh --probe fake:speed --tree DIR")


def test_every_probe_has_a_program_and_sense():
    for name in probes.names():
        found = probes.find(name, {"serve": "--tp-size 1"})
        module = found.program[1].split(".")
        assert ROOT.joinpath("scripts", *module).with_suffix(".py").exists()
        assert found.rounds >= 1 and 0 < found.least_change < 1
        assert found.shown(1.0).startswith("1")
        served = name.startswith("serving:")
        assert found.workload == (name.partition(":")[2] if served else "")
