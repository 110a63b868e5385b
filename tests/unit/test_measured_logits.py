"""The logits' figures of docs/measured.md against their raw file."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT, arms_of, medians

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
    assert ratios["ours"] <= 1.02


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


def test_no_shape_of_the_eleven_is_slower_than_a_peer():
    text = " ".join(PAGE.split())
    assert "**On none of the eleven are we slower than DeepGEMM or TileLang**" in text
    ties = set()
    for row in RAW["cases"]:
        if row["case"] == "rows2048-text131072":
            continue
        ours, *peers = medians(row, "ours", "DeepGEMM", "TileLang")
        assert ours <= min(peers), row["case"]
        if row["timings"]["ours"]["high"] >= row["timings"]["DeepGEMM"]["low"]:
            ties.add(row["case"])
    assert ties == {*LARGE[2:], SKEWED}
    (row,) = (row for row in RAW["cases"] if row["case"] == LARGE[2])
    ours, its = medians(row, "ours", "DeepGEMM")
    stated = (
        f"64 rows of 128K ({ours:.2f} and {its:.2f} us), 8 of 1M and that one are ties"
    )
    assert stated in text


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
    (alone,) = medians(
        next(row for row in RAW["cases"] if row["case"] == "B1-text131072-cap131072"),
        "ours",
    )
    assert (
        f"takes {us:.2f} us, {served:.2f} of DeepGEMM's time (0.65, and 8 us), and alone"
        f" {alone:.2f} (DeepGEMM computes the 63 short rows, too, which no top-512 reads:"
        f" with them ours is the {skewed:.2f} above);"
    ) in text
    assert (
        f"128K prompt, the one shape of this table where DeepGEMM is faster, it is {rows:.2f} times (1.3)"
        in text
    )
    assert 1 < rows <= 1.3 and us <= 8 and served <= 0.65
    tuned = arms_of("h200-kernels/tuning-quick-path-3.json")["B64-mixed-64-to-2048"]
    mixed = tuned["d_sx"] / tuned["DeepGEMM"]
    assert f"so were 64 rows of 64 to 2,048 entries, {mixed:.2f} times (" in text


def test_which_goals_the_logits_meet_is_what_the_raw_file_says():
    rows = {row["case"]: row for row in RAW["cases"]}
    full, prompt = rows[LARGE[2]], rows["rows2048-text131072"]
    (full_us,) = medians(full, "ours")
    us, stock = medians(prompt, "ours", "stock")
    cap = RAW["ratios"]["indexer"]["text 512, cap 1M / cap 8K"]["ours"]
    share = full_us / full["floor_us"]
    text = " ".join(PAGE.split())
    assert (
        f" 64 rows of 128K take {share:.3f} times the memory floor (1.10), those 2,048 rows"
        f" {us / 1_000:.2f} ms (1.47), where stock takes {stock / us:.0f} times as long (60),"
        f" and the 1M cap costs {cap:.3f} times (1.02, above)"
    ) in text
    assert share <= 1.10 and us <= 1_470 and stock / us >= 60 and cap <= 1.02


def test_the_floor_by_an_idle_hosts_copies_is_what_the_raw_files_say():
    raw = json.loads((ROOT / "ci/checkpoints/raw/h200-hc-pre/bench.json").read_text())
    (full,) = (row for row in RAW["cases"] if row["case"] == LARGE[2])
    (us,) = medians(full, "ours")
    ours, idle = (run["machine"]["copy_bytes_per_s"] for run in (RAW, raw))
    assert full["floor_us"] == pytest.approx(full["bytes"] / ours * 1e6)
    text = " ".join(PAGE.split())
    assert f"copies of the same run reach, {ours / 1e12:.2f} TB/s" in text
    assert f"By the {idle / 1e12:.2f} TB/s of another run on an idle host" in text
    times = us / (full["bytes"] / idle * 1e6)
    assert f"those {us:.2f} us would be {times:.3f} times" in text


def test_the_products_of_two_warps_are_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    rows = {
        row["case"]: row for row in RAW["cases"] if "ours, two warps" in row["timings"]
    }
    times = {
        case: medians(row, "ours, two warps", "ours") for case, row in rows.items()
    }
    prompt = times.pop("rows2048-text131072")
    few, middle, full, skewed = (us for us, _ in times.values())
    assert (
        f"It takes {few:.2f} us for 64 rows of 512, {middle:.2f} for 64 of 8K, {full:.2f} for"
        f" 64 of 128K, {skewed:.2f} for the one among 63, all computed, and"
        f" {prompt[0]:,.2f} for the 2,048 rows"
    ) in text
    ratio = [two / ours for two, ours in times.values()]
    assert (
        f"{min(ratio):.2f} to {max(ratio):.2f} times ours, {prompt[0] / prompt[1]:.2f} times"
        " on the 2,048 rows"
    ) in text
    (stated,) = re.findall(r"Its error is at most (\S+), as f16", text)
    worst = max(row["facts"]["error of two warps"] for row in rows.values())
    assert worst <= float(stated) <= 1.1 * worst


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
