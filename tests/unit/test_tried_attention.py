"""Figures of the attention in docs/tried.md against the raw files of the runs that they are of."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT

TRIED = (ROOT / "docs/tried.md").read_text()
RAW = ROOT / "ci/checkpoints/raw/h200-decode"
CASES = ("prefill", "B512-h64", "B128-h64", "B64-h64", "B8-h64-8K", "B2048-h32")
ROWS = re.findall(r"^\| .* \| `([\w-]+)`, (1[123]) \| (.*) \|$", TRIED, re.M)


def medians(run: str) -> dict[str, dict[str, str]]:
    """Case -> arm -> median, of the table at the end of a run's file."""
    text = (RAW / f"tuning-{run}.txt").read_text()
    head, *lines = text.split("us, medians")[1].strip().splitlines()
    rows = [line.split() for line in lines]
    arms = head.split()
    return {name: dict(zip(arms, row)) for name, *row in rows if len(row) == len(arms)}


def test_all_runs_are_told():
    assert {run for _, run, _ in ROWS} == {"11", "12", "13"} and len(ROWS) > 20


@pytest.mark.parametrize("arm,run,cells", ROWS, ids=[f"{a}-{n}" for a, n, _ in ROWS])
def test_a_form_is_what_the_raw_file_says(arm, run, cells):
    times = [medians(run).get(case, {}).get(arm, "-") for case in CASES]
    assert any(time != "-" for time in times)
    want = [
        (
            time
            if time == "-"
            else f"{float(time):,.0f}" if float(time) >= 100 else f"{float(time):.1f}"
        )
        for time in times
    ]
    assert cells.split(" | ") == want


def test_what_was_not_kept_is_what_the_raw_file_says():
    times = medians("13")
    for case, arms in (
        ("B32-h64", ("g4-128", "base-n")),
        ("B1-h16", ("g4-mb", "base-m")),
        ("B64-h16", ("g4-mb", "base-m")),
    ):
        pair = "{} for {}".format(*(f"{float(times[case][arm]):.1f}" for arm in arms))
        assert f"rows {pair}" in TRIED or f"row {pair}" in TRIED, (case, pair)


def test_what_the_kept_form_took_since_is_what_the_bench_says():
    cases = json.loads((RAW / "bench.json").read_text())["cases"]
    times = {case["case"]: case["timings"]["ours"]["median"] for case in cases}
    prefill, many = (times[f"B{rows}-h64-128+512"] for rows in (2_048, 64))
    words = f"with them: {prefill:.0f} us for 2,048 rows and {many:.1f} for 64, both"
    assert words in " ".join(TRIED.split())


@pytest.mark.parametrize("run", ("11", "12", "13"))
def test_no_arm_was_wrong_and_all_repeated_their_bits(run):
    text = (RAW / f"tuning-{run}.txt").read_text()
    assert "checked; wrong: []" in text and "\nwrong arms: []" in text
    assert not re.findall(r"20 runs equal False", text)


@pytest.mark.parametrize("run", ("11", "12", "13"))
def test_a_predictions_outcome_is_what_the_raw_file_says(run):
    page = (RAW / "predictions-11-to-13.md").read_text()
    number = {"11": "Eleventh", "12": "Twelfth", "13": "Thirteenth"}[run]
    told = page.split(f"{number} run")[1].split("\n\n")[0].split("64 rows:")[0]
    times = medians(run)["prefill"]
    arms = 0
    for part in re.split(r"[;:]\s", re.sub(r"\s+", " ", told)):
        found = re.match(r"([\w-]+) [\d,]+.* / ([\d,]+)", part)
        if found:
            arms += 1
            came = f"{float(times[found[1]]):,.0f}"
            assert found[2] == came, part
    assert arms >= 14
