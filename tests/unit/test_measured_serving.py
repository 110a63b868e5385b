"""What docs/measured.md says of `bench.sh serving` against what the command wrote."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import measured_serving as serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())
EARLIER = ROOT / "ci/checkpoints/raw/server-h200-series"


def test_the_serving_benchmark():
    rest = PAGE.partition("## The serving benchmark")[2]
    table = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert shown and shown == serving.lines()


def test_the_summaries_are_medians_of_three_rounds_of_the_same_work():
    for made in serving.results():
        assert made["workload"]["rounds"] == 3
        assert [made["workload"][f"{way}put_tokens"] for way in ("in", "out")] == [
            256,
            256,
        ]
        for row in made["summary"]:
            found = [
                run["figures"]["output_throughput"]
                for run in made["runs"]
                if run["arm"] == row["arm"] and run["round"]
            ]
            assert len(found) == row["runs"] == 3
            assert statistics.median(found) == row["output_throughput"]
            assert (min(found), max(found)) == (row["least"], row["most"])


def test_both_arms_passed_the_smoke_test_first():
    made = json.loads((serving.RAW / "serving.json").read_text())
    done = [each for each in made["commands"] if each["exit"] == 0]
    assert len(done) == len(serving.results())
    assert "--smoked" not in done[0]["words"]
    first = int(done[0]["tag"].removeprefix("C="))
    (smoked,) = (
        each for each in serving.results() if each["workload"]["concurrency"] == [first]
    )
    for arm in smoked["arms"]:
        assert all(check["ok"] for check in arm["smoke"])
        assert {"products", "needles to 30000", "at once"} <= {
            check["check"] for check in arm["smoke"]
        }
    states = [arm["build"]["state"] for arm in smoked["arms"]]
    assert states == ["stock", "applied"]


def test_what_was_measured_and_what_was_not():
    stated = " ".join(PAGE.split())
    (made,) = serving.results()
    assert made["workload"]["concurrency"] == [64]
    assert "So C=1 and C=16 are not measured." in stated
    raw = json.loads((serving.RAW / "serving.json").read_text())
    (command,) = raw["commands"]
    assert f"the one call took {command['seconds']:.0f} s" in stated
    assert raw["datasets"].startswith("a stand-in")
    (ours,) = (arm for arm in made["arms"] if arm["name"] == "ours")
    assert ours["build"]["commit"].startswith("da3dd7074396")
    readme = (serving.RAW.parents[3] / "README.md").read_text()
    ratio = serving.lines()[1][-1]
    assert f"64 requests at once, {ratio} the output tok/s; not at 1 and 16" in readme


def test_what_the_serving_benchmark_did_with_random_weights():
    made = json.loads((EARLIER / "bench.json").read_text())
    (command,) = made["commands"]
    assert command["exit"] == 6
    assert "9 of 16 answers differ" in command["stderr"]
    assert "of 16 answers of random weights 9 part" in STATED
    name = "bench-stock-alone-sweep-256-256-ends-stock.jsonl"
    rounds = [json.loads(line) for line in (EARLIER / name).read_text().splitlines()]
    assert [each["max_concurrency"] for each in rounds] == [64, 64, 1]
    many = [f"{each['output_throughput']:,.0f}" for each in rounds[:2]]
    assert f"{' and '.join(many)} output tok/s in two rounds, then one" in STATED
