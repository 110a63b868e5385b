"""The logits' figures of docs/measured.md against their raw file."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT, medians

PAGE = (ROOT / "docs/measured.md").read_text()

RAW = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-kernels/h200-bench-kernel.json").read_text()
)


@pytest.mark.parametrize("case", RAW["cases"], ids=lambda case: case["case"])
def test_a_measured_row_is_what_the_raw_file_says(case):
    median = {arm: timing["median"] for arm, timing in case["timings"].items()}
    ours, stock = median["ours"], median["stock"]
    assert (
        f"| {case['case']} | {ours:,.2f} | {median['ours, served']:,.2f} | {stock:,.0f} |"
        f" {stock / ours:,.0f}x | {median['DeepGEMM']:,.2f} | {median['TileLang']:,.2f} |"
        f" {case['floor_us'] / ours:.0%} |\n"
    ) in PAGE


def test_the_ratio_between_caps_is_what_the_raw_file_says():
    ratios = RAW["ratios"]["indexer"]["text 512, cap 1M / cap 8K"]
    text = " ".join(PAGE.split())
    assert f"ours {ratios['ours']:.3f}, stock {ratios['stock']:.0f}." in text
    assert ratios["ours"] <= 1.05


def test_the_stated_error_covers_every_case():
    (stated,) = re.findall(
        r"error is at most (\S+) of the size", " ".join(PAGE.split())
    )
    worst = max(case["facts"]["error"] for case in RAW["cases"])
    assert worst <= float(stated) <= 1.1 * worst


def of_logits(*arms: str) -> dict[str, float]:
    """Of each case that both arms have, the first's time over the second's."""
    medians_of = {row["case"]: medians(row, *arms) for row in RAW["cases"]}
    return {case: ours / its for case, (ours, its) in medians_of.items()}


LARGE = (
    "B64-text8192-cap8192",
    "B16-text131072-cap131072",
    "B64-text131072-cap131072",
    "B8-text1048576-cap1048576",
)


SKEWED = "B64-one131072-rest512-cap131072"


def test_the_logits_against_deepgemm_are_what_the_raw_file_says():
    ratio = of_logits("ours", "DeepGEMM")
    skewed, rows = ratio.pop(SKEWED), ratio.pop("rows2048-text131072")
    large = [ratio.pop(case) for case in LARGE]
    text = " ".join(PAGE.split())
    assert len({re.sub("-cap.*", "", case) for case in ratio}) == 6
    few = f"{min(ratio.values()):.2f} to {max(ratio.values()):.2f} times its time on the six"
    assert few in text
    assert f"{min(large):.2f} to {max(large):.2f} on the four large ones" in text
    assert f"63 of 512 tokens {skewed:.2f} where every row is computed" in text
    served = of_logits("ours, served", "DeepGEMM")[SKEWED]
    (row,) = (row for row in RAW["cases"] if row["case"] == SKEWED)
    (us,) = medians(row, "ours, served")
    assert f"takes {us:.2f} us, {served:.2f} of DeepGEMM's time (0.65" in text
    (wanted,) = medians(row, "DeepGEMM")
    (alone,) = medians(
        next(row for row in RAW["cases"] if row["case"] == "B1-text131072-cap131072"),
        "ours",
    )
    assert (
        f"0.65 would be {0.65 * wanted:.2f} us, less than the {alone:.2f} that" in text
    )
    assert f"128K prompt, it is {rows:.2f} times (1.3)" in text
    assert rows <= 1.3 and us <= 8


def test_what_the_logits_fall_short_of_is_what_the_raw_file_says():
    rows = {row["case"]: row for row in RAW["cases"]}
    full, prompt = rows["B64-text131072-cap131072"], rows["rows2048-text131072"]
    share = medians(full, "ours")[0] / full["floor_us"]
    us = medians(prompt, "ours")[0]
    text = " ".join(PAGE.split())
    assert f"64 rows of 128K, {share:.3f} times the memory floor (1.10)" in text
    assert f"those 2,048 rows, {us / 1_000:.2f} ms (1.47)" in text


def test_the_logits_against_tilelang_are_what_the_raw_file_says():
    ratio = of_logits("TileLang", "ours")
    assert len(ratio) == len(RAW["cases"])
    skewed, rows = ratio.pop(SKEWED), ratio.pop("rows2048-text131072")
    text = " ".join(PAGE.split())
    ten = f"takes {min(ratio.values()):.2f} to {max(ratio.values()):.2f} times our time on"
    assert f"{ten} ten shapes, {rows:.2f} times on the 2,048 rows" in text
    rows_of = {row["case"]: row for row in RAW["cases"]}
    one, all_long = (
        medians(rows_of[case], "TileLang")[0] for case in (SKEWED, LARGE[2])
    )
    assert (
        f"63 short ones {skewed:.0f} times ({one:.2f} us, near the {all_long:.2f}"
        in text
    )
    assert len({re.sub("-cap.*", "", case) for case in ratio}) == 10
