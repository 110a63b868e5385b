"""The attention's figures of docs/measured.md against their raw files."""

from __future__ import annotations

import json

from kernel_arms import ROOT, medians

PAGE = (ROOT / "docs/measured.md").read_text()

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


def attention(name: str, run: dict = DECODE, arm: str = "ours") -> float:
    (case,) = (case for case in run["cases"] if case["case"] == name)
    return medians(case, arm)[0]


def test_what_attention_falls_short_of_is_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    shares = [
        attention(f"B64-h{heads}-128+512")
        / DECODE_CASES[f"B64-h{heads}-128+512"]["floor_us"]
        for heads in (8, 16)
    ]
    assert "take {:.1f} and {:.1f} times the floor (3)".format(*shares) in text
    assert f"one row {attention('B1-h16-128+512'):.1f} us (8)" in text
    assert f"8,320 keys: {attention('B1-h16-128+8192'):.1f} us (12)" in text
    prefill = attention("B2048-h64-128+512")
    assert f"64 heads {prefill / 1_000:.2f} ms (0.87)" in text
    peer = attention("B2048-h64-128+512", arm="FlashMLA")
    assert f"takes {peer / 1_000:.2f} ms there: ours {prefill / peer:.2f} times" in text
    many, one = (
        attention(name) / attention(name, arm="FlashMLA")
        for name in ("B64-h64-128+512", "B1-h64-128+512")
    )
    assert f"take {many:.2f} of FlashMLA's time, one row {one:.2f}" in text


def test_attention_beside_the_kernel_before_is_what_the_raw_files_say():
    file = "ci/checkpoints/raw/h200-decode/bench-beside-starting-servers.json"
    before = json.loads((ROOT / file).read_text())
    text = " ".join(PAGE.split())
    names = ("B64-h16-one128+8192-rest128+2", "B1-h16-128+8192")
    now, then = ([attention(name, run) for name in names] for run in (DECODE, before))
    words = (
        "{:.1f} us against {:.1f}, where the kernel before took {:.1f} against {:.1f}"
    )
    assert words.format(*now, *then) in text
    heads = [attention("B64-h32-128+512", run) for run in (DECODE, before)]
    assert "take {:.1f} us, where the kernel before took {:.1f},".format(*heads) in text
    whole = [
        attention(names[1], run, "ours, not shared out") for run in (DECODE, before)
    ]
    assert "keys takes {:.0f} us instead of {:.0f}:".format(*whole) in text
