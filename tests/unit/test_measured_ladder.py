"""What docs/measured.md says of the ladder of real servers against the raw files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
RAW = ROOT / "ci/checkpoints/raw/server-h200-series"
ROWS = (1, 16, 64)


def raw(name: str) -> dict:
    return json.loads((RAW / f"{name}.json").read_text())


def step(made: dict, arm: str, rows: int) -> list[float]:
    """The counted steps of an arm in ms."""
    return [
        run["step_ms"]
        for run in made["runs"]
        if (run["arm"], run["n"]) == (arm, rows) and run["rep"]
    ]


def gpu(made: dict, arm: str, rows: int) -> float | None:
    """The GPU's time of a step in us, the median of a profile's steps."""
    found = made["profiles"].get(f"{arm} C={rows}", {}).get("step_busy_us")
    return statistics.median(found) if found else None


def shown(time: float | None) -> str:
    return f"{time:,.0f}" if time else "none"


def table(start: str) -> list[list[str]]:
    """The rows of the first table after these words."""
    rest = PAGE.partition(start)[2]
    assert rest, start
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("context, mark", [("128K", ""), ("8K", "@8k")])
def test_each_patch_on_top_of_the_last(context, mark):
    made = raw(context.lower())
    start = f"Each patch on top of the last at {context},"
    lines = table(start)
    assert [line[0] for line in lines] == (
        "stock 0030 0040 0045 0050 0060 0070 0090".split()
    )
    least, below = [], None
    for name, *cells in lines:
        times = [step(made, name + mark, rows) for rows in ROWS]
        least += [len(each) for each in times]
        medians = [statistics.median(each) for each in times]
        gain = f"{below / medians[2]:.2f}x" if below else ""
        below = medians[2]
        own = [shown(gpu(made, name + mark, rows)) for rows in (1, 64)]
        assert cells == [*(f"{each:.3f}" for each in medians), gain, *own], name
    assert min(least) >= 5
    counted = re.search(r"(\d+) counted lists or more", PAGE.partition(start)[2])[1]
    assert int(counted) == min(least)


SERIES = ("0090@8k", "0090", "0090@1m")
STATED = " ".join(PAGE.split())


def test_what_the_context_costs():
    made = raw("128k")
    lines = table("What the context costs with the patches up to 0090")
    assert [line[0] for line in lines] == [str(rows) for rows in ROWS]
    spread = []
    for rows, line in zip(ROWS, lines):
        own = [gpu(made, arm, rows) for arm in SERIES]
        timed = [step(made, arm, rows) for arm in SERIES]
        assert [len(times) for times in timed] == [5, 5, 5]
        medians = [statistics.median(times) for times in timed]
        cells = [f"{time:,.0f}" for time in own]
        cells += [f"{own[0] / time:.1%}" for time in own[1:]]
        cells += [
            f"{median:.3f} ({min(times):.3f} to {max(times):.3f})"
            for median, times in zip(medians, timed)
        ]
        cells += [f"{medians[0] / time:.1%}" for time in medians[1:]]
        assert line[1:] == cells
        assert all(0.965 < own[0] / time < 1.005 for time in own[1:])
        spread += [max(times) / min(times) - 1 for times in timed]
    assert f"spread by {min(spread):.0%} to {max(spread):.0%} and show" in STATED


def test_each_profile_of_the_series_has_six_steps():
    profiles = raw("128k")["profiles"]
    for arm in SERIES:
        for rows in ROWS:
            assert len(profiles[f"{arm} C={rows}"]["step_busy_us"]) == 6


def test_what_is_said_of_the_patches_whose_steps_wait_for_the_host():
    made = raw("128k")
    gains = [
        f"{gpu(made, below, rows) / gpu(made, arm, rows):.2f}x"
        for rows in (64, 1)
        for below, arm in (("0060", "0070"), ("0070", "0090"))
    ]
    words = "own time says {} and {} at 64 rows, {} and {} at one"
    assert words.format(*gains) in STATED
    spread = [
        max(times) / min(times) - 1
        for file, mark in (("128k", ""), ("8k", "@8k"))
        for arm in ("0060", "0070", "0090")
        for rows in ROWS
        if (times := step(raw(file), arm + mark, rows))
    ]
    assert f"spread by {min(spread):.0%} to {max(spread):.0%}. So the" in STATED


def test_eight_layers_were_timed_at_1m_only():
    assert raw("bench")["runs"] == [] and raw("bench")["profiles"] == {}
    made = json.loads((RAW.parent / "server-h200-1m/shake.json").read_text())
    eight, four = (
        [statistics.median(step(made, arm, rows)) for rows in (64, 1)]
        for arm in ("8-layers@1m", "0100@1m")
    )
    layer = (eight[0] - four[0]) / 4
    assert (
        f"{eight[0]:.3f} ms at 64 rows beside {four[0]:.3f} of four, so {layer:.3f} ms a "
        f"layer and {four[0] - 4 * layer:.3f} once a step" in STATED
    )
    assert eight[1] < four[1]


def test_what_the_serving_benchmark_did():
    (command,) = raw("bench")["commands"]
    assert command["exit"] == 6
    assert "9 of 16 answers differ" in command["stderr"]
    assert "of 16 answers of random weights 9 part" in STATED
    name = "bench-stock-alone-sweep-256-256-ends-stock.jsonl"
    rounds = [json.loads(line) for line in (RAW / name).read_text().splitlines()]
    assert [each["max_concurrency"] for each in rounds] == [64, 64, 1]
    many = [f"{each['output_throughput']:,.0f}" for each in rounds[:2]]
    assert f"{' and '.join(many)} output tok/s in two rounds, then one" in STATED


def test_the_patch_that_a_bisect_named_on_a_gpu():
    told = (RAW.parent / "h200-bisect-decode/bisect.txt").read_text()
    time = {
        name: float(us.replace(",", ""))
        for name, us in re.findall(r"^\w{12}  (\S+) +([\d,.]+) us ", told, re.M)
    }
    assert len(time) == 6
    threshold = float(re.search(r"^threshold +(\S+) us", told, re.M)[1])
    assert re.search(r"^gain +\w{40}  0060-decode-mma$", told, re.M)
    later = [name >= "0060" for name in time]
    assert [us < threshold for us in time.values()] == later
    release, first = time["0000-stock"], time["0060-decode-mma"]
    assert (
        f"{release:,.0f} us at the release, {first:.0f} us at 0060, threshold "
        f"{threshold:.0f} us" in STATED
    )
