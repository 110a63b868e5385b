"""`bisect` on a GPU that others use: what is marked, and what is measured again before a commit is named."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import made_smi
from patchset.bisect import measuring, probes
from patchset.bisect import plan as plans
from patchset.errors import Exit
from test_probe import plan

REAL = probes.find
LINE = ("--old", "0010", "--new", "0030")
# What was seen on a GPU with two more jobs on it during the first step, and on a free one.
SLOWED = ("1", "runs 485 2560", "2467", "3152")
QUIET = ("1", "gpu 0:2560", "gpu 3:2535", "gpu 9:4278")


@pytest.fixture
def serving(tree, probe):
    """A tree whose figure is a server's."""
    probe(better=probes.HIGHER, unit="tok/s", least_change=0.03, timed=True)
    return tree


def marked(first: int) -> tuple[str, ...]:
    """As SLOWED, with what the GPU told: so much in use beside the first step."""
    ends = f"gpu {first}:485 0:2560", "gpu 9000:3152 3:4278"
    return "1", ends[0], "gpu 0:2467 0:2535", ends[1]


def assert_unclear(done) -> None:
    assert done.returncode == Exit.NO and done.stdout == ""
    assert done.stderr.count("error: unclear: what was measured a second time") == 1
    assert "0020-step, 2,467 tok/s: after, then before" in done.stderr
    assert "so no commit is named" in done.stderr


def test_a_slowed_end_names_nobody_though_no_other_work_was_seen(serving):
    made = serving(*SLOWED)
    done = made.bisect(*LINE)
    assert_unclear(done)
    assert made.measured == ["runs 485 2560", "3152", "2467", "runs 485 2560"]
    assert "old end 0010-step: 485 tok/s, then 2,560 tok/s" in done.stderr
    assert "threshold 1,236 tok/s, then 2,841 tok/s" in done.stderr
    assert not (made.session / "result.json").exists()
    made.assert_untouched()


def test_the_command_that_it_tells_measures_anew_what_was_in_doubt(serving):
    made = serving(*SLOWED)
    done = made.bisect(*LINE)
    following = done.stderr.partition("\nnext:")[2]
    words = shlex.split(following[following.index("scripts/bisect.sh") :])
    assert words[-8:-2] == ["--tree", str(made.path), *LINE]
    before = len(made.measured)
    after = made.bisect(*LINE, "--json")
    assert made.measured[before:] == ["runs 485 2560"]
    found = json.loads(after.stdout)
    assert after.returncode == 0 and found["name"] == "0030-step"
    values = {step["name"]: step["values"] for step in found["steps"]}
    assert values["0010-step"] == [2560.0]
    # Nothing is lost.
    kept = sorted(path.name for path in (made.session / "steps").glob("*.doubted"))
    old = made.commit("0010-step")
    assert kept == [f"{old}.0.doubted", f"{old}.again.doubted"]


def test_the_command_that_it_tells_has_as_many_rounds(serving):
    following = serving(*SLOWED).bisect(*LINE, "--rounds", "1").stderr
    assert "--rounds 1" in following.partition("\nnext:")[2]


def test_steps_beside_other_work_are_warned_of_and_measured_again(serving):
    made = serving(*marked(43_008))
    done = made.bisect(*LINE)
    assert_unclear(done)
    first, second = [
        line for line in done.stderr.splitlines() if line.startswith("warning:")
    ]
    old = made.commit("0010-step")
    assert old[:12] in first and "42.0 GiB of GPU 0 in use, 0% busy" in first
    assert "free the GPU" in first and f"{old}.0.json" in first
    assert "8.8 GiB" in second
    assert (
        "old end 0010-step: 485 tok/s beside other work, then 2,560 tok/s\n"
        in done.stderr
    )
    assert "new end 0030-step: 3,152 tok/s beside other work, then" in done.stderr
    after = made.bisect(*LINE, "--json")
    found = json.loads(after.stdout)
    assert found["name"] == "0030-step" and found["beside_other_work"] == []
    assert [step["values"] for step in found["steps"]] == [[2560], [2467], [4278]]


