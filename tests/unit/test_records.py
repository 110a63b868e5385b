"""Records: made from raw files, recomputed, and every change of one digit told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from made_records import RAW, VALUES, record, steps, write_raw
from made_series import STEPS, snapshot
from made_wheel import ROOT, make_release, patchset
from patchset import kernelbench
from patchset.errors import Exit
from patchset.records import chart, history, readers, rows, schema, stale, sums, verify


class Made:
    """A release with records, and the commands over it."""

    def __init__(self, release):
        self.root = release.wheel.parent
        self.release = release
        self.where = ("--root", self.root, "--wheel", release.wheel)
        self.records = self.root / "ci" / "checkpoints"
        self.page = self.root / "CHECKPOINTS.md"

    def run(self, *words):
        return patchset("checkpoint", *words, *self.where)

    def verify(self) -> tuple[int, dict]:
        done = self.run("verify", "--json")
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def made(own) -> Made:
    record(own.wheel.parent, "0030-indexer")
    found = Made(own)
    assert found.run("render").returncode == 0
    return found


def test_what_was_recorded_is_verified_and_rendered(made):
    code, told = made.verify()
    assert code == 0 and told["ok"] and told["measurements"] == 4
    assert told["stale"] == told["notes"] == []
    found = schema.load(made.records / "0030-indexer.json")
    assert found["parent"] == "0020-environ"
    assert found["title"] == "indexer: change what it says"
    (measurement,) = found["measurements"]
    assert measurement["result"]["gain"] == 5
    assert list(measurement["lineage"]) == list(VALUES)
    page = made.page.read_text()
    assert "| 5.00x (50 us to 10 us) | speed of a test; any machine, no GPU |" in page
    assert "| measured 2026-11-29; n = 1 and 1 in one run, 5.00x to 5.00x |" in page
    assert "| 100 us | speed of a test" in page
    assert "`scripts/checkpoint.sh measure --probe fake:speed --out FILE`" in page


def test_the_same_again_changes_nothing(made):
    before = snapshot(made.records)
    record(made.root, "0030-indexer")
    after = snapshot(made.records)
    assert after == before


def test_raw_files_that_were_measured_anew_are_read_again(made):
    raw = steps(made.root, {**VALUES, "0030-indexer": 25})
    write_raw(made.root, raw)
    assert made.verify()[0] == Exit.NO
    done = made.run("record", "--again")
    assert done.returncode == 0, done.stderr
    assert "0030-indexer.json: written" in done.stdout
    assert "| 2.00x (50 us" not in made.page.read_text()
    made.run("render")
    assert made.verify()[0] == 0
    assert "| 2.00x (50 us to 25 us)" in made.page.read_text()
    del raw["steps"][3]
    write_raw(made.root, raw)
    before = snapshot(made.records)
    done = made.run("record", "--again")
    assert done.returncode == Exit.USAGE
    assert "0030-indexer, speed of a test: 0 entries with name" in done.stderr
    assert snapshot(made.records) == before


def test_another_parent_is_no_second_measurement(made):
    raw = steps(made.root, VALUES)
    path = made.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    found["measurements"][0]["select"]["against"] = "0010-kernels"
    schema.write(path, found)
    made.run("record", "--steps", write_raw(made.root, raw))
    (measurement,) = schema.load(path)["measurements"]
    assert measurement["select"]["against"] == "0020-environ"


def digits(path: Path) -> list[int]:
    return [found.start() for found in re.finditer(r"\d", path.read_text())]


@pytest.mark.parametrize(
    "name", ["ci/checkpoints/0030-indexer.json", RAW, "CHECKPOINTS.md"]
)
def test_any_digit_that_is_changed_is_told(made, name):
    path = made.root / name
    whole = path.read_text()
    today = now_of(made)
    places = digits(path)
    # The file of a record and the raw file: each digit. The page goes through the command: some.
    if name == "CHECKPOINTS.md":
        places = places[:: len(places) // 6]
    for place in places:
        digit = str((int(whole[place]) + 1) % 10)
        path.write_text(whole[:place] + digit + whole[place + 1 :])
        if name == "CHECKPOINTS.md":
            code, told = made.verify()
            assert code == Exit.NO, whole[place - 30 : place + 5]
            assert told["problems"] == ["CHECKPOINTS.md is not what the records render"]
        else:
            found = verify.run(made.root, made.records, today)
            assert found.problems, whole[place - 30 : place + 5]
    path.write_text(whole)
    assert made.verify()[0] == 0


def now_of(made: Made) -> stale.Now:
    series = made.release.series
    trees = {step["name"]: step["tree"] for step in steps(made.root, VALUES)["steps"]}
    assert len(trees) == len(series.patches) + 1
    return stale.Now(trees, {}, {}, {})


def test_the_next_line_names_what_was_changed(made):
    made.page.write_text(made.page.read_text() + "edited\n")
    done = made.run("verify")
    assert done.returncode == Exit.NO and "wrong" in done.stdout
    assert "git diff -- " in done.stderr and "CHECKPOINTS.md" in done.stderr
    assert "put it back" not in done.stderr
    assert done.stderr.strip().endswith("scripts/checkpoint.sh render")
    assert made.run("render").returncode == 0 and made.verify()[0] == 0
    raw = made.root / RAW
    raw.write_text(raw.read_text().replace("50", "51"))
    said = made.run("verify").stderr
    assert "ci/checkpoints" in said and "CHECKPOINTS.md; put it back" in said


def test_a_figure_that_was_sealed_again_is_recomputed(made):
    path = made.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    found["measurements"][0]["result"]["gain"] = 7
    found["seal"] = schema.seal(found)
    path.write_text(json.dumps(found))
    code, told = made.verify()
    assert code == Exit.NO
    problem, page = told["problems"]
    assert problem.startswith("0030-indexer, measurement 1: result is {")
    assert "the raw files give {" in problem and "CHECKPOINTS.md" in page


def test_a_raw_file_that_was_changed_with_its_list(made):
    raw = made.root / RAW
    raw.write_text(raw.read_text().replace("50", "51"))
    sums.put(made.records / "raw", ["speed/steps.json"])
    code, told = made.verify()
    assert code == Exit.NO
    assert any(f"{RAW} was changed: its sha256 differs" in p for p in told["problems"])
    assert any("result is {" in problem for problem in told["problems"])


def test_raw_files_that_no_record_names_are_watched_too(made):
    other = made.records / "raw" / "speed" / "log.txt"
    other.write_text("took 12 s\n")
    code, told = made.verify()
    assert code == 0 and "does not list" in told["notes"][0]
    assert "speed/log.txt: new in SHA256SUMS" in made.run("render").stdout
    assert made.verify()[1]["notes"] == []
    other.write_text("took 13 s\n")
    code, told = made.verify()
    assert code == Exit.NO
    assert told["problems"] == [
        "raw files: speed/log.txt was changed: its sha256 is not that of SHA256SUMS"
    ]
    # Rendering does not make it right.
    made.run("render")
    assert made.verify()[0] == Exit.NO
    other.unlink()
    assert "speed/log.txt is gone" in made.verify()[1]["problems"][0]


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
def test_a_record_of_another_form(made, change, said):
    path = made.records / "0030-indexer.json"
    found = json.loads(path.read_text())
    change(found)
    found["seal"] = schema.seal(found)
    path.write_text(json.dumps(found))
    code, told = made.verify()
    assert code == Exit.NO and said in " ".join(told["problems"])
    done = made.run("render")
    assert done.returncode == Exit.PATCH and "is not sound" in done.stderr
    assert said in done.stderr and "git checkout --" in done.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"'])
def test_a_file_that_is_no_record(made, text):
    (made.records / "0030-indexer.json").write_text(text)
    code, told = made.verify()
    assert code == Exit.NO and told["problems"][0].startswith("0030-indexer: it ")


def test_a_raw_file_that_is_gone(made):
    (made.root / RAW).unlink()
    code, told = made.verify()
    assert code == Exit.NO
    assert any(f"{RAW} can't be read" in problem for problem in told["problems"])


def test_a_record_of_no_checkpoint(made):
    found = json.loads((made.records / "0030-indexer.json").read_text())
    found["id"] = "0031-other"
    schema.write(made.records / "0031-other.json", found)
    code, told = made.verify()
    assert told["problems"][0] == (
        "0031-other: no checkpoint of the series has this name"
    )


def test_a_checkpoint_without_a_record_is_noted(made):
    (made.records / "0020-environ.json").unlink()
    made.run("render")
    code, told = made.verify()
    assert code == 0 and told["notes"] == ["0020-environ has no record"]


def test_a_tree_that_changed_since_makes_its_records_stale(made):
    raw = steps(made.root, VALUES)
    for step in raw["steps"]:
        if step["name"] >= "0020":
            step["tree"] = "f" * 40
    trees = {step["name"]: step["tree"] for step in raw["steps"]}
    series = made.release.series
    known = schema.load_all(made.records)
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


def test_a_change_of_the_series_makes_the_page_say_stale(made, tmp_path):
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
        shutil.copyfile(patch, made.release.patches / patch.name)
    code, told = made.verify()
    assert code == Exit.NO
    assert told["problems"] == ["CHECKPOINTS.md is not what the records render"]
    assert made.run("render").returncode == 0
    page = made.page.read_text()
    assert page.count("**stale since 0020-environ: its tree was") == 2
    # Neither the word nor the count makes verify fail.
    assert "0 wrong, 2 stale" in made.run("verify").stdout
    code, told = made.verify()
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


@pytest.mark.parametrize(
    "line, code, said",
    [
        ((), Exit.USAGE, "name a checkpoint, or a file with --steps, or --again"),
        (("0030-indexer", "--again"), Exit.USAGE, "name a checkpoint, or a file"),
        (("0030-indexer",), Exit.USAGE, "--reader, --raw and --command are needed"),
        (
            ("0099-x", "--reader", "steps", "--raw", RAW, "--command", "c"),
            Exit.USAGE,
            "the raw file does not have what is asked for",
        ),
        (
            *(("0099-x", "--reader", "steps", "--raw", RAW, "--command", "c"),),
            Exit.USAGE,
            "next:  name what it has with --select",
        ),
        (("--steps", "/etc/hostname"), Exit.USAGE, "must lie in ci/checkpoints/raw/"),
        (("--steps", "ci/checkpoints/raw/none"), Exit.ENVIRONMENT, "can't be read"),
    ],
)
def test_what_cannot_be_recorded(made, line, code, said):
    before = snapshot(made.records)
    words = [str(made.root / word) if word.startswith("ci/") else word for word in line]
    done = made.run("record", *words)
    assert done.returncode == code and said in done.stderr
    assert snapshot(made.records) == before


@pytest.mark.parametrize("select", ["step=0099-gone", "step"])
def test_a_selection_that_is_not_there(made, select):
    before = snapshot(made.records)
    raw = ("--reader", "steps", "--raw", made.root / RAW, "--command", "c")
    done = made.run("record", "0030-indexer", *raw, "--select", select)
    assert done.returncode == Exit.USAGE
    assert "0099-gone" in done.stderr or "KEY=VALUE is expected" in done.stderr
    assert snapshot(made.records) == before


def test_a_step_that_was_skipped_is_not_recorded(own):
    made = Made(own)
    raw = steps(made.root, VALUES)
    raw["steps"][2] |= {"values": [], "skip": "it does not build"}
    done = made.run("record", "--steps", write_raw(made.root, raw))
    assert "0020-environ: not recorded: it does not build" in done.stderr
    # Nor is the one above it, which would have a gain over another commit than its parent.
    said = (
        "0030-indexer: not recorded: 0020-environ, the one below it, was not measured"
    )
    assert said in done.stderr
    left = sorted(path.stem for path in made.records.glob("*.json"))
    assert left == ["0000-stock", "0010-kernels"]
    del raw["steps"][2]
    raw["steps"][2]["name"] = "0099-other"
    done = made.run("record", "--steps", write_raw(made.root, raw))
    assert "0099-other: not recorded: it is no checkpoint" in done.stderr


@pytest.mark.parametrize("text", ["{}", "[]", '{"probe": "x"}', "no"])
def test_a_file_that_has_no_steps(made, text):
    before = snapshot(made.records)
    other = made.records / "raw" / "other.json"
    other.write_text(text)
    done = made.run("record", "--steps", other)
    assert done.returncode == Exit.USAGE and "Traceback" not in done.stderr
    other.unlink()
    assert snapshot(made.records) == before


def test_a_wrong_step_is_recorded_as_wrong(own):
    made = Made(own)
    raw = steps(made.root, VALUES)
    raw["steps"][3]["wrong"] = "scores differ"
    assert made.run("record", "--steps", write_raw(made.root, raw)).returncode == 0
    made.run("render")
    assert "**WRONG**: 0030-indexer: scores differ" in made.page.read_text()


def test_a_second_kind_of_measurement_stands_beside_the_first(made):
    bench = {
        "machine": {
            "date": "2026-11-30",
            "gpu": "NVIDIA H200",
            "kernels_sha256": {"config.py": "c" * 64},
        },
        "cases": [
            {
                "case": "B1",
                "kernel": "topk",
                "correct": True,
                "facts": {"error": 1e-4},
                "timings": {
                    "ours": {"median": 2.0, "low": 1.9, "high": 2.5, "samples": 25},
                    "stock": {"median": 8.0, "low": 7.5, "high": 9.5, "samples": 25},
                },
            }
        ],
    }
    raw = write_raw(made.root, bench, "ci/checkpoints/raw/bench.json")
    words = ("0030-indexer", "--reader", "kernel-bench", "--raw", raw)
    words += ("--command", "scripts/bench.sh kernel")
    for pair in ("case=B1", "arm=ours", "against=stock", "sources=config.py"):
        words += ("--select", pair)
    assert made.run("record", *words).returncode == 0
    found = schema.load(made.records / "0030-indexer.json")
    first, second = found["measurements"]
    assert (first["reader"], second["reader"]) == ("kernel-bench", "steps")
    assert first["result"]["gain"] == 4
    assert first["correctness"]["how"].startswith("set and order of rows compared")
    assert (first["result"]["gain_min"], first["result"]["gain_max"]) == (3, 5)
    made.run("render")
    code, told = made.verify()
    assert code == 0 and "kernels/config.py was cccc" in told["stale"][0]


def test_the_reader_knows_what_the_gate_of_each_benchmark_compares():
    raw = {
        "machine": {"date": "d", "kernels_sha256": {}},
        "cases": [{"case": "B1", "correct": True, "facts": {}}],
    }
    timing = {"median": 2.0, "low": 1.9, "high": 2.5, "samples": 25}
    (case,) = raw["cases"]
    case["timings"] = {"ours": timing, "stock": timing}
    select = {"case": "B1", "arm": "ours", "against": "stock", "sources": ""}
    told = set()
    for bench in kernelbench.BENCHES:
        case["kernel"] = bench.kernel
        found = readers.read("kernel-bench", {"all": raw}, select)
        told.add(found["correctness"]["how"])
    assert len(told) == len(kernelbench.BENCHES)
    case["kernel"] = "other"
    with pytest.raises(readers.Unreadable, match="'other'"):
        readers.read("kernel-bench", {"all": raw}, select)


def counted(gain: float, workload: str = "work:indexer", ok: bool = True) -> dict:
    arm = {"min": 1, "max": 1, "n": 1}
    return {
        **dict.fromkeys(schema.DERIVED),
        "status": "measured",
        "command": "c",
        "lineage": None,
        "what": workload,
        "workload": {"id": workload},
        "correctness": {"ok": ok, "how": "compared", "why": None},
        "result": {
            "unit": "x",
            "candidate": {"median": 1, **arm},
            "parent": {"median": gain, **arm},
            **dict.fromkeys(("gain", "gain_min", "gain_max"), gain),
        },
    }


def test_counted_work_that_is_the_parents_gives_way_to_other_measurements():
    kernel, today = counted(1, "B1"), stale.Now({}, {}, {}, {})

    def shown(*measurements: dict) -> list[str]:
        record = {"id": "0030-x", "measurements": [*measurements]}
        return [cells[1].partition(";")[0] for cells in rows.of(record, today)]

    assert shown(kernel, counted(1)) == ["B1"]
    assert shown(counted(1)) == ["work:indexer"]
    assert shown(counted(1), counted(1, "work:other")) == ["work:indexer", "work:other"]
    assert shown(kernel, counted(1.5)) == ["B1", "work:indexer"]
    assert shown(kernel, counted(1, ok=False)) == ["B1", "work:indexer"]
    stock = counted(1)
    stock["result"] |= {"gain": None, "parent": None}
    assert shown(kernel, stock) == ["B1", "work:indexer"]


def test_compare(made):
    done = made.run("compare", "0020-environ", "0030-indexer")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split() == [
        "fake:speed",
        "50",
        "us",
        "10",
        "us",
        "5x",
    ]
    assert "second over first" in done.stdout.splitlines()[0]
    assert made.run("compare", "0020", "0030").stdout == done.stdout
    done = made.run("compare", "0020", "0099")
    assert done.returncode == Exit.USAGE and "no record '0099'" in done.stderr
    done = made.run("compare", "0020-environ", "0099-none")
    assert done.returncode == Exit.USAGE and "0030-indexer" in done.stderr
    found = json.loads((made.records / "0030-indexer.json").read_text())
    found["measurements"][0]["machine"] = {"cpu": "other"}
    schema.write(made.records / "0030-indexer.json", found)
    done = made.run("compare", "0020-environ", "0030-indexer")
    assert done.returncode == Exit.NO
    assert "no measurement of the same thing" in done.stderr


def test_where_more_is_better():
    result = readers._result(
        "tok/s",
        "higher",
        {"median": 30, "min": 28, "max": 32, "n": 5},
        {"median": 10, "min": 8, "max": 14, "n": 5},
    )
    assert (result["gain"], result["gain_min"], result["gain_max"]) == (3, 2, 4)


# The records of this repository itself.

RECORDS = ROOT / "ci" / "checkpoints"


def test_every_record_of_the_repository_is_what_its_raw_files_give():
    assert sums.problems(RECORDS / "raw") == []
    known = schema.load_all(RECORDS)
    for id, found in known.items():
        for measurement in found["measurements"]:
            assert verify.recomputed(ROOT, measurement) == [], id


def test_the_chart_is_what_the_records_draw():
    drawn = chart.render(schema.load_all(RECORDS))
    assert (ROOT / history.CHART).read_text() == drawn
    for value in ("11.5", "29.7", "531.7", "58.7", "509"):
        assert f">{value}</text>" in drawn


def test_the_campaigns_figures_are_those_that_were_reported():
    section = history.section(schema.load_all(RECORDS))
    said = [
        "| SIMT baseline | none | 11.5 | 26.6 (derived) | 29.7 | none |",
        "| MMA attention kernel | none | 8.1 | none | 59.6 | none |",
        "| split-K and bf16 | none | 33.5 | none | 64.4 | none |",
        "| 8K | 58.9 | 285.1 | 531.7 | none |",
        "| 128K | 58.7 | 279 | 509 | `598928d75` |",
        "17.9x (29.7 to 531.7): the kernels gave 2.17x",
        "capping the context at 8K 8.26x",
        "SIMT attention 57.1 %, glue 69 %",
    ]
    for text in said:
        assert text in section
    campaign = [
        record for id, record in schema.load_all(RECORDS).items() if "campaign" in id
    ]
    assert len(campaign) == 6
    assert {m["status"] for record in campaign for m in record["measurements"]} == {
        "reported"
    }


def served(commit: str, **facts) -> dict:
    """What `scripts/bench.sh serving --out` writes."""
    speeds = {"parent": (90, 10, 11, 12), "candidate": (99, 20, 22, 26)}
    return {
        "workload": {"id": "sweep", "digest": "d" * 64, "concurrency": [1]},
        "arms": [
            {
                "name": name,
                "weights": "random",
                "build": {"commit": commit, "paths": {"SGLANG_SM120_INDEXER": "ours"}},
            }
            for name in speeds
        ],
        "runs": [
            {
                "arm": arm,
                "concurrency": 1,
                "round": round,
                "figures": {"output_throughput": value},
            }
            for arm, values in speeds.items()
            for round, value in enumerate(values)
        ],
        **facts,
    }


def test_a_serving_run_slots_in(made):
    commit = steps(made.root, VALUES)["steps"][3]["commit"]
    raw = write_raw(made.root, served(commit), "ci/checkpoints/raw/serving/result.json")
    words = ["0030-indexer", "--reader", "serving", "--raw", raw, "--command", "c"]
    for pair in ("arm=candidate", "against=parent", "concurrency=1"):
        words += ["--select", pair]
    assert made.run("record", *words).returncode == 0
    first = schema.load(made.records / "0030-indexer.json")["measurements"][0]
    result = first["result"]
    # Round 0 warms up.
    assert result["candidate"] == {"median": 22, "min": 20, "max": 26, "n": 3}
    assert result["gain"] == 2 and first["commit"] == commit
    made.run("render")
    assert "| 2.00x (11 tok/s to 22 tok/s) | a real server" in made.page.read_text()
    assert made.verify() == (0, {**made.verify()[1], "stale": []})
    other = stale.Now({}, {"0030-indexer": "e" * 40}, {}, {})
    told = stale.since("0030-indexer", first, other)
    assert told.startswith("stale since 0030-indexer or below: its commit was")
