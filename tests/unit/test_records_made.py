"""Records made from raw files: what each reader takes, what is refused, and two of them compared."""

from __future__ import annotations

import json

import pytest

from made_records import RAW, VALUES, steps, write_raw, Made
from made_series import snapshot
from patchset import kernelbench
from patchset.errors import Exit
from patchset.records import compare, draft, figures, readers, rows, schema, stale


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
def test_what_cannot_be_recorded(recorded, line, code, said):
    before = snapshot(recorded.records)
    words = [
        str(recorded.root / word) if word.startswith("ci/") else word for word in line
    ]
    done = recorded.run("record", *words)
    assert done.returncode == code and said in done.stderr
    assert snapshot(recorded.records) == before


@pytest.mark.parametrize("select", ["step=0099-gone", "step"])
def test_a_selection_that_is_not_there(recorded, select):
    before = snapshot(recorded.records)
    raw = ("--reader", "steps", "--raw", recorded.root / RAW, "--command", "c")
    done = recorded.run("record", "0030-indexer", *raw, "--select", select)
    assert done.returncode == Exit.USAGE
    assert "0099-gone" in done.stderr or "KEY=VALUE is expected" in done.stderr
    assert snapshot(recorded.records) == before


def test_a_drafts_command_has_the_words_of_the_measuring_commands(own):
    raw = steps(Made(own).root, VALUES)
    made = []
    for words in ({}, {"words": ["--serve=--tp 2 --port 3000"]}):
        text = json.dumps(raw | words).encode()
        record = draft.from_steps(text, RAW, "0030-indexer", "0020-environ", "title")
        made.append(record["measurements"][0]["command"])
    assert made[1] == f"{made[0]} '--serve=--tp 2 --port 3000'"


@pytest.mark.parametrize(
    "probe, how",
    [
        ("serving:short-256-128@64", "its server passed the smoke test first"),
        ("kernel:decode", "compared with the release's own function in the same run"),
    ],
)
def test_a_draft_says_how_its_step_was_found_right(own, probe, how):
    raw = steps(Made(own).root, VALUES) | {"probe": probe}
    record = draft.from_steps(
        json.dumps(raw).encode(), RAW, "0030-indexer", "0020-environ", "title"
    )
    assert record["measurements"][0]["correctness"]["how"] == how


def test_a_step_that_was_skipped_is_not_recorded(own):
    recorded = Made(own)
    raw = steps(recorded.root, VALUES)
    raw["steps"][2] |= {"values": [], "skip": "it does not build"}
    done = recorded.run("record", "--steps", write_raw(recorded.root, raw))
    assert "0020-environ: not recorded: it does not build" in done.stderr
    # Nor is the one above it, which would have a gain over another commit than its parent.
    said = (
        "0030-indexer: not recorded: 0020-environ, the one below it, was not measured"
    )
    assert said in done.stderr
    left = sorted(path.stem for path in recorded.records.glob("*.json"))
    assert left == ["0000-stock", "0010-kernels"]
    del raw["steps"][2]
    raw["steps"][2]["name"] = "0099-other"
    done = recorded.run("record", "--steps", write_raw(recorded.root, raw))
    assert "0099-other: not recorded: it is no checkpoint" in done.stderr


@pytest.mark.parametrize("text", ["{}", "[]", '{"probe": "x"}', "no"])
def test_a_file_that_has_no_steps(recorded, text):
    before = snapshot(recorded.records)
    other = recorded.records / "raw" / "other.json"
    other.write_text(text)
    done = recorded.run("record", "--steps", other)
    assert done.returncode == Exit.USAGE and "Traceback" not in done.stderr
    other.unlink()
    assert snapshot(recorded.records) == before


def test_a_wrong_step_is_recorded_as_wrong(own):
    recorded = Made(own)
    raw = steps(recorded.root, VALUES)
    raw["steps"][3]["wrong"] = "scores differ"
    assert (
        recorded.run("record", "--steps", write_raw(recorded.root, raw)).returncode == 0
    )
    recorded.run("render")
    assert "**WRONG**: 0030-indexer: scores differ" in recorded.page.read_text()