def test_what_the_warning_says_helps(serving):
    made = serving("1", "gpu 43008:485 0:2560", "runs fail 2467", "gpu 0:4278")
    stopped = made.bisect(*LINE)
    (told,) = re.findall("^warning: .* remove (.*) and give", stopped.stderr, re.M)
    Path(told).unlink()
    before = len(made.measured)
    after = made.bisect(*LINE, "--json")
    assert made.measured[before:] == ["gpu 43008:485 0:2560", "runs fail 2467"]
    assert json.loads(after.stdout)["name"] == "0030-step"
    assert "warning:" not in after.stderr and "once more" not in after.stderr


def test_nvidia_smi_itself_tells_of_the_other_work(serving, tmp_path):
    env = made_smi.answers(tmp_path, (0, 43_008), (0, 0))
    made = serving("1", "smi 485 2560", "smi 2467", "smi 3152")
    done = made.bisect(*LINE, **env)
    assert_unclear(done)
    assert "485 tok/s beside other work, then 2,560 tok/s" in done.stderr
    assert "42.0 GiB of GPU 1" in done.stderr and made_smi.calls(tmp_path) == 4


def test_on_a_free_gpu_nothing_is_measured_again(serving):
    made = serving(*QUIET)
    done = made.bisect(*LINE)
    assert done.returncode == 0 and len(made.measured) == 3
    assert "warning:" not in done.stderr and "once more" not in done.stderr
    assert "beside" not in done.stdout and "again" not in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.endswith("<--")]
    assert row.split()[1:4] == ["0030-step", "4,278", "tok/s"]
    steps = json.loads((made.session / "steps.json").read_text())["steps"]
    loads = [step["beside"][0]["memory_mib"] for step in steps]
    assert loads == [0, 3, 9] and not any("again" in step for step in steps)
    draft = json.loads((made.session / "record.json").read_text())
    assert draft["measurements"][0]["result"]["gain"] == 1.68757


def test_another_step_as_slow_as_the_end_speaks_for_it(tree, probe):
    # Of a bisect on an H200: the fast steps differ among themselves, and rightly so.
    probe(timed=True)
    made = tree("1613", "5130", "1602", "26.05", "72.15", "23.19")
    done = made.bisect("--json")
    assert json.loads(done.stdout)["name"] == "0030-step"
    assert "once more" not in done.stderr


def test_fast_steps_that_agree_leave_no_doubt(serving):
    made = serving("1", "2560", "4200", "4278")
    done = made.bisect(*LINE)
    assert done.returncode == 0 and len(made.measured) == 3


def test_a_figure_that_is_counted_is_never_in_doubt(tree):
    made = tree("100", "50", "40", "20")
    assert made.bisect("--old", "0001").returncode == 0
    assert made.measured == ["100", "20", "40", "50"]
    for name in ("kernel:decode", "serving:sweep-256-256"):
        assert REAL(name).timed
    assert not REAL("work:indexer").timed


def test_a_gpu_of_which_nothing_is_known_is_not_told_to_be_free(serving):
    made = serving("1", "gpu none:2560", "gpu none:2535", "gpu none:4278")
    done = made.bisect(*LINE)
    assert done.returncode == 0 and len(made.measured) == 3
    for file in ("steps.json", "result.json"):
        steps = json.loads((made.session / file).read_text())["steps"]
        assert [step["beside"] for step in steps] == [[None]] * 3


def test_a_second_look_that_agrees_names_the_commit_and_says_so(serving):
    made = serving("1", "gpu 9000:2400 9000:2300", "gpu 0:2535", "gpu 9000:4000 0:4278")
    done = made.bisect(*LINE)
    assert done.returncode == 0 and len(made.measured) == 5
    lines = done.stdout.splitlines()
    (row,) = [line for line in lines if "<--" in line]
    assert row.split()[1] == "0030-step"
    assert row.endswith("<--  beside other work: 8.8 GiB of GPU 0 in use, 0% busy")
    assert lines[-2].split()[0] == "again"
    assert "0010-step 2,300 tok/s, 0030-step 4,278 tok/s" in lines[-2]
    assert lines[-1].startswith("beside     0010-step, 0030-step: timed beside other")
    # No record of figures that others may have slowed.
    assert not (made.session / "record.json").exists() and "draft" not in done.stdout
    found = json.loads((made.session / "result.json").read_text())
    ends = [made.commit(name) for name in ("0010-step", "0030-step")]
    assert found["beside_other_work"] == ends
    again = found["steps"][0]["again"]
    assert again["values"] == [2300] and again["beside"][0]["memory_mib"] == 9000


