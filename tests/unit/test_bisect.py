"""`bisect` with a probe that reads its figure from the tree: what is found, and what is skipped."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from made_bisect import FAKE, GAIN, state
from made_wheel import ROOT, patchset
from patchset.bisect import probes
from patchset.errors import Exit


def test_a_gain_is_found_and_everything_is_kept(tree):
    made = tree(*GAIN)
    before = state(made.path)
    done = made.bisect("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["name"] == "0040-step" and found["culprit"] == made.commit("0040-step")
    assert 20 < found["threshold"] < 100 and "threshold" in done.stderr
    assert len(made.measured) < len(GAIN) + 1
    steps = {step["name"]: step["values"] for step in found["steps"]}
    assert steps["0000-stock"] == [100.0] and steps["0040-step"] == [20.0]
    assert "0030-step" in steps
    made.assert_untouched()
    assert state(made.path) == before
    draft = json.loads((made.session / "record.json").read_text())
    assert draft["id"] == "0040-step" and draft["parent"] == "0030-step"
    assert draft["title"] == "step: change what it says"
    assert draft["measurements"][0]["result"]["gain"] == 5


def test_the_table_names_the_commit_the_threshold_and_the_files(tree):
    made = tree("100", "20", "20")
    done = made.bisect()
    lines = done.stdout.splitlines()
    (row,) = [line for line in lines if line.endswith("<--")]
    assert row.split()[1:4] == ["0010-step", "20", "us"]
    facts = {line.split()[0]: line for line in lines if line.strip()}
    assert made.commit("0010-step") in facts["gain"]
    assert facts["threshold"].endswith("44.72 us")
    assert Path(facts["figures"].split()[1]).exists()
    assert Path(facts["draft"].split()[1]).exists()


def test_the_record_is_made_by_the_command_that_is_shown(tree):
    made = tree("100", "100", "20")
    said = patchset(*made.command(), env=made.env(), cwd=ROOT).stdout.splitlines()
    (row,) = [line for line in said if line.startswith("record ")]
    copy, record = (shlex.split(part) for part in row.split(maxsplit=1)[1].split("&&"))
    assert copy[:2] == ["cp", str(made.session / "steps.json")]
    assert (ROOT / copy[2]).parent == ROOT / "ci" / "checkpoints" / "raw"
    assert record == ["scripts/checkpoint.sh", "record", "--steps", copy[2]]
    # The same in a repository of its own.
    raw = made.directory / copy[2]
    raw.parent.mkdir(parents=True)
    shutil.copyfile(copy[1], raw)
    where = ("--root", made.directory, "--wheel", made.release.wheel)
    done = patchset("checkpoint", "record", "--steps", raw, *where)
    assert done.returncode == 0, done.stderr
    record = json.loads((raw.parents[1] / "0020-step.json").read_text())
    draft = json.loads((made.session / "record.json").read_text())
    (made_one,), (drafted,) = record["measurements"], draft["measurements"]
    assert made_one["result"] == drafted["result"]
    assert made_one["select"] == drafted["select"]


def test_each_line_of_progress_names_its_patch(tree):
    made = tree("100", "50", "skip", "20")
    said = made.bisect("--old", "0000-stock").stderr.splitlines()
    ids = {name: made.commit(name)[:12] for name in ("0010-step", "0030-step")}
    (ends,) = [line for line in said if line.startswith("ends ")]
    assert ends.endswith(f"0000-stock and {ids['0030-step']} 0030-step")
    steps = [line.split() for line in said]
    assert [ids["0010-step"], "0010-step", "before", "50", "us"] in steps


def test_the_words_for_a_server_stand_in_the_raw_file_and_the_draft(tree, probe):
    words = ["--serve=--model-path 'a model'", "--smoke=--weights real"]
    probe(program=(*FAKE.program, "--case", "x", *words))
    made = tree("100", "20", "20")
    assert made.bisect().returncode == 0
    assert json.loads((made.session / "steps.json").read_text())["words"] == words
    (drafted,) = json.loads((made.session / "record.json").read_text())["measurements"]
    assert shlex.split(drafted["command"])[-2:] == words


def test_a_loss_is_found(tree):
    made = tree("20", "20", "21", "90", "90")
    done = made.bisect("--find", "loss", "--json")
    assert json.loads(done.stdout)["name"] == "0030-step"
    (drafted,) = json.loads((made.session / "record.json").read_text())["measurements"]
    assert " --find loss " in drafted["command"]


def test_where_more_is_better(tree, probe):
    probe(better=probes.HIGHER, unit="tok/s")
    made = tree("20", "20", "60", "60")
    assert json.loads(made.bisect("--json").stdout)["name"] == "0020-step"
    made = made.bisect("--find", "loss")
    assert made.returncode == Exit.NO
    assert "between the ends is a gain, not a loss" in made.stderr


def test_two_ends_next_to_each_other(tree):
    made = tree("100", "50")
    done = made.bisect("--old", "0001", "--new", "0010", "--json")
    assert json.loads(done.stdout)["name"] == "0010-step"


@pytest.mark.parametrize(
    "speeds, find, said, after",
    [
        (("100", "50", "100"), "gain", "their figures overlap", "further apart"),
        (("100", "50", "99"), "gain", "their figures differ by 1.01%", "further apart"),
        (("100", "50", "200"), "gain", "is a loss, not a gain", "--find loss"),
        (("100", "50", "20"), "loss", "is a gain, not a loss", "--find gain"),
    ],
)
def test_ends_without_the_change_are_refused(tree, speeds, find, said, after):
    made = tree(*speeds)
    done = made.bisect("--find", find)
    assert done.returncode == Exit.NO and done.stdout == ""
    assert said in done.stderr and after in done.stderr
    assert "old b" not in done.stdout and f"old {speeds[0]}" not in done.stdout
    assert len(made.measured) == 2
    made.assert_untouched()


def test_ends_whose_figures_overlap_in_part_are_refused(tree, probe):
    probe(rounds=3)
    made = tree("noisy 100 80 90", "70", "noisy 60 85 61")
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "their figures overlap" in done.stderr
    assert "100, 80, 90 us" in done.stderr and "60, 85, 61 us" in done.stderr
    # The ends take turns, in alternating order.
    order = [line.split()[1] for line in made.measured]
    assert order == ["100", "60", "60", "100", "100", "60"]


def test_rounds_are_decided_by_their_median(tree, probe):
    probe(rounds=3)
    made = tree("100", "noisy 30 100 101", "noisy 20 99 21", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert found["name"] == "0020-step"
    assert {len(step["values"]) for step in found["steps"]} == {3}
    again = made.bisect()
    assert "its figures lie on both sides of the threshold" in again.stdout


def test_another_number_of_rounds(tree, probe):
    probe(rounds=3)
    made = tree("100", "50", "20")
    done = made.bisect("--rounds", "1", "--json")
    found = json.loads(done.stdout)
    assert {len(step["values"]) for step in found["steps"]} == {1}
    assert len(made.measured) == 3
    refused = made.bisect("--rounds", "0")
    assert refused.returncode == Exit.USAGE
    assert "no whole number above 0" in refused.stderr


def test_more_rounds_of_a_stopped_session_keep_those_it_has(tree):
    made = tree("100", "exit 3", "20")
    assert made.bisect("--rounds", "2").returncode == Exit.ENVIRONMENT
    assert made.measured == ["100", "20", "20", "100", "exit 3"]
    made.bisect("--rounds", "3")
    assert made.measured[5:] == ["100", "20", "exit 3"]


def test_a_commit_that_does_not_build_is_skipped_and_named(tree):
    made = tree("100", "100", "skip", "100", "20", "20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["name"] == "0040-step"
    measured = [step["name"] for step in found["steps"]]
    if "0020-step" in measured:
        assert found["skipped"] == ["0020-step (it does not build)"]


def test_skipped_commits_beside_the_change_leave_several_open(tree):
    made = tree("100", "100", "skip", "skip", "20", "20")
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "open" in done.stdout
    for name in ("0020-step", "0030-step", "0040-step"):
        assert (
            f"{name}"
            in [line for line in done.stdout.splitlines() if "open" in line][0]
        )
    assert "0020-step (it does not build)" in done.stdout
    assert "draft" not in done.stdout and not (made.session / "record.json").exists()
    assert "<--" not in done.stdout
    # Not git's own word for it.
    assert "cannot continue" not in done.stderr
    log = made.session / "git-bisect.log"
    assert "cannot continue" in log.read_text()
    # Each step told its line.
    assert done.stderr.count("skip    it does not build") == 2
    (following,) = [line for line in done.stdout.splitlines() if line[:4] == "next"]
    another, anew = following.split("; or ")
    words = shlex.split(another.partition("these: ")[2])
    assert words[words.index("--old") + 1 :][:3] == ["0010-step", "--new", "0040-step"]
    assert words[words.index("--probe") + 1] == "NAME"
    assert shlex.split(anew.partition("anew: ")[2])[1:] == made.command()[1:]


def test_all_between_skipped(tree):
    made = tree("100", "skip", "skip", "20")
    done = made.bisect("--json")
    assert done.returncode == Exit.NO
    assert json.loads(done.stdout)["culprit"] is None


def test_a_fast_wrong_tree_is_no_gain(tree):
    made = tree("100", "wrong 1", "wrong 1", "wrong 1", "100", "20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert found["name"] == "0050-step"
    assert found["skipped"]
    assert all("(scores differ)" in said for said in found["skipped"])


def test_a_gain_with_wrong_results_above_it_is_not_that_of_what_put_them_right(tree):
    gain_at_3 = ("100", "100", "100", "20", "20", "wrong 20", "wrong 20", "20", "20")
    made = tree(*gain_at_3)
    found = json.loads(made.bisect("--json").stdout)
    assert found["name"] == "0030-step"


def test_wrong_results_beside_the_change_leave_several_open(tree):
    made = tree("100", "wrong 20", "wrong 20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert done.returncode == Exit.NO and found["culprit"] is None
    names = ("0010-step", "0020-step", "0030-step")
    assert set(found["candidates"]) == {made.commit(name) for name in names}


def test_a_wrong_tree_is_no_loss_either(tree):
    made = tree("20", "20", "wrong 500", "20", "90", "90")
    found = json.loads(made.bisect("--find", "loss", "--json").stdout)
    assert found["name"] == "0040-step"
