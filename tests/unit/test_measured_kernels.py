"""Kernel figures of docs/measured.md and docs/roofline.md against their raw files."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import LOGITS_TUNING, ROOT

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
        f" {stock / ours:,.0f}x | {median['DeepGEMM']:,.2f} | {case['floor_us'] / ours:.0%} |\n"
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


def test_the_roofline_page_is_what_renders():
    from patchset import roofline

    assert roofline.PAGE.read_text() == roofline.render()


HC_PRE = json.loads((ROOT / "ci/checkpoints/raw/h200-hc-pre/bench.json").read_text())


HC_PRE_ROWS = [row for row in HC_PRE["cases"] if row["kernel"] == "hc_pre"]


HC_SUM_ROWS = [row for row in HC_PRE["cases"] if row["kernel"] == "hc_sum"]


@pytest.mark.parametrize("case", HC_PRE_ROWS, ids=lambda case: case["case"])
def test_a_row_of_the_pre_linear_is_what_the_raw_file_says(case):
    ours, bf16, stock, compiled = medians(
        case, "ours", "ours, bf16", "stock", "stock compiled"
    )
    error = case["facts"]["error"]
    assert case["correct"]
    assert (
        f"| {case['batch']:,} | {ours:,.2f} | {stock:,.2f} | {compiled:,.2f} | {stock / ours:.1f}x |"
        f" {compiled / ours:.1f}x | {case['floor_us'] / ours:.0%} | {error['split']:.1e} |"
        f" {bf16:,.2f} | {error['bf16']:.1e} |\n"
    ) in PAGE


@pytest.mark.parametrize(
    "arm,name", [("stock", "stock, FP32"), ("split", "ours"), ("bf16", "ours, `bf16`")]
)
def test_the_errors_of_the_mixes_are_what_the_raw_file_says(arm, name):
    cells = [
        f"{max(case['facts'][f'mixes, {arm}'][field] for case in HC_PRE_ROWS):.1e}"
        for field in ("pre", "post", "comb")
    ]
    assert f"| {name} | {' | '.join(cells)} |\n" in PAGE


def test_the_targets_of_the_pre_linear_are_met_where_the_page_says_so():
    times = {
        case["batch"]: medians(case, "ours", "stock", "stock compiled")
        for case in HC_PRE_ROWS
    }
    for rows in (1, 16, 64):
        ours, stock, compiled = times[rows]
        assert ours <= 6 and stock >= 3 * ours and compiled >= 2 * ours
    share = {
        case["batch"]: case["floor_us"] / times[case["batch"]][0]
        for case in HC_PRE_ROWS
    }
    (stated,) = re.findall(
        r"At 2,048 rows the target of 60 % of the memory floor is (met|missed)", PAGE
    )
    assert stated == ("met" if share[2_048] >= 0.6 else "missed")
    assert f"in this run ({share[2_048]:.1%}".replace("%", " %") in PAGE
    assert share[8_192] >= 0.6


def test_the_pre_linear_beside_servers_is_what_its_raw_file_says():
    file = ROOT / "ci/checkpoints/raw/h200-hc-pre/bench-beside-servers.json"
    (case,) = (
        case
        for case in json.loads(file.read_text())["cases"]
        if case["case"] == "rows2048"
    )
    share = f"{case['floor_us'] / medians(case, 'ours')[0]:.1%}".replace("%", " %")
    assert f"other GPU read {share} ([raw](../{file.relative_to(ROOT)}))" in PAGE


def test_the_times_of_the_weighted_sum_are_what_the_raw_file_says():
    assert all(case["correct"] for case in HC_SUM_ROWS)
    text = " ".join(PAGE.split())
    for case in HC_SUM_ROWS:
        ours, stock = medians(case, "ours", "stock")
        rows = "row" if case["batch"] == 1 else "rows"
        assert f"{case['batch']:,} {rows} {ours:.2f} us against {stock:.2f}" in text


TOPK = json.loads((ROOT / "ci/checkpoints/raw/h200-topk/bench.json").read_text())


TOPK_ROWS = {(row["group"], row["case"]): row for row in TOPK["cases"]}


LARGE = (
    "B64-text8192-cap8192",
    "B16-text131072-cap131072",
    "B64-text131072-cap131072",
    "B8-text1048576-cap1048576",
)


METADATA = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-metadata/bench.json").read_text()
)


def medians(row, *arms):
    return [row["timings"][arm]["median"] for arm in arms]


def test_each_row_of_the_topk_table_is_what_the_raw_file_says():
    assert all(row["correct"] for row in TOPK["cases"])
    rows = re.findall(
        r"^\| ([\d,]+) x ([\d,]+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.M
    )
    assert len(rows) == 18
    for batch, length, *stated in rows:
        group = "topk-rows" if batch == "2,048" else "topk-lengths"
        row = TOPK_ROWS[group, f"{batch}x{length}".replace(",", "")]
        ours, v1, v2, torch = medians(row, "ours", "v1", "v2", "torch.topk")
        assert stated == [f"{ours:.2f}", f"{v1:.2f}", f"{v2:.2f}", f"{torch:.1f}"]


def test_times_and_recall_of_close_scores_are_what_the_raw_file_says():
    rows = re.findall(r"^\| 8 x ([\d,]+) \| (.*) \|$", PAGE, re.M)
    assert len(rows) == 4
    for length, cells in rows:
        stated = cells.split(" | ")
        for cell, scores in zip(
            stated, ("-normal", "-narrow", "-concentrated", "-mean-100", "-plateau")
        ):
            row = TOPK_ROWS["topk-recall", f"8x{length}{scores}".replace(",", "")]
            ours, v1, v2 = medians(row, "ours", "v1", "v2")
            recall = row["facts"]["recall"]
            assert recall["ours"] == 1
            assert cell == (
                f"{ours:.1f} / {v1:.1f} / {v2:.1f}; {recall['v1']:.3f} / {recall['v2']:.3f}"
            )


def test_the_worst_distribution_is_what_the_raw_file_says():
    one, many = (
        TOPK["ratios"]["topk"][f"{shape}, worst scores / best"]["ours"]
        for shape in ("1 x 262144", "64 x 8192")
    )
    stated = f"takes {one:.2f} times the fastest at 1 x 262,144 and {many:.2f} times at 64 x 8,192"
    assert stated in " ".join(PAGE.split())


def test_the_metadata_figures_are_what_the_raw_file_says():
    rows = {row["case"]: row for row in METADATA["cases"]}
    ours, stock = medians(rows["decode64-text512-cap1M"], "ours", "stock")
    seen = rows["growing-32-widths"]["facts"]["first_calls"]
    text = " ".join(PAGE.split())
    assert f"64 rows at a 1M context {ours:.2f} us against {stock:.1f};" in text
    assert (
        f"{seen['widths']} widths compile {seen['ours_compilations']} kernel against"
        f" {seen['stock_compilations']}, {seen['ours_seconds']:.2f} s against"
        f" {seen['stock_seconds']:.2f} s."
    ) in text


def test_the_metadata_figures_of_the_second_run_are_what_its_raw_file_says():
    file = ROOT / "ci/checkpoints/raw/h200-metadata/again.json"
    again = {case["case"]: case for case in json.loads(file.read_text())["cases"]}
    ours, stock = (
        again["decode64-text512-cap1M"]["timings"][arm] for arm in ("ours", "stock")
    )
    seen = again["growing-32-widths"]["facts"]["first_calls"]
    text = " ".join(PAGE.split())
    assert (
        f"{ours['median']:.2f} us ({ours['low']:.2f} to {ours['high']:.2f}) against {stock['median']:.1f},"
        f" {seen['ours_seconds']:.2f} s against {seen['stock_seconds']:.2f} s."
    ) in text
    first = {case["case"]: case for case in METADATA["cases"]}
    now, then = (
        medians(run["decode64-text512-cap8K"], "stock", "ours")
        for run in (again, first)
    )
    assert (
        "{:.2f} against {:.2f} there, {:.2f} against {:.2f} in".format(*now, *then)
        in text
    )


DECODE = json.loads((ROOT / "ci/checkpoints/raw/h200-decode/bench.json").read_text())


DECODE_CASES = {case["case"]: case for case in DECODE["cases"]}


def test_each_row_of_the_attention_table_is_what_the_raw_file_says():
    wanted = [case for case in DECODE["cases"] if case["group"] != "decode-scores"]
    for case in wanted:
        median = {arm: timing["median"] for arm, timing in case["timings"].items()}
        ours, stock, peer = (median.get(a) for a in ("ours", "stock", "FlashMLA"))
        assert (
            f"| {case['case']} | {case['floor_us']:,.1f} | {ours:,.2f} | {median['ours, not shared out']:,.1f} |"
            f" {f'{stock:,.0f} | {stock / ours:,.0f}x' if stock else '- | -'} |"
            f" {f'{peer:,.1f}' if peer else '-'} |\n"
        ) in PAGE
    assert len(wanted) == 13 and all(case["correct"] for case in DECODE["cases"])


def test_the_ratios_and_errors_of_attention_are_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    ratios = DECODE["ratios"]["attention"]
    skewed = ratios["one long row among 63 short / alone"]["ours"]
    assert f"among 63 of 2 takes {skewed:.2f} times its time alone" in text
    width = ratios["index table for 1M / for 8K"]["ours"]
    assert f"for 1M tokens {width:.3f} times one for 8K" in text
    errors = [
        case["facts"]["error"]
        for case in DECODE["cases"]
        if case["group"] == "decode-scores"
    ]
    ours = [error["ours"] for error in errors]
    assert f"is {min(ours):.2e} to {max(ours):.2e} of the result's" in text
    worst = max(error["ours"] / error["stock"] for error in errors)
    assert f"at most {worst:.2f} times the stock kernel's" in text


def test_what_attention_falls_short_of_is_what_the_raw_file_says():
    def ours(name):
        return DECODE_CASES[name]["timings"]["ours"]["median"]

    text = " ".join(PAGE.split())
    share = ours("B64-h16-128+512") / DECODE_CASES["B64-h16-128+512"]["floor_us"]
    assert f"take {share:.1f} times the floor (3)" in text
    assert f"one row {ours('B1-h16-128+512'):.1f} us (8)" in text
    assert f"8,320 keys {ours('B1-h16-128+8192'):.1f} us (12)" in text
    assert f"64 heads {ours('B2048-h64-128+512') / 1_000:.2f} ms (0.87), where" in text


def test_todays_logits_against_deepgemm_are_what_the_raw_file_says():
    ratio = {
        case: arms["i_page"] / arms["DeepGEMM"]
        for case, arms in LOGITS_TUNING.items()
        if "DeepGEMM" in arms
    }
    skewed = ratio.pop("B64-one131072-rest512-cap131072")
    large = [ratio.pop(case) for case in LARGE]
    text = " ".join(PAGE.split())
    few = f"{min(ratio.values()):.2f} to {max(ratio.values()):.2f} times DeepGEMM's"
    assert few in text and len(ratio) == 7
    assert f"{min(large):.2f} to {max(large):.2f} on the four large ones" in text
    assert f"and {skewed:.2f} on one long row" in text
