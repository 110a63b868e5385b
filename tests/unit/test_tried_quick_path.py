"""Figures of docs/tried.md about the indexer's path for one page against their raw files."""

from __future__ import annotations

import json

import pytest

from kernel_arms import ROOT, arms_of, checks, medians, table_line

FILES = {run: f"h200-kernels/tuning-quick-path-{run}.json" for run in (1, 2, 3)}
RUNS = {run: arms_of(file) for run, file in FILES.items()}
SECTION = (ROOT / "docs/tried.md").read_text()
SECTION = SECTION[
    SECTION.index("## A path for one page") : SECTION.index("## Tiles of several pages")
]
SKEWED = "B64-one131072-rest512-cap131072"
SERVED = f"{SKEWED}-skip512"
ARMS = {
    2: "base q_one q_d d typed_d quick_d d_96 d_e3 d_s DeepGEMM",
    3: "base d d_s d_sx d_o0sx d_s_g d_s_pbl d_o0sx_gpbl DeepGEMM",
}
BOTH = {
    "one of 128K among 63 of 512, as served": SERVED,
    "one row of 128K": "B1-text131072-cap131072",
    "64 rows of 512, skipped": "B64-text512-cap8192-skip512",
    "64 rows of 512": "B64-text512-cap8192",
    "16 rows of 8K": "B16-text8192-cap8192",
    "64 rows of 8K": "B64-text8192-cap8192",
    "48 rows of 8K": "B48-text8192",
    "64 rows of 128K": "B64-text131072-cap131072",
}
THIRD = {
    "as served, own tables": f"{SKEWED}-own-tables-skip512",
    "32 rows of 8K": "B32-text8192",
    "64 rows of 64 to 2,048 entries": "B64-mixed-64-to-2048",
    "200 rows of 512": "B200-text512",
    "2,048 rows of prefill": "rows2048-text131072",
}


@pytest.mark.parametrize(
    "run,stated,case",
    [(run, *row) for run in (2, 3) for row in BOTH.items()]
    + [(3, *row) for row in THIRD.items()],
)
def test_a_row_is_what_the_raw_file_says(run, stated, case):
    assert table_line(stated, RUNS[run][case], ARMS[run]) in SECTION


@pytest.mark.parametrize("run", RUNS)
def test_each_arm_had_the_bits_of_the_kernel_before(run):
    compared = checks(FILES[run])
    assert all(good is True for case in compared for good in case.values())


def test_what_is_said_is_what_the_raw_files_say():
    first, second, third = RUNS.values()
    counts = [len(RUNS[run][SERVED].keys() - {"base", "DeepGEMM"}) for run in RUNS]
    served = third[SERVED]
    assert f"takes {served['d_sx'] / served['DeepGEMM']:.2f} times" in SECTION
    assert f"by {served['d_sx'] / served['DeepGEMM'] / 0.65 - 1:.0%}".replace(
        "%", " %"
    ) in (SECTION)
    long = BOTH["64 rows of 128K"]
    assert (
        f"take {first[long]['q']:.2f} (q, run 1) and {second[long]['d_96']:.2f} (d_96) "
        f"for {first[long]['q_one']:.2f} and {second[long]['d']:.2f}." in SECTION
    )
    eight = first[BOTH["64 rows of 8K"]]
    assert f"{first[long]['q_p5']:.2f} there and as served" in SECTION
    assert f"8K {eight['q_p5']:.2f} for {eight['q_one']:.2f}." in SECTION
    skipped = second[BOTH["64 rows of 512, skipped"]]
    assert f"skipped rows {skipped['d_e3']:.2f} for {skipped['d']:.2f})" in SECTION
    lost = [
        times[arm] - times[without]
        for times in (first[BOTH["one row of 128K"]], first[SERVED])
        for arm, without in (("q_t", "q"), ("q_td", "q_d"))
    ]
    assert f"cost {min(lost):.1f} to {max(lost):.1f}:" in SECTION
    assert f"Three runs of {min(counts)} to {max(counts)} arms" in SECTION


def test_what_the_bench_has_read_since_is_what_it_says():
    raw = ROOT / "ci/checkpoints/raw/h200-kernels/h200-bench-kernel-long-graphs.json"
    (row,) = (
        row for row in json.loads(raw.read_text())["cases"] if row["case"] == SKEWED
    )
    ours, its = medians(row, "ours, served", "DeepGEMM")
    assert f"reads {ours / its:.2f}; it is met" in SECTION
