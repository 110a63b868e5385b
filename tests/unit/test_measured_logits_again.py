"""The logits' figures of docs/measured.md of the two runs before that of the table against their raw files."""

from __future__ import annotations

import hashlib
import json
import re

from kernel_arms import ROOT, medians

FOLDER = ROOT / "ci/checkpoints/raw/h200-kernels"
PAGE = (ROOT / "docs/measured.md").read_text()
PART = PAGE[PAGE.index("**Two runs before**") :]
PART = " ".join(PART[: PART.index("With two warps instead of four")].split())
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


def test_the_table_is_of_today_s_kernel_and_the_first_run_of_another():
    made = run("h200-bench-kernel.json")
    shas = [each["machine"]["kernels_sha256"] for each in (made, FIRST)]
    for file in (ROOT / "kernels").glob("indexer*.py"):
        if file.name not in ("indexer_hook.py", "indexer_ref.py"):
            today = hashlib.sha256(file.read_bytes()).hexdigest()
            assert shas[0][file.name] == today
            assert shas[1].get(file.name) != today or file.name == "indexer_rows.py"
    assert "of the kernel before (commit a54c35b396a3)" in PART
    assert SECOND.keys() == set(SHORT) == TABLE.keys() - {PROMPT}


def test_the_row_as_served_is_what_the_raw_files_say():
    us, its = medians(ROWS[SKEWED], SERVED, "DeepGEMM")
    again, theirs = (SECOND[SKEWED][arm] for arm in (SERVED, "DeepGEMM"))
    assert (
        f"takes {us:.2f} us of DeepGEMM's {its:.2f}, {us / its:.2f}, and {again:.2f} of"
        f" {theirs:.2f}, {again / theirs:.2f}."
    ) in PART
    assert us / its > 0.65 and again / theirs > 0.65


def test_none_of_the_eleven_is_slower_than_a_peer():
    assert "In both none of the eleven is slower than DeepGEMM or TileLang" in PART
    for case in SHORT:
        ours, *peers = medians(ROWS[case], "ours", "DeepGEMM", "TileLang")
        assert ours <= min(peers)
        assert SECOND[case]["ours"] <= min(
            SECOND[case][arm] for arm in ("DeepGEMM", "TileLang")
        )


def test_the_floor_in_both_runs_is_what_the_raw_files_say():
    (us,) = medians(ROWS[ALL], "ours")
    shares = (us / ROWS[ALL]["floor_us"], SECOND[ALL]["ours"] / SECOND[ALL]["floor"])
    words = (
        "64 rows of 128K take {:.3f} and {:.3f} times the floor of their own run (1.10)"
    )
    assert words.format(*shares) in PART and max(shares) <= 1.10


def test_the_prompt_of_the_first_run_is_what_the_raw_file_says():
    ours, its, tile = (
        ROWS[PROMPT]["timings"][arm] for arm in ("ours", "DeepGEMM", "TileLang")
    )
    ratio = ours["median"] / its["median"]
    assert (
        "The 2,048 rows take {median:,.0f} us in the first (samples {low:,.0f} to"
        " {high:,.0f}), ".format(**ours)
        + f"{ratio:.2f} times DeepGEMM's {its['median']:,.0f}: over the 1.47 ms"
    ) in PART
    assert 1_470 < ours["median"] <= 1_850 and ratio <= 1.3
    table = medians(TABLE[PROMPT], "DeepGEMM", "TileLang")
    assert "DeepGEMM and TileLang took longer there, too" in PART
    assert its["median"] > table[0] and tile["median"] > table[1]
