"""The attention's figures of docs/measured.md against their raw files."""

from __future__ import annotations

import json

from kernel_arms import ROOT, medians

PAGE = (ROOT / "docs/measured.md").read_text()

DECODE = json.loads((ROOT / "ci/checkpoints/raw/h200-decode/bench.json").read_text())


BESIDE_TESTS = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-decode/bench-beside-gpu-tests.json").read_text()
)


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
    assert len(wanted) == 16 and all(case["correct"] for case in DECODE["cases"])


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
    words = "with 512 take {:.2f} and {:.2f} times the floor (3; at most 5 was asked)"
    assert words.format(*shares) in text
    assert 3 < min(shares) and max(shares) < 5
    one = attention("B1-h16-128+512")
    words = f"and one row of 640 keys {one:.2f} us (8; at most 12 was asked)"
    assert 8 < one < 12 and words in text
    run = json.loads(
        (ROOT / "ci/checkpoints/raw/h200-decode/tuning-14-value-split.json").read_text()
    )
    split = attention("B1-h16-128+512", run, "v16")
    assert f"would bring that row to {split:.2f}, and cost more elsewhere" in text


def test_what_attention_meets_is_what_the_raw_files_say():
    text = " ".join(PAGE.split())
    long = DECODE_CASES["B1-h16-128+8192"]["timings"]["ours"]
    words = "one row of 8,320 keys, too: {median:.2f} us (12), its slowest sample {high:.2f}."
    assert words.format(**long) in text and long["high"] < 12
    before = attention("B1-h16-128+8192", BESIDE_TESTS)
    assert before > 12 and f"beside the GPU tests it was {before:.2f}." in text
    prefill = attention("B2048-h64-128+512")
    assert prefill <= 870
    assert f"Met is 2,048 rows of 64 heads: {prefill / 1_000:.2f} ms (0.87)" in text
    peer = attention("B2048-h64-128+512", arm="FlashMLA")
    assert f"takes {peer / 1_000:.2f} ms there: ours {prefill / peer:.2f} times" in text
    many, one = (
        attention(name) / attention(name, arm="FlashMLA")
        for name in ("B64-h64-128+512", "B1-h64-128+512")
    )
    assert f"take {many:.2f} of FlashMLA's time, one row {one:.2f}" in text
    half = attention("B64-h32-128+512") / attention("B64-h64-128+512", arm="FlashMLA")
    stock = attention("B64-h16-128+512", arm="stock") / attention("B64-h16-128+512")
    assert (
        f"64 rows of 32 heads take {half:.2f} of the time that FlashMLA takes for the 64 heads"
        f" which it needs (1), and 64 rows of 16 heads a {stock:.0f}th of stock's (a 60th)."
    ) in text
    assert half <= 1 and stock >= 60


def test_longer_and_shorter_texts_are_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    long = attention("B64-h16-128+1024")
    floors = long / DECODE_CASES["B64-h16-128+1024"]["floor_us"]
    words = f"1,024 keys of the compressed cache take {long:.1f} us, {floors:.1f} times"
    assert f"{words} the floor (3)." in text and floors < 3
    few, many = (attention(f"B64-h{heads}-40+10") for heads in (16, 64))
    share = many / attention("B64-h64-40+10", arm="FlashMLA")
    words = f"64 rows: {few:.1f} us with 16 heads and {many:.1f} with 64,"
    assert f"{words} {share:.2f} of FlashMLA's time." in text


def test_attention_beside_an_earlier_kernel_is_what_the_raw_files_say():
    file = "ci/checkpoints/raw/h200-decode/bench-beside-starting-servers.json"
    before = json.loads((ROOT / file).read_text())
    text = " ".join(PAGE.split())
    names = ("B64-h16-one128+8192-rest128+2", "B1-h16-128+8192")
    now, then = ([attention(name, run) for name in names] for run in (DECODE, before))
    words = (
        "{:.1f} us against {:.1f}, where an earlier kernel took {:.1f} against {:.1f}"
    )
    assert words.format(*now, *then) in text
    heads = [attention("B64-h32-128+512", run) for run in (DECODE, before)]
    assert "take {:.1f} us, where an earlier kernel took {:.1f},".format(*heads) in text
    whole = [
        attention(names[1], run, "ours, not shared out") for run in (DECODE, before)
    ]
    assert "keys takes {:.0f} us instead of {:.0f}:".format(*whole) in text
    alone = json.loads(
        (ROOT / "ci/checkpoints/raw/h200-decode/bench-before.json").read_text()
    )
    figures = (
        attention("B64-h32-128+512", alone),
        attention(names[1], alone, "ours, not shared out"),
    )
    words = "took {:.1f} us for 64 rows of 32 heads and {:.0f}."
    assert words.format(*figures) in text
