"""The logits' figures of docs/measured.md of two runs with longer graphs against their raw files."""

from __future__ import annotations

import json
import re

from kernel_arms import ROOT, medians

FOLDER = ROOT / "ci/checkpoints/raw/h200-kernels"
PAGE = (ROOT / "docs/measured.md").read_text()
PART = PAGE[PAGE.index("**Again with longer graphs.**") :]
PART = " ".join(PART[: PART.index("TileLang's logits kernel, which SGLang")].split())
SERVED, ALL, PROMPT = "ours, served", "B64-text131072-cap131072", "rows2048-text131072"
SKEWED = "B64-one131072-rest512-cap131072"


def run(name: str) -> dict:
    return json.loads((FOLDER / name).read_text())


def rows_of(made: dict) -> dict[str, dict]:
    return {row["case"]: row for row in made["cases"]}


FIRST = run("h200-bench-kernel-long-graphs.json")
ROWS, TABLE = rows_of(FIRST), rows_of(run("h200-bench-kernel.json"))


def printed() -> dict[str, dict[str, float]]:
    """Of the run that was cut off, each case's times as printed, and its floor."""
    times = {}
    text = (FOLDER / "h200-bench-kernel-long-graphs-2.txt").read_text()
    for line in text.splitlines():
        case, floor, ours = re.match(
            r"(\S+) +floor +([\d.]+)  ours +([\d,.]+) us", line
        ).groups()
        rest = re.findall(r"  ([A-Za-z, ]+?) ([\d,.]+) \(", line)
        times[case] = {"floor": float(floor), "ours": float(ours)}
        times[case] |= {arm: float(us.replace(",", "")) for arm, us in rest}
    return times


SECOND = printed()
SHORT = [case for case in ROWS if case != PROMPT]


def test_what_is_lacking_in_each_run_is_what_is_said():
    without = {case for case, row in ROWS.items() if "stock" not in row["timings"]}
    assert without == {"B64-text512-cap1048576", PROMPT}
    stock = {case: row["timings"]["stock"]["median"] for case, row in TABLE.items()}
    assert set(sorted(stock, key=stock.get)[-2:]) == without
    assert SECOND.keys() == set(SHORT) == TABLE.keys() - {PROMPT}
    assert all(row["correct"] for row in FIRST["cases"])
    assert len({re.sub("text512-cap.*", "512", case) for case in SHORT}) == 11


def test_both_runs_are_of_the_kernel_of_the_table():
    made = run("h200-bench-kernel.json")
    shas = [each["machine"]["kernels_sha256"] for each in (made, FIRST)]
    for name in ("indexer.py", "indexer_page.py", "indexer_rows.py"):
        assert shas[0][name] == shas[1][name]


def test_the_row_as_served_is_what_the_raw_files_say():
    us, its = medians(ROWS[SKEWED], SERVED, "DeepGEMM")
    again, theirs = (SECOND[SKEWED][arm] for arm in (SERVED, "DeepGEMM"))
    assert (
        f"takes {us:.2f} us, {us / its:.2f} of DeepGEMM's {its:.2f}, and {again:.2f} of"
        f" {theirs:.2f} in the second, {again / theirs:.2f}. 0.65 would be"
        f" {0.65 * its:.2f} and {0.65 * theirs:.2f}: **still missed**, by"
        f" {100 * (us / its / 0.65 - 1):.1f} and"
        f" {100 * (again / theirs / 0.65 - 1):.1f} %."
    ) in PART
    assert us / its > 0.65 and again / theirs > 0.65
    left_out = [case for case in SHORT if "text512" in case]
    now = [medians(ROWS[case], SERVED)[0] for case in left_out]
    now += [SECOND[case][SERVED] for case in left_out]
    then = [medians(TABLE[case], SERVED)[0] for case in left_out]
    assert (
        f"Rows left out take {min(now):.2f} to {max(now):.2f} us (above"
        f" {min(then):.2f} to {max(then):.2f})"
    ) in PART


def test_none_of_the_eleven_is_slower_than_a_peer():
    assert "In both none of the eleven is slower than DeepGEMM or TileLang" in PART
    ties = set()
    for case in SHORT:
        ours, *peers = medians(ROWS[case], "ours", "DeepGEMM", "TileLang")
        assert ours <= min(peers)
        assert SECOND[case]["ours"] <= min(
            SECOND[case][arm] for arm in ("DeepGEMM", "TileLang")
        )
        timings = ROWS[case]["timings"]
        if timings["ours"]["high"] >= timings["DeepGEMM"]["low"]:
            ties.add(case)
    assert ties == {ALL, "B8-text1048576-cap1048576", SKEWED}
    few = "B64-text512-cap8192"
    ours, its = medians(ROWS[few], "ours", "DeepGEMM")
    again, theirs = SECOND[few]["ours"], SECOND[few]["DeepGEMM"]
    assert (
        f"take {ours / its:.2f} of DeepGEMM's time in the first and {again / theirs:.2f}"
        f" in the second: ours takes {ours:.2f} and {again:.2f} us, DeepGEMM {its:.2f}"
        f" and {theirs:.2f}, why"
    ) in PART


def test_the_goals_in_both_runs_are_what_the_raw_files_say():
    (us,) = medians(ROWS[ALL], "ours")
    shares = (us / ROWS[ALL]["floor_us"], SECOND[ALL]["ours"] / SECOND[ALL]["floor"])
    cap = FIRST["ratios"]["indexer"]["text 512, cap 1M / cap 8K"]["ours"]
    words = (
        "64 rows of 128K take {:.3f} and {:.3f} times the floor of their own run (1.10)"
    )
    assert words.format(*shares) in PART and max(shares) <= 1.10
    assert f"the 1M cap {cap:.3f} in the first (1.02)" in PART and cap <= 1.02


def test_the_prompt_of_the_first_run_is_what_the_raw_file_says():
    ours, its = (ROWS[PROMPT]["timings"][arm] for arm in ("ours", "DeepGEMM"))
    before = medians(TABLE[PROMPT], "ours", "DeepGEMM", "TileLang")
    (tile,) = medians(ROWS[PROMPT], "TileLang")
    ratio, was = ours["median"] / its["median"], before[0] / before[1]
    samples = "({low:,.0f} to {high:,.0f})"
    assert (
        "The 2,048 rows take {median:,.0f} us (samples {low:,.0f} to {high:,.0f}),"
        " ".format(**ours)
        + f"{ratio:.2f} times DeepGEMM's {its['median']:,.0f} {samples.format(**its)},"
        f" where the table has {before[0]:,.0f} and {before[1]:,.0f}. TileLang's is"
        f" slower, too, {tile:,.0f} for {before[2]:,.0f}, and the ratio is nearly that"
        f" of the table, {was:.2f}:"
    ) in PART
    assert before[0] <= 1_470 < ours["median"] <= 1_850 and max(ratio, was) <= 1.3
    assert (
        "goal of 1.47 ms is met in the table's run and **missed in this one**" in PART
    )