def test_several_true_gains_cost_one_more_look_at_the_slow_end(tree, probe):
    probe(timed=True)
    made = tree("100", "50", "40", "20")
    done = made.bisect("--old", "0001")
    assert done.returncode == 0 and made.measured == ["100", "20", "40", "50", "100"]
    assert "once more  0001-kernels: " in done.stderr
    assert done.stdout.splitlines()[-1].split() == [
        "again",
        "0001-kernels",
        "100",
        "us",
    ]


def test_the_slow_end_of_a_loss_is_the_new_one(serving):
    made = serving("4278", "2535", "runs 485 2560")
    done = made.bisect("--find", "loss", "--old", "0001")
    assert done.returncode == Exit.NO
    assert "new end 0020-step: 485 tok/s, then 2,560 tok/s" in done.stderr
    assert "0010-step, 2,535 tok/s: before, then after" in done.stderr


def test_ends_that_show_no_gain_the_second_time(serving):
    made = serving("1", "gpu 9000:485 0:3100", "gpu 0:3152")
    done = made.bisect("--old", "0010")
    assert done.returncode == Exit.NO and "unclear" in done.stderr
    assert "there is no gain between the ends: their figures differ by 1.68%" in (
        done.stderr
    )


def test_an_end_that_cannot_be_measured_the_second_time(serving):
    made = serving("1", "runs 485 skip", "2467", "3152")
    done = made.bisect(*LINE)
    assert done.returncode == Exit.NO and "unclear" in done.stderr
    assert "old end 0010-step: 485 tok/s, then no figure" in done.stderr
    assert "0010-step: it is gone" in done.stderr


def test_a_second_look_that_fails_is_gone_on_with(serving):
    old, new = "gpu 9000:485 0:490", "gpu 9000:3152 fail 0:3200"
    made = serving("1", old, "2467", new)
    done = made.bisect(*LINE)
    assert done.returncode == Exit.ENVIRONMENT and "the probe failed" in done.stderr
    made.assert_untouched()
    assert made.measured[3:] == [old, new]
    after = made.bisect(*LINE, "--json")
    assert made.measured[5:] == [new]
    found = json.loads(after.stdout)
    assert found["name"] == "0020-step" and found["steps"][0]["values"] == [485]
    assert [step.get("again", {}).get("values") for step in found["steps"]] == [
        *([490.0], None, [3200.0])
    ]


def test_the_commits_of_this_repository_are_looked_at_twice_too(repository, probe):
    probe(better=probes.HIGHER, least_change=0.03, timed=True)
    repo = repository("gpu 9000:485 0:2560", "2467", "3152")
    old = repo.commits[0]
    done = repo.bisect("--old", old)
    assert done.returncode == Exit.NO
    assert f"old end {old[:12]}: 485 us beside other work, then 2,560" in done.stderr
    done = repo.bisect("--old", old, "--json")
    assert json.loads(done.stdout)["culprit"] == repo.commits[-1]


def test_rounds_of_sessions_from_before_have_no_load(tmp_path):
    (tmp_path / "steps").mkdir()
    old = {"value": 5.0, "correct": True, "why": None, "machine": {}}
    new = {**old, "beside": {"gpu": "GPU 0", "memory_mib": 9000, "utilisation": 0}}
    plans.keep(tmp_path, "c", 0, old)
    found = plans.figures(plan(), tmp_path, "c")
    assert found.beside == [] and found.crowd is None and found.again is None
    plans.keep(tmp_path, "c", 1, new)
    found = plans.figures(plan(rounds=2), tmp_path, "c")
    assert found.beside == [None, new["beside"]] and found.crowd == new["beside"]
    assert found.details == {"machine": {}}
    assert measuring.exit_status(plan(), found) == measuring.AFTER