def test_a_second_kind_of_measurement_stands_beside_the_first(recorded):
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
    raw = write_raw(recorded.root, bench, "ci/checkpoints/raw/bench.json")
    words = ("0030-indexer", "--reader", "kernel-bench", "--raw", raw)
    words += ("--command", "scripts/bench.sh kernel")
    for pair in ("case=B1", "arm=ours", "against=stock", "sources=config.py"):
        words += ("--select", pair)
    assert recorded.run("record", *words).returncode == 0
    found = schema.load(recorded.records / "0030-indexer.json")
    first, second = found["measurements"]
    assert (first["reader"], second["reader"]) == ("kernel-bench", "steps")
    assert first["result"]["gain"] == 4
    assert first["correctness"]["how"].startswith("set and order of rows compared")
    assert (first["result"]["gain_min"], first["result"]["gain_max"]) == (3, 5)
    recorded.run("render")
    code, told = recorded.verify()
    assert code == 0 and "kernels/config.py was cccc" in told["stale"][0]


def test_a_command_measures_as_often_as_its_record_says(recorded):
    timing = {"median": 2.0, "low": 1.9, "high": 2.5, "samples": 15}
    case = {"case": "B1", "kernel": "topk", "correct": True, "timings": {}}
    case["timings"] = {"ours": timing, "stock": timing}
    bench = {"machine": {"date": None, "kernels_sha256": {"a.py": "c" * 64}}}
    file = "ci/checkpoints/raw/bench.json"
    raw = write_raw(recorded.root, bench | {"cases": [case]}, file)
    words = ["0030-indexer", "--reader", "kernel-bench", "--raw", raw]
    for pair in ("case=B1", "arm=ours", "against=stock", "sources=a.py"):
        words += ["--select", pair]
    for other, measured in (("", 25), (" --samples 150", 150)):
        command = f"scripts/bench.sh kernel{other}"
        done = recorded.run("record", *words, "--command", command)
        assert done.returncode == Exit.USAGE
        assert f"--command measures {measured}: say --samples 15" in done.stderr
    command = "scripts/bench.sh kernel --samples 15"
    assert recorded.run("record", *words, "--command", command).returncode == 0


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


def test_counted_work_that_is_the_parents_has_no_row():
    kernel, today = counted(1, "B1"), stale.Now({}, {}, {}, {})

    def shown(*measurements: dict) -> list[str]:
        record = {"id": "0030-x", "measurements": [*measurements]}
        return [cells[1].partition(";")[0] for cells in rows.of(record, today)]

    assert shown(kernel, counted(1)) == ["B1"]
    assert shown(counted(1)) == []
    assert shown(kernel, counted(1.5)) == ["B1", "work:indexer"]
    assert shown(kernel, counted(1, ok=False)) == ["B1", "work:indexer"]
    stock = counted(1)
    stock["result"] |= {"gain": None, "parent": None}
    assert shown(kernel, stock) == ["B1", "work:indexer"]


def test_compare(recorded):
    done = recorded.run("compare", "0020-environ", "0030-indexer")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split() == [
        "fake:speed",
        "50",
        "us",
        "10",
        "us",
        "5.00x",
    ]
    assert recorded.run("compare", "20", "30").stdout == done.stdout
    assert done.stdout.splitlines()[0].endswith("gain of the second")
    assert recorded.run("compare", "0020", "0030").stdout == done.stdout
    done = recorded.run("compare", "0020", "0099")
    assert done.returncode == Exit.USAGE and "no record '0099'" in done.stderr
    done = recorded.run("compare", "0020-environ", "0099-none")
    assert done.returncode == Exit.USAGE and "0030-indexer" in done.stderr
    found = json.loads((recorded.records / "0030-indexer.json").read_text())
    found["measurements"][0]["machine"] = {"cpu": "other"}
    schema.write(recorded.records / "0030-indexer.json", found)
    done = recorded.run("compare", "0020-environ", "0030-indexer")
    assert done.returncode == Exit.NO
    assert "no measurement of the same thing" in done.stderr


