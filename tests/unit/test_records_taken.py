"""What `record` takes: raw files as they were recorded, or named as measured anew; of this checkpoint."""

from __future__ import annotations

import json
import shlex

import pytest

from made_records import RAW, VALUES, Made, put_back, steps, way_back, write_raw
from made_series import snapshot
from made_wheel import patchset
from patchset.errors import Exit
from patchset.records import moved, schema, sums

ALTERED = {**VALUES, "0030-indexer": 5}
SAID = f"{RAW}: its sha256 is not that of SHA256SUMS or of a record"


def alter(made: Made) -> None:
    write_raw(made.root, steps(made.root, ALTERED))


def lines_of(made: Made) -> list[tuple]:
    """Each way to record from the raw file."""
    one = ("0030", "--reader", "steps", "--raw", made.root / RAW, "--command", "c")
    select = ("--select", "step=0030-indexer", "--select", "against=0020-environ")
    return [("--again",), ("--steps", made.root / RAW), (*one, *select)]


def test_a_raw_file_that_is_not_as_recorded_is_refused(committed):
    assert committed.verify()[0] == 0
    alter(committed)
    before = snapshot(committed.root)
    for line in lines_of(committed):
        done = committed.run("record", *line)
        assert done.returncode == Exit.USAGE, line
        assert done.stderr.startswith("error: 1 raw file not as recorded\n")
        assert f"{SAID}; git has another version of it\n" in done.stderr
        assert "0030-indexer, speed of a test: gain from 5.0 to 10.0\n" in done.stderr
        assert "state: no record was changed\n" in done.stderr
        assert way_back(done.stderr) == [str(committed.root / RAW)]
        assert snapshot(committed.root) == before
    put_back(committed, done.stderr)
    assert committed.verify()[0] == 0


def test_the_next_line_takes_over_what_was_measured_anew(committed):
    alter(committed)
    done = committed.run("record", "--again")
    words = shlex.split(done.stderr.partition("; for what was: ")[2])
    assert words[0].endswith("scripts/checkpoint.sh")
    done = patchset("checkpoint", *words[1:], "--root", committed.root)
    assert done.returncode == 0, done.stderr
    assert f"taken over as measured anew: {SAID}; git has another" in done.stderr
    row = done.stdout.partition("0030-indexer.json: written\n")[2].splitlines()
    assert row[0] == "  speed of a test: candidate.median from 10.0 to 5.0"
    assert "  speed of a test: gain from 5.0 to 10.0" in row
    # The others name the raw file too, and none of their figures moved.
    assert done.stdout.count("written") == 4 and done.stdout.count("gain from") == 1
    assert committed.run("render").returncode == 0 and committed.verify()[0] == 0


@pytest.mark.parametrize("way", [0, 1, 2])
def test_each_way_takes_over_what_is_named(recorded, way):
    alter(recorded)
    folder = recorded.root / RAW
    anew = ("--remeasured", folder if way else folder.parent)
    done = recorded.run("record", *lines_of(recorded)[way], *anew)
    assert done.returncode == 0, done.stderr
    # No repository, so nothing is said of git.
    assert f"{SAID}\n" in done.stderr and "git has" not in done.stderr
    assert "gain from 5.0 to 10.0" in done.stdout


def test_the_list_alone_does_not_take_a_raw_file_over(recorded):
    listed = recorded.records / "raw" / "SHA256SUMS"
    alter(recorded)
    listed.write_text(listed.read_text().replace(listed.read_text()[:64], "0" * 64))
    assert recorded.run("record", "--again").returncode == Exit.USAGE
    sums.put(recorded.records / "raw", ["speed/steps.json"])
    done = recorded.run("record", "--again")
    assert done.returncode == Exit.USAGE and SAID in done.stderr


def test_raw_files_of_no_record_are_taken_over_too(recorded):
    log = write_raw(recorded.root, {"took": 12}, "ci/checkpoints/raw/speed/log.json")
    recorded.run("render")
    write_raw(recorded.root, {"took": 13}, "ci/checkpoints/raw/speed/log.json")
    assert recorded.verify()[0] == Exit.NO
    # What is of no record is not in the way, and is not taken over unasked.
    assert recorded.run("record", "--again").returncode == 0
    assert recorded.verify()[0] == Exit.NO
    done = recorded.run("record", "--again", "--remeasured", log)
    assert done.returncode == 0 and "speed/log.json: its sha256" in done.stderr
    assert "written" not in done.stdout
    assert recorded.verify()[0] == 0


@pytest.mark.parametrize("place", ["none.json", "CHECKPOINTS.md", ".", "empty"])
def test_what_is_named_must_be_raw_files(recorded, place):
    (recorded.root / "empty").mkdir()
    before = snapshot(recorded.root)
    done = recorded.run("record", "--again", "--remeasured", recorded.root / place)
    assert done.returncode == Exit.USAGE
    assert "--remeasured needs raw files, or a folder of them" in done.stderr
    assert snapshot(recorded.root) == before


@pytest.mark.parametrize("facts", [{}, {"commit": "f" * 40, "tree": "f" * 40}])
def test_a_step_of_another_commit_is_refused(own, facts):
    """Also one that was measured before the series was changed."""
    recorded = Made(own)
    found = steps(recorded.root, VALUES)
    found["steps"][3] |= facts
    write_raw(recorded.root, found)
    before = snapshot(recorded.root)
    raw = ("--reader", "steps", "--raw", recorded.root / RAW, "--command", "c")
    done = recorded.run("record", "0020-environ", *raw, "--select", "step=0030-indexer")
    assert done.returncode == Exit.USAGE
    said = "what is selected is of another commit: 0030-indexer\n"
    assert said in done.stderr and f"where: {RAW}\n" in done.stderr
    assert "0030-indexer for 0020-environ" in done.stderr
    assert snapshot(recorded.root) == before


