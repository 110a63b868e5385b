"""Figures of docs/tried.md about keys loaded by the lanes that multiply them, against their raw file."""

from __future__ import annotations

import json

import pytest

from kernel_arms import ROOT, table_line

FOLDER = ROOT / "ci/checkpoints/raw/h200-kernels"
MADE = json.loads((FOLDER / "tuning-keys-by-lanes.json").read_text())
ROWS = {run["run"]: run["rows"] for run in MADE["runs"]}
# Of each run and shape the arms' medians.
RUNS = {
    run: {
        row["shape"]: {arm: samples[0] for arm, samples in row["us"].items()}
        for row in rows
    }
    for run, rows in ROWS.items()
}
TRIED = (ROOT / "docs/tried.md").read_text()
SECTION = TRIED[TRIED.index("## Keys by lanes") : TRIED.index("## Top-k (")]
WORDS = " ".join(SECTION.split())
SERVED = "served@0"
FIRST = "base f1 rk2 rslnb rslwb DeepGEMM"
SECOND = "base f1 k128l k128lnb k128wsl wsl rswsl DeepGEMM"
THIRD, FOURTH = "base nm n nf nf1 DeepGEMM", "base nf1 x xf1 xf1nb DeepGEMM"
FIFTH, SIXTH = "base xf1nb ywqsk ywbqsk yg ysws DeepGEMM", "base now DeepGEMM"
TABLES = [
    ((1, FIRST), (2, SECOND)),
    ((3, THIRD), (4, FOURTH)),
    ((5, FIFTH), (6, SIXTH)),
]
SHAPES = {
    "as served, the first row": SERVED,
    "as served, the 41st row": "served@40",
    "as served, own tables": "served@40 own",
    "one row of 128K": "one row 128K",
    "64 rows of 512, skipped": "skipped",
    "64 rows of 512": "64x512",
    "one row of 8K": "1x8K",
    "16 rows of 8K": "16x8K",
    "32 rows of 8K": "32x8K",
    "64 rows of 8K": "64x8K",
    "all rows computed": "all computed",
    "200 rows of 512": "200x512",
    "64 rows of 128K": "64x128K",
    "2,048 rows of prefill": "prefill",
}
# Arms whose products add up other bytes at once than base's.
OTHER_BITS = {"n", "nf", "nf1", "n1", "n6", "n7"}


def columns(table) -> list[tuple[int, str]]:
    return [(run, arm) for run, arms in table for arm in arms.split()]


@pytest.mark.parametrize("stated", SHAPES)
@pytest.mark.parametrize("table", TABLES, ids=("1, 2", "3, 4", "5, 6"))
def test_a_row_is_what_the_raw_file_says(table, stated):
    pairs = columns(table)
    times = {
        f"{run}:{arm}": RUNS[run].get(SHAPES[stated], {}).get(arm) for run, arm in pairs
    }
    line = table_line(stated, times, " ".join(times))
    if f"| {stated} |" in part(table):
        assert line in part(table)
    else:
        # The table of all shapes has it.
        assert table != TABLES[1]


def part(table) -> str:
    head, before = [], None
    for run, arm in columns(table):
        head.append(arm if run == before else f"{run}: {arm}")
        before = run
    start = SECTION.index(f"\n| | {' | '.join(head)} |\n")
    return SECTION[start : SECTION.index("\n\n", start) + 1]


def test_the_arms_had_the_bits_that_are_told():
    for rows in ROWS.values():
        for row in rows:
            wrong = {arm for arm, same in row["bits"].items() if not same}
            other = {
                arm for arm in row["bits"] if arm in OTHER_BITS or arm[:4] == "k128"
            }
            assert wrong == (set() if row["shape"] == "skipped" else other)
    assert "so other bits than the loop's" in WORDS and "in base's bits" in WORDS
    assert MADE["device"] == "NVIDIA H200" and len(ROWS) == 6 and "Six runs" in WORDS


def us(run: int, shape: str, *arms: str) -> list[str]:
    times = (RUNS[run][shape][arm] for arm in arms)
    return [f"{time:,.0f}" if time >= 1000 else f"{time:.2f}" for time in times]


def test_what_the_kept_form_gains_and_costs_is_what_the_raw_file_says():
    shares = [
        RUNS[run][SERVED]["xf1nb"] / RUNS[run][SERVED]["DeepGEMM"] for run in (4, 5)
    ]
    assert max(shares) <= 0.65
    stated = "As served it takes {:.3f} and {:.3f} of DeepGEMM's time (0.65 was asked),"
    assert stated.format(*shares) in WORDS
    more = [*us(4, "16x8K", "xf1nb", "base"), *us(5, "16x8K", "xf1nb", "base")]
    assert "16 rows of 8K {} for {} and {} for {}".format(*more) in WORDS
    own = us(4, "served@40 own", "xf1nb", "base")
    skipped = us(4, "skipped", "xf1nb", "base")
    assert (
        "own tables {} for {}, skipped rows {} for {}.".format(*own, *skipped) in WORDS
    )
    costs = {
        shape: [
            100 * (RUNS[run][shape]["xf1nb"] / RUNS[run][shape]["base"] - 1)
            for run in (4, 5)
        ]
        for shape in ("64x512", "64x8K")
    }
    for shape, words in (("64x512", "64 rows of 512"), ("64x8K", "64 rows of 8K")):
        assert "{} {:.1f} and {:.1f} %".format(words, *costs[shape]) in WORDS
    assert "rows of 512 take {} for {}.".format(*us(4, "200x512", "x", "base")) in WORDS


def test_what_is_said_of_loads_loop_and_counters_is_what_the_raw_file_says():
    rk2, f1 = us(1, SERVED, "rk2", "f1")
    assert f"rk2 {rk2} for f1's {f1} (predicted 3.33)" in WORDS
    assert f"16 bytes a load k128l {us(2, SERVED, 'k128l')[0]}." in WORDS
    loop = []
    for shape in ("64x8K", "prefill", "all computed"):
        loop += us(3, shape, "nf1", "base")
    assert (
        "64 rows of 8K {} for {}, 2,048 rows {} for {}, all rows computed {} for {},"
        " more than DeepGEMM's {}.".format(*loop, *us(3, "all computed", "DeepGEMM"))
    ) in WORDS
    assert f"the quickest (nf1 {us(3, SERVED, 'nf1')[0]})" in WORDS
    assert f"takes {us(6, SERVED, 'now')[0]} (predicted 3.26)" in WORDS
    variants = (FOLDER / "keys-by-lanes-counters.txt").read_text().splitlines()[2:]
    assert f"{len(variants)} variants were compiled and read" in WORDS
    (kept,) = (line for line in variants if line.startswith("xwqsk "))
    (lost,) = (line for line in variants if line.startswith("zwqsk "))
    assert "[SEL waits KKKK]" in kept and "[SEL waits KKKKgss" in lost
    predicted = (FOLDER / "prediction-keys-by-lanes.md").read_text()
    assert "| served@0, @40 | 3.42 | 3.26 |" in predicted