def timed(file: str = "a.json", flags: dict | None = None, **select: str) -> dict:
    """A measurement of a server's arm."""
    return {
        "reader": "server-steps",
        "workload": {"id": "steps"},
        "machine": {"gpu": "NVIDIA H200"},
        "flags": flags,
        "select": select,
        "runs": [{"file": file}],
        "result": {
            "unit": "tok/s",
            "better": "higher",
            "candidate": {
                "median": {"0070": 23_310.4, "0060": 11_655.2}[select["arm"]]
            },
        },
    }


def pairs(first: list[dict], second: list[dict]) -> list[tuple]:
    records = ({"measurements": each} for each in (first, second))
    return [(each.what, each.ratio) for each in compare.compared(*records)]


def test_what_is_compared_is_said_once_and_by_its_arms():
    once = timed(arm="0060", against="0050")
    twice = [timed(arm="0070", against=below) for below in ("0060", "0069")]
    assert pairs([once], twice) == [("steps: 0060 / 0070", 2)]
    assert pairs(twice, twice) == [("steps: 0070", 1)]
    other = timed("b.json", arm="0070")
    assert pairs([once], [other]) == [("steps: 0060 / 0070, in two runs", 2)]


def test_arms_with_other_flags_are_not_compared():
    on, off, idle = (
        {"SGLANG_SM120_INDEXER": {"path": "p", "ours": ours}}
        for ours in (True, False, None)
    )
    more = on | {"SGLANG_SM120_TOPK": {"path": "p", "ours": True}}
    asked_later = on | {"SGLANG_SM120_TOPK": None}
    first = timed(flags=on, arm="0060")
    assert pairs([first], [timed(flags=off, arm="0070")]) == []
    for flags in (on, idle, more, asked_later, None):
        assert len(pairs([first], [timed(flags=flags, arm="0070")])) == 1


def test_a_compared_figure_keeps_its_digits(recorded):
    for id, value in (("0020-environ", 11_655.2), ("0030-indexer", 23_310.4)):
        path = recorded.records / f"{id}.json"
        found = json.loads(path.read_text())
        found["measurements"][0]["result"]["candidate"]["median"] = value
        schema.write(path, found)
    done = recorded.run("compare", "0020", "0030")
    assert "11,655 us" in done.stdout and "23,310 us" in done.stdout
    assert done.stdout.rstrip().endswith("0.50x")


def test_where_more_is_better():
    result = figures.result(
        "tok/s",
        "higher",
        {"median": 30, "min": 28, "max": 32, "n": 5},
        {"median": 10, "min": 8, "max": 14, "n": 5},
    )
    assert (result["gain"], result["gain_min"], result["gain_max"]) == (3, 2, 4)


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


def test_a_serving_run_slots_in(recorded):
    commit = steps(recorded.root, VALUES)["steps"][3]["commit"]
    raw = write_raw(
        recorded.root, served(commit), "ci/checkpoints/raw/serving/result.json"
    )
    words = ["0030-indexer", "--reader", "serving", "--raw", raw, "--command", "c"]
    for pair in ("arm=candidate", "against=parent", "concurrency=1"):
        words += ["--select", pair]
    assert recorded.run("record", *words).returncode == 0
    first = schema.load(recorded.records / "0030-indexer.json")["measurements"][0]
    result = first["result"]
    # Round 0 warms up.
    assert result["candidate"] == {"median": 22, "min": 20, "max": 26, "n": 3}
    assert result["gain"] == 2 and first["commit"] == commit
    recorded.run("render")
    assert "| 2.00x (11 tok/s to 22 tok/s) | a real server" in recorded.page.read_text()
    assert recorded.verify() == (0, {**recorded.verify()[1], "stale": []})
    other = stale.Now({}, {"0030-indexer": "e" * 40}, {}, {})
    told = stale.since("0030-indexer", first, other)
    assert told.startswith("stale since 0030-indexer or below: its commit was")
