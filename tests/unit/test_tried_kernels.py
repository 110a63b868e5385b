"""Kernel figures of docs/tried.md against their raw files."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import LOGITS_TUNING, ROOT, arms_of

TRIED = (ROOT / "docs/tried.md").read_text()


HC_PRE_TUNING = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-hc-pre/tuning-5-ring.json").read_text()
)


HC_PRE_ARMS = {
    "the kernel for few rows": "few",
    "the one for many, before": "old",
    "x through shared memory": "ring2",
    "**fn asked for before x**": "fnfirst",
    "tiles of 8 rows, five on their way": "r8s5",
    "one unit a program, two programs an SM": "half",
    "that, tiles of 8 rows, four on their way": "half8",
    "256 bytes to the L2 with each line": "hint256",
    "all programs begin with the same tile": "norot",
    "five tiles on their way (195 KB, no sm_120 has that)": "deep*",
    "no products, so a wrong result": "stream*",
    "`bf16` weights": "ring2,bf16",
}


@pytest.mark.parametrize("stated", HC_PRE_ARMS)
def test_an_arm_of_the_pre_linear_is_what_the_raw_file_says(stated):
    runs = {row["T"]: row["us"] for row in HC_PRE_TUNING["rows"]}
    arm = HC_PRE_ARMS[stated]
    cells = [
        f"{runs[rows][arm][0]:.2f}" if arm in runs[rows] else "-"
        for rows in (256, 512, 1_024, 2_048, 8_192)
    ]
    assert f"\n| {stated} | {' | '.join(cells)} |\n" in TRIED


TOPK_TUNING = arms_of("h200-topk/tuning-2-teams-and-ties.json")


@pytest.mark.parametrize(
    "case,stated",
    [
        ("B64-text512-cap8192", "64 rows of 512 tokens"),
        ("B16-text8192-cap8192", "16 rows of 8K"),
        ("B64-text8192-cap8192", "64 rows of 8K"),
        ("B1-text131072-cap131072", "one row of 128K"),
        ("B64-one131072-rest512-cap131072", "one of 128K among 63 of 512"),
        ("B64-text131072-cap131072", "64 rows of 128K"),
    ],
)
def test_an_arm_of_the_logits_is_what_the_raw_file_says(case, stated):
    arms = "base i_search i_page i_full i_fq i_fp5 DeepGEMM".split()
    times = [LOGITS_TUNING[case][arm] for arm in arms]
    digits = 1 if times[0] > 20 else 2
    cells = " | ".join(f"{time:.{digits}f}" for time in times)
    assert f"\n| {stated} | {cells} |\n" in TRIED


SHARES_FILE = "h200-kernels/tuning-short-shares.json"
SHARES = arms_of(SHARES_FILE)


@pytest.mark.parametrize(
    "case,stated",
    [
        ("B64-one131072-rest512-cap131072", "one of 128K among 63 of 512"),
        ("B64-text512-cap8192", "64 rows of 512"),
        ("B64-text512-cap8192-skip512", "64 rows of 512, skipped"),
        ("B1-text8192-cap8192", "one row of 8K"),
        ("B64-text8192-cap8192", "64 rows of 8K"),
        ("B16-text131072-cap131072", "16 rows of 128K"),
    ],
)
def test_an_arm_of_short_shares_is_what_the_raw_file_says(case, stated):
    arms = "base pair ring2 pair_bal p5 early pair_early_pf p5_early_pf DeepGEMM"
    times = [SHARES[case].get(arm) for arm in arms.split()]
    cells = " | ".join("-" if time is None else f"{time:.2f}" for time in times)
    assert f"\n| {stated} | {cells} |\n" in TRIED


def test_what_is_said_of_short_shares_is_what_the_raw_file_says():
    raw = json.loads((ROOT / "ci/checkpoints/raw" / SHARES_FILE).read_text())
    assert all(good is True for row in raw["cases"] for good in row["ok"].values())
    skipped = SHARES["B64-text512-cap8192-skip512"]
    assert f"takes {skipped['early']:.2f} for {skipped['base']:.2f}:" in TRIED
    gains = [
        times["base"] - times["early"]
        for times in SHARES.values()
        if times is not skipped and times["base"] < 22
    ]
    assert f"gains {min(gains):.1f} to {max(gains):.1f} us" in TRIED
    for case, words in (
        ("B32-text8192", "32 rows of 8K {:.2f} times"),
        ("B48-text8192", "48 rows {:.2f}"),
        ("B64-mixed-64-to-2048", "2,048 entries {:.2f}"),
    ):
        assert words.format(SHARES[case]["base"] / SHARES[case]["DeepGEMM"]) in TRIED


@pytest.mark.parametrize(
    "case,stated",
    [
        ("1x512", "1 x 512"),
        ("64x512", "64 x 512"),
        ("64x512-cap262144", "64 x 512, cap 262,144"),
        ("1x1024", "1 x 1,024"),
        ("64x1024", "64 x 1,024"),
        ("1x2048", "1 x 2,048"),
        ("64x8192", "64 x 8,192"),
        ("64x8192-equal", "equal"),
        ("64x8192-few-values", "few values"),
        ("64x8192-signed-zeros", "zeros of both signs"),
        ("64x8192-mostly-inf", "mostly -inf"),
        ("64x8192-both-infs", "+inf and -inf"),
        ("64x8192-close-with-outlier", "1e-3 wide beside an outlier"),
        (
            "1x262144-close-with-outlier",
            "1 x 262,144, 1e-3 wide beside an outlier",
        ),
    ],
)
def test_an_arm_of_the_topk_is_what_the_raw_file_says(case, stated):
    times = TOPK_TUNING[case]
    (cells,) = re.findall(
        rf"^\| {re.escape(stated)} \| (\S+) \| (\S+) \|(.*?)\|(.*?)\|(.*?)\|$",
        TRIED,
        re.M,
    )
    base, new, others, v1, v2 = map(str.strip, cells)
    for cell, arm in ((base, "base"), (new, "t_new"), (v1, "v1"), (v2, "v2")):
        time = times.get(arm)
        assert cell == ("" if time is None else f"{time:.{1 if time > 10 else 2}f}")
    for name, cell in re.findall(r"(\w+) ([\d.]+)", others):
        arm = name if name == "grid64" else f"t_{name}"
        assert cell == f"{times[arm]:.2f}"


TOPK_OUTLIERS = arms_of("h200-topk/tuning-4-outliers-and-quads.json")


@pytest.mark.parametrize(
    "case,stated",
    [
        ("64x8192", "normal scores, 64 rows of 8,192"),
        ("64x8192-close-with-outlier", "1e-3 wide beside one outlier"),
        ("64x8192-outliers-100", "beside a hundred outliers"),
        ("64x8192-ulps-outlier", "a few ulps apart beside an outlier"),
        ("64x8192-few-values", "some nine values"),
        ("64x8192-distinct-3", "three values"),
        ("64x8192-distinct-40", "forty values"),
        ("64x8192-distinct-600", "hundreds of values"),
        ("64x8192-two-values", "two values"),
        ("64x8192-equal", "all equal"),
        ("1x262144", "normal scores, one row of 262,144"),
        ("1x262144-close-with-outlier", "that 1e-3 wide beside an outlier"),
        ("1x262144-wide-1-outlier", "that of deviation 1 beside an outlier"),
        ("1x262144-ulps-outlier", "that a few ulps apart beside an outlier"),
        ("1x262144-plateau", "that with a plateau"),
        ("1x262144-few-values", "that of few values"),
        ("64x262144", "64 rows of 262,144"),
        ("2048x2048", "2,048 rows of 2,048"),
        ("1x1024", "one row of 1,024"),
        ("2048x512-cap2048", "2,048 rows of 512, cap of 2,048"),
        ("2048x512-cap262144", "2,048 rows of 512, cap of 262,144"),
        ("64x512-cap2048", "64 rows of 512, cap of 2,048"),
        ("64x512-cap262144", "64 rows of 512, cap of 262,144"),
    ],
)
def test_an_arm_of_the_topk_beside_outliers_is_what_the_raw_file_says(case, stated):
    arms = "base none quad out exact outx all lazy v1".split()
    times = [TOPK_OUTLIERS[case].get(arm) for arm in arms]
    cells = " | ".join(
        "" if time is None else f"{time:.{1 if time > 20 else 2}f}" for time in times
    )
    assert f"\n| {stated} | {cells} |\n" in TRIED


def slowest_over_fastest(shape: str, arm: str, later: bool) -> str:
    kinds = {
        case.removeprefix(shape): times[arm]
        for case, times in TOPK_OUTLIERS.items()
        if case.startswith(shape) and arm in times
    }
    new = re.compile("-(outliers-|distinct-|ulps-|wide-1-)")
    times = [time for kind, time in kinds.items() if later or not new.match(kind)]
    assert len(times) == (27 if later else 20)
    return f"{max(times) / min(times):.2f}"


@pytest.mark.parametrize(
    "later,words",
    [
        (False, "{} times the fastest at 64 x 8,192\n  (few values; before {})"),
        (False, "{} times at 1 x 262,144 (a plateau; before {})"),
        (True, "it is {} (before {})"),
        (True, "at 1 x 262,144 it is {} ({})"),
    ],
)
def test_the_slowest_kind_of_scores_is_what_the_raw_file_says(later, words):
    shape = "1x262144" if "262,144" in words else "64x8192"
    ratios = (slowest_over_fastest(shape, arm, later) for arm in ("outx", "base"))
    assert words.format(*ratios) in TRIED


@pytest.mark.parametrize(
    "logits,topk,stated",
    [
        (
            "B1-text131072-cap131072",
            "1x32768",
            "1 x 128K tokens (32,768 entries)",
        ),
        ("B64-text131072-cap131072", "64x32768", "64 x 128K"),
        ("B8-text1048576-cap1048576", "8x262144", "8 x 1M (262,144 entries)"),
        (None, "64x262144", "64 x 1M"),
        ("B64-text512-cap8192", None, "64 x 512 (no use for them)"),
        ("B64-text8192-cap8192", None, "64 x 8K (no use for them)"),
    ],
)
def test_what_maxima_from_the_logits_would_save_is_what_the_raw_files_say(
    logits, topk, stated
):
    times = (
        [LOGITS_TUNING[logits][arm] for arm in ("i_full", "i_fmax")]
        if logits
        else [None] * 2
    )
    times += (
        [TOPK_TUNING[topk][arm] for arm in ("t_new", "t_given")] if topk else [None] * 2
    )
    cells = ["-" if time is None else f"{time:.3g}" for time in times]
    (row,) = re.findall(rf"^\| {re.escape(stated)} \| (.*) \|$", TRIED, re.M)
    assert [float(c) if c != "-" else c for c in row.split(" | ")] == [
        float(c) if c != "-" else c for c in cells
    ]