def test_a_server_at_another_commit_is_refused(recorded):
    build = {"commit": steps(recorded.root, VALUES)["steps"][3]["commit"], "paths": {}}
    arms = [{"name": name, "weights": "random", "build": build} for name in "ab"]
    runs = [
        {"arm": name, "concurrency": 1, "round": 1, "figures": {"output_throughput": 9}}
        for name in "ab"
    ]
    served = {"workload": {"id": "w", "digest": "d"}, "arms": arms, "runs": runs}
    raw = write_raw(recorded.root, served, "ci/checkpoints/raw/result.json")
    words = ["0020", "--reader", "serving", "--raw", raw, "--command", "c"]
    for pair in ("arm=a", "against=b", "concurrency=1"):
        words += ["--select", pair]
    done = recorded.run("record", *words)
    assert done.returncode == Exit.USAGE
    assert "of another commit: 0030-indexer" in done.stderr
    words[0] = "30"
    assert recorded.run("record", *words).returncode == 0


@pytest.mark.parametrize("which", ["30", "0030", "0030-indexer"])
def test_a_checkpoint_is_named_by_its_number_too(recorded, which):
    raw = ("--reader", "steps", "--raw", recorded.root / RAW, "--command", "seen")
    done = recorded.run("record", which, *raw, "--select", "step=0030-indexer")
    assert done.returncode == 0, done.stderr
    found = schema.load(recorded.records / "0030-indexer.json")
    assert [each["command"] for each in found["measurements"]] == ["seen"]


def test_a_record_of_no_patch_is_named_by_its_number_too(recorded):
    raw = ("--reader", "server-answers", "--command", "c")
    answers = {"table_one": [], "table_list": [], "needles": [], "needles_list": []}
    answers |= {"want": [], "codes": []}
    for name in ("a", "b"):
        file = write_raw(recorded.root, answers, f"ci/checkpoints/raw/{name}.json")
        raw += ("--raw", f"{name}={file}")
    raw += ("--select", "arm=a", "--select", "against=b")
    for which, title, code in (
        ("0007", (), Exit.USAGE),
        ("0007", ("--title", "t"), Exit.USAGE),
        ("Seven", ("--title", "t"), Exit.USAGE),
        ("0007-word", ("--title", "t"), 0),
        ("7", ("--title", "other"), 0),
    ):
        done = recorded.run("record", which, *title, *raw)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
    assert schema.load(recorded.records / "0007-word.json")["title"] == "other"


def test_the_next_step_is_said(recorded):
    for line in lines_of(recorded):
        done = recorded.run("record", *line)
        assert done.returncode == 0
        assert done.stderr.splitlines()[-1].startswith("next:  ")
        assert done.stderr.rstrip().endswith("scripts/checkpoint.sh render")


def test_record_makes_no_new_record_in_the_place_of_one_that_is_gone(committed):
    gone = committed.records / "0030-indexer.json"
    gone.unlink()
    for line in lines_of(committed):
        done = committed.run("record", *line)
        assert done.returncode == Exit.PATCH, line
        assert way_back(done.stderr) == [str(gone)] and not gone.exists()


@pytest.mark.parametrize("text", [None, "", "{}"])
def test_a_raw_file_without_what_was_recorded_is_put_back(committed, text):
    raw = committed.root / RAW
    raw.unlink()
    if text is not None:
        raw.write_text(text)
    before = snapshot(committed.records)
    done = committed.run("record", "--again")
    assert done.returncode == (Exit.ENVIRONMENT if text is None else Exit.USAGE)
    assert f"where: {raw}\n" in done.stderr
    assert "0000-stock, speed of a test\n" in done.stderr
    assert way_back(done.stderr) == [str(raw)]
    assert snapshot(committed.records) == before
    if text is not None:
        line = done.stderr.partition("record it by itself: ")[2]
        script, *words = shlex.split(line)
        assert words[:4] == ["record", "0000-stock", "--reader", "steps"]
        put_back(committed, done.stderr)
        assert committed.run(*words).returncode == 0
    else:
        put_back(committed, done.stderr)
    assert committed.run("record", "--again").returncode == 0


def test_a_full_disk_leaves_whole_records(recorded, monkeypatch):
    def full(path, record):
        if path.stem == "0020-environ":
            raise OSError(28, "No space left on device")
        return whole(path, record)

    whole = schema.write
    alter(recorded)
    anew = ("--again", "--remeasured", recorded.root / RAW)
    monkeypatch.setattr(schema, "write", full)
    done = recorded.run("record", *anew)
    assert done.returncode == Exit.ENVIRONMENT
    assert done.stderr.splitlines() == [
        "error: the disk is full",
        f"where: {recorded.records}",
        "state: each record is either as it was or as it is recorded now, none is half-written",
        "next:  free some space, then run the same command again",
    ]
    monkeypatch.setattr(schema, "write", whole)
    assert recorded.run("record", *anew).returncode == 0
    recorded.run("render")
    assert recorded.verify()[0] == 0


def test_a_figure_that_is_new_or_gone_moved():
    old = {"result": {"a": 1, "rows": {"C=1": {"n": 5}}}, "correctness": None}
    new = {"result": {"a": 1, "rows": {"C=1": None}, "b": 2}, "correctness": {"ok": 1}}
    assert moved.lines(old, new) == [
        "rows.C=1.n from 5 to none",
        "b from none to 2",
        "correctness.ok from none to 1",
    ]
    assert moved.lines(old, json.loads(json.dumps(old))) == []
