"""What `git bisect run` may see of a probe, and whose fault an error is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from made_wheel import ROOT, environment
from patchset.bisect import measuring
from patchset.bisect.plan import Figures, Plan
from patchset.probe import faults

ENTRY = ROOT / "scripts" / "patchset" / "probe" / "entry.py"
ALLOWED = {0, 1, 125, 200}

BODIES = [
    ("return 0", 0),
    ("return 1", 1),
    ("return 125", 125),
    ("return 2", 200),
    ("return 3", 200),
    ("return 70", 200),
    ("return None", 200),
    ("return True", 1),
    ("raise ValueError('x')", 200),
    ("raise SystemExit(1)", 200),
    ("raise SystemExit(0)", 200),
    ("raise KeyboardInterrupt", 200),
    ("raise MemoryError", 200),
    ("import argparse; argparse.ArgumentParser().parse_args(['--no'])", 200),
    ("import nowhere", 200),
    ("import sys; sys.stderr.close(); sys.stdout.close(); raise ValueError", 200),
    ("f = lambda: f(); f()", 200),
    ("return = 1", 200),
]


@pytest.mark.parametrize("body, status", BODIES, ids=[body for body, _ in BODIES])
def test_no_other_status_leaves_the_entry(tmp_path, body, status):
    place = tmp_path / "scripts" / "patchset" / "probe"
    place.mkdir(parents=True)
    (place / "entry.py").write_bytes(ENTRY.read_bytes())
    bisect = place.parent / "bisect"
    bisect.mkdir()
    for package in (place.parent, bisect):
        (package / "__init__.py").touch()
    (bisect / "step.py").write_text(f"def run(directory):\n    {body}\n")
    done = subprocess.run(
        [sys.executable, "-P", place / "entry.py", tmp_path],
        capture_output=True,
        cwd="/",
    )
    assert done.returncode == status and status in ALLOWED
    gave_up = (tmp_path / "abort.json").exists()
    assert gave_up == (
        status == 200 and body.split()[0] != "return" or body == "return = 1"
    )


@pytest.mark.parametrize("arguments", [[], ["/nowhere/at/all"]])
def test_an_entry_without_its_session_gives_up(arguments):
    line = [sys.executable, "-P", str(ENTRY), *arguments]
    done = subprocess.run(line, capture_output=True, env=environment(), cwd="/")
    assert done.returncode == 200


def plan(**different) -> Plan:
    values = dict(
        over="tree",
        find="gain",
        probe="p",
        unit="us",
        better="lower",
        rounds=1,
        least_change=0.05,
        limit_s=1,
        program=[],
        environment={},
        repository="",
        old="",
        new="",
        python="",
        harness_sha256="",
        threshold=10.0,
    )
    return Plan(**{**values, **different})


@pytest.mark.parametrize("find, better", [("gain", "lower"), ("loss", "higher")])
def test_low_is_after_a_gain_of_time_and_after_a_loss_of_speed(find, better):
    asked = plan(find=find, better=better)
    assert measuring.exit_status(asked, Figures([9.0])) == 1
    assert measuring.exit_status(asked, Figures([11.0])) == 0


@pytest.mark.parametrize("find, better", [("gain", "higher"), ("loss", "lower")])
def test_high_is_after_a_gain_of_speed_and_after_a_loss_of_time(find, better):
    asked = plan(find=find, better=better)
    assert measuring.exit_status(asked, Figures([9.0])) == 0
    assert measuring.exit_status(asked, Figures([11.0])) == 1


def test_a_result_that_is_wrong_or_missing():
    wrong, skip = Figures([1.0], wrong="off"), Figures([], skip="no")
    assert measuring.exit_status(plan(), wrong) == 125
    assert measuring.exit_status(plan(find="loss"), wrong) == 125
    assert measuring.exit_status(plan(), skip) == 125


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Writes a module of a tree, imports and calls it; the error that comes out, and the tree."""
    package = tmp_path / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "other.py").write_text("there = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "python"))

    def error_of(text: str) -> BaseException:
        (package / "module.py").write_text(text)
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
        with pytest.raises(BaseException) as caught:
            importlib.import_module("sglang.module").run()
        return caught.value

    yield error_of
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


OF_THE_TREE = [
    ("def run(:\n", "python/sglang/module.py:1: SyntaxError"),
    ("def run():\n    return unknown\n", "module.py:2: NameError"),
    ("import sglang.gone\n", "ModuleNotFoundError: No module named 'sglang.gone'"),
    ("from sglang.other import absent\n", "ImportError: cannot import name"),
    ("import torch\ndef run():\n    torch.zeros(2) @ torch.zeros(3)\n", "RuntimeError"),
    ("def run():\n    assert 1 == 2, 'shape'\n", "module.py:2: AssertionError: shape"),
    ("def run():\n    try:\n        1 / 0\n    except Exception as e:\n"
     "        raise RuntimeError('wrapped') from e\n", "RuntimeError: wrapped"),
]  # fmt: skip


@pytest.mark.parametrize(
    "text, said", OF_THE_TREE, ids=[said for _, said in OF_THE_TREE]
)
def test_a_fault_of_the_tree_is_told_with_its_place(sources, tmp_path, text, said):
    told = faults.of_tree(sources(text), tmp_path)
    assert told is not None and said in told and "\n" not in told


NOT_THE_TREES = [
    "import package_that_nobody_has\n",
    "def run():\n    raise MemoryError\n",
    "def run():\n    raise KeyboardInterrupt\n",
    "def run():\n    open('/nowhere/file')\n",
    "def run():\n    raise SystemExit(1)\n",
    # What the probe stands in for, and lacks.
    "import sys, types\nsys.modules['sglang.faked'] = types.ModuleType('sglang.faked')\n"
    "from sglang.faked import absent\n",
]


@pytest.mark.parametrize("text", NOT_THE_TREES)
def test_what_is_no_fault_of_the_tree(sources, tmp_path, text):
    assert faults.of_tree(sources(text), tmp_path) is None


def test_an_error_in_the_harness_is_its_own(sources, tmp_path):
    def harness():
        raise ValueError("mine")

    try:
        harness()
    except ValueError as error:
        assert faults.of_tree(error, tmp_path) is None
    # Called by the tree, raised by what stands in for another module.
    text = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\nimport sglang_tree\n"
        "def run():\n    sglang_tree._refuse('top-k')()\n"
    )
    assert faults.of_tree(sources(text), tmp_path) is None
    assert os.path.realpath(faults.HARNESS) == str(ROOT)
    assert Path(faults.__file__).is_relative_to(faults.HARNESS)
