"""Figures of docs/tried.md about tiles of several pages and a guessed page against their raw files."""

from __future__ import annotations

import re

import pytest

from kernel_arms import ROOT, arms_of, checks, table_line

FOLDER = "h200-kernels"
FILES = {1: f"{FOLDER}/tuning-tiles-of-pages.json", 2: f"{FOLDER}/tuning-guess.json"}
RUNS = {run: arms_of(file) for run, file in FILES.items()}
TRIED = (ROOT / "docs/tried.md").read_text()
SECTION = TRIED[TRIED.index("## Tiles of several pages") : TRIED.index("## Top-k (")]
WORDS = " ".join(SECTION.split())
ARMS = {
    1: "base t1 t2 t2s7 t4 t4s7 t4w8 DeepGEMM",
    2: "base g0 g1 g8 g64 g1o g8o DeepGEMM",
}
SERVED = "B64-one131072-rest512-cap131072-skip512"
OWN = "B64-one131072-rest512-cap131072-own-tables-skip512"
SKIPPED, FEW = "B64-text512-cap8192-skip512", "B64-text512-cap8192"
FIFTH, LATER = (f"B64-{place}-131072-rest512-skip512" for place in ("fifth", "later"))
ALONE, ALL = "B1-text131072-cap131072", "B64-text131072-cap131072"
BOTH = {
    "one of 128K among 63 of 512, as served": SERVED,
    "as served, own tables": OWN,
    "one row of 128K": ALONE,
    "64 rows of 512, skipped": SKIPPED,
    "64 rows of 512": FEW,
    "one row of 512": "B1-text512-cap131072",
    "16 rows of 8K": "B16-text8192-cap8192",
    "64 rows of 8K": "B64-text8192-cap8192",
    "64 rows of 64 to 2,048 entries": "B64-mixed-64-to-2048",
    "64 rows of 128K": ALL,
    "2,048 rows of prefill": "rows2048-text131072",
}
PLACES = {"as served, the fifth row": FIFTH, "as served, the 41st row": LATER}


@pytest.mark.parametrize(
    "run,stated,case",
    [(run, *row) for run in RUNS for row in BOTH.items()]
    + [(2, *row) for row in PLACES.items()],
)
def test_a_row_is_what_the_raw_file_says(run, stated, case):
    assert table_line(stated, RUNS[run][case], ARMS[run]) in SECTION


@pytest.mark.parametrize("run", RUNS)
def test_each_arm_had_the_bits_of_the_kernel_before(run):
    arms = set(ARMS[run].split()) - {"DeepGEMM"}
    for compared in checks(FILES[run]):
        assert compared.keys() == arms
        assert all(good is True for good in compared.values())


def times(run: int, case: str, *arms: str) -> list[str]:
    return [f"{RUNS[run][case][arm]:.2f}" for arm in arms]


def test_what_is_said_of_tiles_is_what_the_raw_file_says():
    first = RUNS[1]
    served = times(1, SERVED, "t2", "t4", "base")
    assert "as served {} and {} for {}".format(*served) in WORDS
    skipped = times(1, SKIPPED, "t2", "base")
    assert "rows that are skipped take {} for {}".format(*skipped) in WORDS
    for arm in ("t2", "t2s7", "t4", "t4s7", "t4w8"):
        quicker = {case for case in first if first[case][arm] < first[case]["base"]}
        assert quicker == {SKIPPED}
    assert "Nothing else gains." in WORDS
    lost = max(times["t1"] / times["base"] for times in first.values())
    assert f"takes up to {100 * (lost - 1):.1f} % more (t1)" in WORDS


def test_what_is_said_of_the_guess_is_what_the_raw_file_says():
    second = RUNS[2]
    served = second[SERVED]
    first = times(2, SERVED, "g1", "base")
    elsewhere = [*times(2, FIFTH, "g1"), *times(2, LATER, "g1", "base")]
    assert "as served {} for {} if the long row is the first".format(*first) in WORDS
    assert "{} and {} for {} where it is the fifth".format(*elsewhere) in WORDS
    assert "own tables {} for {}".format(*times(2, OWN, "g1", "base")) in WORDS
    share = served["g1"] / served["DeepGEMM"]
    by_first = served["g1"] / RUNS[1][SERVED]["DeepGEMM"]
    assert f"is {share:.3f} of DeepGEMM's {served['DeepGEMM']:.2f}" in WORDS
    assert f"({by_first:.3f} of run 1's {RUNS[1][SERVED]['DeepGEMM']:.2f})" in WORDS
    assert share < 0.65 < by_first
    gain = served["base"] - served["g1"]
    cost = second[FIFTH]["g1"] - second[FIFTH]["base"]
    assert f"A gain of {gain:.2f} where" in WORDS and f"costs {cost:.2f} where" in WORDS
    hits = [*times(2, SERVED, "g8", "base"), *times(2, FIFTH, "g8", "base")]
    assert "{} for {} and {} for {}".format(*hits) in WORDS
    wide = times(2, SKIPPED, "g64", "base")
    assert "skipped rows {} for {}".format(*wide) in WORDS
    order = times(2, SERVED, "g1o", "g8o")
    assert "as served {} and {} (".format(*order) in WORDS
    worth = sorted(served[f"{arm}o"] - served[arm] for arm in ("g1", "g8"))
    assert "is worth {:.2f} to {:.2f}:".format(*worth) in WORDS
    own = second[OWN]["base"] - second[OWN]["g1"]
    assert f"gains {gain:.2f} us, {own:.2f} where it comes from memory" in WORDS
    level = max(abs(times["g0"] / times["base"] - 1) for times in second.values())
    assert f"(g0) is level, within {100 * level:.1f} %" in WORDS


def test_the_outcomes_beside_the_predictions_are_what_the_raw_files_say():
    page = (
        ROOT / "ci/checkpoints/raw" / FOLDER / "prediction-tiles-and-guess.md"
    ).read_text()
    shapes = {
        "skipped": SKIPPED,
        "as served": SERVED,
        "as served (first)": SERVED,
        "as served, fifth": FIFTH,
        "as served, 41st": LATER,
        "own tables": OWN,
        "alone": ALONE,
        "64 x 512": FEW,
        "64 x 8K": "B64-text8192-cap8192",
        "64 x 128K": ALL,
    }
    arms = {1: "base t1 t2 t4", 2: "base g0 g1 g8 g64 g1o"}
    told = page.split("# How it came out")[1].split("\nRun 2 (")
    checked = 0
    for run, part in zip((1, 2), told):
        rows = re.findall(r"^\| (?!shape)(.*?) \| (.*) \|$", part, re.M)
        for shape, cells in rows:
            for arm, stated in zip(arms[run].split(), cells.split("|")):
                if "/" in stated:
                    (came,) = times(run, shapes[shape], arm)
                    assert stated.strip().split(" / ")[1] == came, (shape, arm)
                    checked += 1
    assert checked == 24 + 38
