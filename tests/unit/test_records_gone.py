"""Evidence that is gone or was changed: said, with the way back, and never rendered away."""

from __future__ import annotations

import shlex

import pytest

from made_records import RAW, VALUES, Made, put_back, steps, way_back, write_raw
from made_series import snapshot
from made_wheel import patchset
from patchset.errors import Exit
from patchset.records import sources, sums

LIST = "ci/checkpoints/raw/SHA256SUMS"
RECORD = "ci/checkpoints/0020-environ.json"


def test_a_list_that_is_gone_is_wrong_and_not_made_again(committed):
    (committed.root / LIST).unlink()
    other = committed.records / "raw" / "log.txt"
    other.touch()
    code, told = committed.verify()
    assert code == Exit.NO and told["notes"] == []
    assert told["problems"] == ["raw files: SHA256SUMS is gone"]
    before = snapshot(committed.root)
    for line in (("render",), ("record", "--again")):
        done = committed.run(*line)
        assert done.returncode == Exit.PATCH, line
        assert f"where: {committed.root / LIST}\n" in done.stderr
        assert "state: nothing was changed" in done.stderr
        assert snapshot(committed.root) == before
        assert way_back(done.stderr) == [str(committed.root / LIST)]
    said = committed.run("verify").stderr
    assert said.rstrip().endswith("scripts/checkpoint.sh verify")
    put_back(committed, said)
    other.unlink()
    assert committed.verify()[0] == 0


def test_a_list_without_the_line_of_a_recorded_file(recorded):
    listed = recorded.root / LIST
    listed.write_text("")
    code, told = recorded.verify()
    assert code == Exit.NO and told["notes"] == []
    assert told["problems"] == [
        "raw files: speed/steps.json was recorded, and SHA256SUMS lacks it"
    ]
    (recorded.records / "raw" / "log.txt").touch()
    assert "log.txt: new in SHA256SUMS" in recorded.run("render").stdout
    assert listed.read_text().endswith("  log.txt\n")
    assert "steps.json" not in listed.read_text()


def test_where_there_is_no_record_the_list_is_made(own):
    made = Made(own)
    write_raw(made.root, {}, "ci/checkpoints/raw/log.txt")
    assert made.run("render").returncode == 0
    assert (made.root / LIST).is_file()


@pytest.mark.parametrize(
    "line, said",
    [
        ("garbage", "line 2 of SHA256SUMS is no entry: 'garbage'"),
        ("", "line 2 of SHA256SUMS is no entry: ''"),
        ("a" * 200, f"line 2 of SHA256SUMS is no entry: '{'a' * 60}...'"),
        (f"{'a' * 64}  ", "line 2 of SHA256SUMS is no entry: 'aaa"),
        (f"{'A' * 64}  x", "line 2 of SHA256SUMS is no entry: 'AAA"),
        (f"{'a' * 64}  speed/steps.json", "is a second entry of speed/steps.json"),
        ("\udcff", r"line 2 of SHA256SUMS is no entry: '\\xff'"),
    ],
)
def test_a_line_of_the_list_that_is_no_entry_is_named(recorded, line, said):
    listed = recorded.root / LIST
    listed.write_bytes(listed.read_bytes() + line.encode(errors="surrogateescape"))
    with listed.open("a") as file:
        file.write("\n")
    code, told = recorded.verify()
    assert code == Exit.NO and len(told["problems"]) == 1
    assert said in told["problems"][0]
    before = snapshot(recorded.root)
    for words in (("render",), ("record", "--again")):
        done = recorded.run(*words)
        assert done.returncode == Exit.PATCH and said in done.stderr
        assert "Traceback" not in done.stderr
        assert way_back(done.stderr) == [str(listed)]
        assert snapshot(recorded.root) == before


def test_a_record_that_is_gone_keeps_its_rows(committed):
    gone = committed.root / RECORD
    gone.unlink()
    code, told = committed.verify()
    assert code == Exit.NO and told["notes"] == []
    first = "0020-environ has rows in CHECKPOINTS.md, and its record is gone"
    assert told["problems"][0] == first
    page = committed.page.read_text()
    done = committed.run("render")
    assert done.returncode == Exit.PATCH and f"where: {gone}\n" in done.stderr
    assert committed.page.read_text() == page
    for said in (done.stderr, committed.run("verify").stderr):
        assert way_back(said) == [str(gone)]
    put_back(committed, said)
    assert committed.verify()[0] == 0


def test_rows_of_a_record_that_is_gone_are_dropped_when_that_is_said(recorded):
    (recorded.root / RECORD).unlink()
    done = recorded.run("render")
    words = shlex.split(done.stderr.partition("take their rows out: ")[2])
    assert words[1:4] == ["render", "--drop", "0020-environ"]
    for which in ("0030", "0030-indexer", "none"):
        done = recorded.run("render", "--drop", which)
        assert done.returncode == Exit.USAGE
        assert f"--drop {which}: no record that is gone: 0020-environ" in done.stderr
    assert recorded.run("render", "--drop", "20").returncode == 0
    code, told = recorded.verify()
    assert code == 0 and told["notes"] == ["0020-environ has no record"]


@pytest.mark.parametrize("link", ["[1030-indexer](", "](ci/checkpoints/1030-indexer."])
def test_a_link_that_was_edited_is_no_record_that_is_gone(recorded, link):
    page = recorded.page.read_text()
    assert link.replace("1030", "0030") in page
    recorded.page.write_text(page.replace(link.replace("1030", "0030"), link))
    problems = ["CHECKPOINTS.md is not what the records render"]
    assert recorded.verify()[1]["problems"] == problems
    assert recorded.run("render").returncode == 0 and recorded.verify()[0] == 0


def test_export_does_not_render_rows_away_either(own_tree, recorded):
    (recorded.root / RECORD).unlink()
    # Beside the patches of the made release are its kernels, records and page.
    patches = ("--patches", recorded.release.patches, "--wheel", recorded.release.wheel)
    done = patchset("export", "--from", own_tree, *patches)
    assert done.returncode == Exit.PATCH, done.stderr
    assert "CHECKPOINTS.md has rows of records that are gone" in done.stderr


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_figures_of_raw_files_that_are_not_what_was_recorded_are_warned_of(
    recorded, change
):
    raw = recorded.root / RAW
    if change == "gone":
        raw.unlink()
    else:
        write_raw(recorded.root, steps(recorded.root, {**VALUES, "0030-indexer": 9}))
    why = {
        "gone": "can't be read (No such file or directory)",
        "changed": "was changed since it was recorded",
    }[change]
    for line, ids in (
        (("render",), "0000-stock and 3 more"),
        (("compare", "20", "30"), "0020-environ and 1 more"),
    ):
        done = recorded.run(*line)
        assert done.returncode == 0
        (warning,) = done.stderr.splitlines()
        told = f"warning: {RAW} {why}: figures of {ids} were read from it; see "
        assert warning.startswith(told)
        assert warning.endswith("scripts/checkpoint.sh verify")


def test_no_warning_where_all_is_as_it_was_recorded(recorded):
    for line in (("render",), ("compare", "20", "30")):
        assert recorded.run(*line).stderr == ""


def test_names_of_raw_files_are_those_of_the_list(recorded):
    known = [
        {"id": "x", "measurements": [{"runs": [{"file": RAW, "sha256": "0" * 64}]}]}
    ]
    assert sources.names(known) == {"speed/steps.json"}
    assert set(sums.entries(recorded.records / "raw")) == {"speed/steps.json"}
