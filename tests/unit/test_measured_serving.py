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
    for made in serving.results():
        (concurrency,) = made["workload"]["concurrency"]
        assert not any("--smoked" in words for words in command_words(concurrency))
        for arm in made["arms"]:
            assert all(check["ok"] for check in arm["smoke"])
            assert {"products", "needles to 30000", "at once"} <= {
                check["check"] for check in arm["smoke"]
            }
        states = [arm["build"]["state"] for arm in made["arms"]]
        assert states == ["stock", "applied"]


def command_words(concurrency: int) -> list[list[str]]:
    """The commands that ended well for a number of requests at once."""
    return [
        each["words"]
        for name in ("c64", "c1-c16")
        for each in json.loads((serving.RAW / f"serving-{name}.json").read_text())[
            "commands"
        ]
        if each["exit"] == 0 and each["tag"] == f"C={concurrency}"
    ]


def test_what_was_measured_and_of_which_commit():
    one, many = serving.results()
    assert [made["workload"]["concurrency"] for made in (one, many)] == [[1], [64]]
    commits = [
        next(arm for arm in made["arms"] if arm["name"] == "ours")["build"]["commit"]
        for made in (one, many)
    ]
    assert "a time is of commit {:.12}, nothing".format(commits[0]) in STATED
    assert "64 are of {:.12}, another".format(commits[1]) in STATED
    least, most = zip(*((row["least"], row["most"]) for row in one["summary"]))
    assert max(least) < min(most), "the rounds of both arms overlap"
    assert 0.2 < max(most) / min(least) - 1 < 0.3
    ratio = serving.lines()[-1][-1]
    readme = (ROOT / "README.md").read_text()
    assert f"64 requests at once, {ratio} the output tok/s" in readme


def test_the_one_round_of_sixteen_requests_at_once():
    found = []
    for arm in ("stock", "ours"):
        file = serving.RAW / f"c16/sweep-256-256-short-{arm}.jsonl"
        rounds = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(rounds) == 2 and rounds[1]["max_concurrency"] == 16
        found.append(rounds[1]["output_throughput"])
    assert "{:,.0f} tok/s for stock and {:,.0f} for ours".format(*found) in STATED


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
