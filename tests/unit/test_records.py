"""Records of a release: recomputed from their raw files, every changed digit told, what is stale said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from made_records import RAW, VALUES, record, steps, write_raw, Made
from made_series import STEPS, snapshot
from made_wheel import make_release
from patchset.errors import Exit
from patchset.records import rows, schema, stale, sums, verify


def test_what_was_recorded_is_verified_and_rendered(recorded):
    code, told = recorded.verify()
    assert code == 0 and told["ok"] and told["measurements"] == 4
    assert told["stale"] == told["notes"] == []
    found = schema.load(recorded.records / "0030-indexer.json")
    assert found["parent"] == "0020-environ"
    assert found["title"] == "indexer: change what it says"
    (measurement,) = found["measurements"]
    assert measurement["result"]["gain"] == 5
    assert list(measurement["lineage"]) == list(VALUES)
    page = recorded.page.read_text()
    commit = steps(recorded.root, VALUES)["steps"][3]["commit"]
    assert f"| 0030-indexer | `{commit[:12]}` | indexer: change what it says |" in page
    assert "| 5.00x (50 us to 10 us) | speed of a test; any machine, no GPU |" in page
    assert "| measured 2026-11-29; n = 1 and 1 in one run, 5.00x to 5.00x |" in page
    assert "| 100 us | speed of a test" in page
    assert "`scripts/checkpoint.sh measure --probe fake:speed --out FILE`" in page


def test_the_same_again_changes_nothing(recorded):
    before = snapshot(recorded.records)
    record(recorded.root, "0030-indexer")
    after = snapshot(recorded.records)
    assert after == before


def test_raw_files_that_were_measured_anew_are_read_again(recorded):
    raw = steps(recorded.root, {**VALUES, "0030-indexer": 25})
    write_raw(recorded.root, raw)
    assert recorded.verify()[0] == Exit.NO
    anew = ("--remeasured", recorded.root / RAW)
    done = recorded.run("record", "--again", *anew)
    assert done.returncode == 0, done.stderr
    assert "0030-indexer.json: written" in done.stdout
    assert "| 2.00x (50 us" not in recorded.page.read_text()
    recorded.run("render")
    assert recorded.verify()[0] == 0
    assert "| 2.00x (50 us to 25 us)" in recorded.page.read_text()
    del raw["steps"][3]
    write_raw(recorded.root, raw)
    before = snapshot(recorded.records)
    done = recorded.run("record", "--again", *anew)
    assert done.returncode == Exit.USAGE
    assert "what was recorded of it: 0 entries with name '0030-" in done.stderr
    assert "0030-indexer, speed of a test\n" in done.stderr
    assert snapshot(recorded.records) == before


@pytest.mark.parametrize(
    "times, said",
    [
        ([10, 40, 60], "0.83x to 5.00x: no difference shown |"),
        ([30, 40, 49], "1.02x to 1.67x |"),
        ([51, 60, 70], "0.71x to 0.98x |"),
    ],
)
def test_a_spread_on_both_sides_of_one_shows_no_difference(recorded, times, said):
    raw = steps(recorded.root, VALUES)
    raw["steps"][3]["values"] = times
    anew = ("--remeasured", write_raw(recorded.root, raw))
    assert recorded.run("record", "--again", *anew).returncode == 0
    recorded.run("render")
    row, *_ = re.findall(r"^\| 0030-indexer .*$", recorded.page.read_text(), re.M)
    assert said in row


def test_another_parent_is_no_second_measurement(recorded):
    raw = steps(recorded.root, VALUES)
    path = recorded.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    found["measurements"][0]["select"]["against"] = "0010-kernels"
    schema.write(path, found)
    recorded.run("record", "--steps", write_raw(recorded.root, raw))
    (measurement,) = schema.load(path)["measurements"]
    assert measurement["select"]["against"] == "0020-environ"


def digits(path: Path) -> list[int]:
    return [found.start() for found in re.finditer(r"\d", path.read_text())]


@pytest.mark.parametrize(
    "name", ["ci/checkpoints/0030-indexer.json", RAW, "CHECKPOINTS.md"]
)
def test_any_digit_that_is_changed_is_told(recorded, name):
    path = recorded.root / name
    whole = path.read_text()
    today = now_of(recorded)
    places = digits(path)
    # The file of a record and the raw file: each digit. The page goes through the command: some.
    if name == "CHECKPOINTS.md":
        places = places[:: len(places) // 6]
    for place in places:
        digit = str((int(whole[place]) + 1) % 10)
        path.write_text(whole[:place] + digit + whole[place + 1 :])
        if name == "CHECKPOINTS.md":
            code, told = recorded.verify()
            assert code == Exit.NO, whole[place - 30 : place + 5]
            assert told["problems"] == ["CHECKPOINTS.md is not what the records render"]
        else:
            found = verify.run(recorded.root, recorded.records, today)
            assert found.problems, whole[place - 30 : place + 5]
    path.write_text(whole)
    assert recorded.verify()[0] == 0


def now_of(recorded: Made) -> stale.Now:
    series = recorded.release.series
    trees = {
        step["name"]: step["tree"] for step in steps(recorded.root, VALUES)["steps"]
    }
    assert len(trees) == len(series.patches) + 1
    return stale.Now(trees, {}, {}, {})


def test_the_next_line_names_what_was_changed(recorded):
    recorded.page.write_text(recorded.page.read_text() + "edited\n")
    done = recorded.run("verify")
    assert done.returncode == Exit.NO and "wrong" in done.stdout
    assert "git diff -- " in done.stderr and "CHECKPOINTS.md" in done.stderr
    assert "put it back" not in done.stderr
    assert done.stderr.strip().endswith("scripts/checkpoint.sh render")
    assert recorded.run("render").returncode == 0 and recorded.verify()[0] == 0
    raw = recorded.root / RAW
    raw.write_text(raw.read_text().replace("50", "51"))
    said = recorded.run("verify").stderr
    assert "ci/checkpoints" in said and "CHECKPOINTS.md; put it back" in said


def test_a_figure_that_was_sealed_again_is_recomputed(recorded):
    path = recorded.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    found["measurements"][0]["result"]["gain"] = 7
    found["seal"] = schema.seal(found)
    path.write_text(json.dumps(found))
    code, told = recorded.verify()
    assert code == Exit.NO
    problem, page = told["problems"]
    assert problem == (
        "0030-indexer, measurement 1: result.gain is 7, the raw files give 5.0"
    )
    assert "CHECKPOINTS.md" in page


def test_a_difference_far_in_a_long_text_is_shown(recorded):
    path = recorded.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    (measurement,) = found["measurements"]
    whole = {**measurement, "notes": f"{'same ' * 60}kept{' same' * 60}", "flags": {}}
    given = {**whole, "notes": whole["notes"].replace("kept", "given")}
    (line,) = verify._differing("notes", whole["notes"], given["notes"])
    assert "same same kept same" in line and "same same given same" in line
    assert len(line) < 320 and line.count("...") == 4
    (line,) = verify._differing("flags", {"A": {"ours": True}}, {"A": {}})
    assert line == "flags.A.ours is True, the raw files give nothing"
    assert verify._differing("flags", {"A": 1}, {"A": 1}) == []
    assert verify._differing("runs", [1, 2], [1, 3]) == [
        "runs is [1, 2], the raw files give [1, 3]"
    ]


def test_a_raw_file_that_was_changed_with_its_list(recorded):
    raw = recorded.root / RAW
    raw.write_text(raw.read_text().replace("50", "51"))
    sums.put(recorded.records / "raw", ["speed/steps.json"])
    code, told = recorded.verify()
    assert code == Exit.NO
    assert any(f"{RAW} was changed: its sha256 differs" in p for p in told["problems"])
    assert any("result.candidate." in problem for problem in told["problems"])


def test_raw_files_that_no_record_names_are_watched_too(recorded):
    other = recorded.records / "raw" / "speed" / "log.txt"
    other.write_text("took 12 s\n")
    code, told = recorded.verify()
    assert code == 0 and "does not list" in told["notes"][0]
    assert "speed/log.txt: new in SHA256SUMS" in recorded.run("render").stdout
    assert recorded.verify()[1]["notes"] == []
    other.write_text("took 13 s\n")
    code, told = recorded.verify()
    assert code == Exit.NO
    assert told["problems"] == [
        "raw files: speed/log.txt was changed: its sha256 is not that of SHA256SUMS"
    ]
    # Rendering does not make it right.
    recorded.run("render")
    assert recorded.verify()[0] == Exit.NO
    other.unlink()
    assert "speed/log.txt is gone" in recorded.verify()[1]["problems"][0]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda r: r.pop("title"), "it must have the fields"),
        (lambda r: r.update(more=1), "it must have the fields"),
        (lambda r: r.update(id="0031-x"), "its id is '0031-x'"),
        (lambda r: r.update(measurements=[]), "it has no measurement"),
        (lambda r: r["measurements"][0].pop("date"), "missing: date"),
        (lambda r: r["measurements"][0].update(status="sure"), "status 'sure'"),
        (lambda r: r["measurements"][0].update(runs=[]), "it has no raw file"),
        (
            lambda r: r["measurements"][0]["runs"][0].pop("arm"),
            "a run has other fields",
        ),
    ],
)
def test_a_record_of_another_form(recorded, change, said):
    path = recorded.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    change(found)
    found["seal"] = schema.seal(found)
    path.write_text(json.dumps(found))
    code, told = recorded.verify()
    assert code == Exit.NO and said in " ".join(told["problems"])
    done = recorded.run("render")
    assert done.returncode == Exit.PATCH and "is not sound" in done.stderr
    assert said in done.stderr and "git checkout --" in done.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_a_file_that_is_no_record(recorded, text):
    (recorded.records / "0030-indexer.json").write_text(text)
    code, told = recorded.verify()
    assert code == Exit.NO and told["problems"][0].startswith("0030-indexer: it ")


def test_a_raw_file_that_is_gone(recorded):
    (recorded.root / RAW).unlink()
    code, told = recorded.verify()
    assert code == Exit.NO
    assert any(f"{RAW} can't be read" in problem for problem in told["problems"])


def test_a_record_of_no_checkpoint(recorded):
    found = json.loads((recorded.records / "0030-indexer.json").read_text())
    found["id"] = "0031-other"
    schema.write(recorded.records / "0031-other.json", found)
    code, told = recorded.verify()
    assert told["problems"][0] == (
        "0031-other: no checkpoint of the series has this name"
    )


def test_a_checkpoint_without_a_record_is_noted(recorded):
    (recorded.records / "0020-environ.json").unlink()
    recorded.run("render", "--drop", "0020-environ")
    code, told = recorded.verify()
    assert code == 0 and told["notes"] == ["0020-environ has no record"]


def test_a_tree_that_changed_since_makes_its_records_stale(recorded):
    raw = steps(recorded.root, VALUES)
    for step in raw["steps"]:
        if step["name"] >= "0020":
            step["tree"] = "f" * 40
    trees = {step["name"]: step["tree"] for step in raw["steps"]}
    series = recorded.release.series
    known = schema.load_all(recorded.records)
    today = stale.Now(trees, {}, {}, {})
    measurement = known["0030-indexer"]["measurements"][0]
    told = stale.since("0030-indexer", measurement, today)
    was = measurement["tree"][:12]
    assert told == f"stale since 0020-environ: its tree was {was}, is ffffffffffff"
    assert (
        stale.since("0010-kernels", known["0010-kernels"]["measurements"][0], today)
        is None
    )
    assert f"**{told}**" in rows.of(known["0030-indexer"], today)[0][2]
    assert len(series.patches) == 3


def test_a_change_of_the_series_makes_the_page_say_stale(recorded, tmp_path):
    """Through the commands: a patch is changed, and what was measured above it is stale."""
    (tmp_path / "changed").mkdir()
    changed = [
        (
            name,
            {
                path: data.replace(b"flag = 1", b"flag = 2")
                for path, data in files.items()
            },
        )
        for name, files in STEPS
    ]
    for patch in make_release(tmp_path / "changed", steps=changed).patches.glob(
        "*.patch"
    ):
        shutil.copyfile(patch, recorded.release.patches / patch.name)
    code, told = recorded.verify()
    assert code == Exit.NO
    assert told["problems"] == ["CHECKPOINTS.md is not what the records render"]
    assert recorded.run("render").returncode == 0
    page = recorded.page.read_text()
    assert page.count("**stale since 0020-environ: its tree was") == 2
    # Neither the word nor the count makes verify fail.
    assert "0 wrong, 2 stale" in recorded.run("verify").stdout
    code, told = recorded.verify()
    assert code == 0 and len(told["stale"]) == 2


def test_a_kernel_that_changed_makes_its_measurements_stale():
    measurement = {
        "tree": None,
        "commit": None,
        "status": "measured",
        "sources": {"kernels/indexer.py": "a" * 64},
        "lineage": None,
    }
    carriers = {"kernels/indexer.py": "0029-kernels-indexer"}
    same = stale.Now({}, {}, {"kernels/indexer.py": ("a" * 64, "b" * 40)}, carriers)
    assert stale.since("0030-x", measurement, same) is None
    other = stale.Now({}, {}, {"kernels/indexer.py": ("b" * 64, "c" * 40)}, carriers)
    told = stale.since("0030-x", measurement, other)
    assert told.startswith(
        "stale since 0029-kernels-indexer: kernels/indexer.py was aaa"
    )
    gone = stale.Now({}, {}, {"kernels/other.py": ("b" * 64, "c" * 40)}, {})
    measurement["sources"] = {"kernels/indexer.py": "b" * 40}
    assert stale.since("0030-x", measurement, same) is None
    assert "was bbb" in stale.since("0030-x", measurement, other)
    assert "is ccc" in stale.since("0030-x", measurement, other)
    assert "is gone" in stale.since("0030-x", measurement, gone)
