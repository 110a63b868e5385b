"""The top-512's figures of docs/measured.md against their raw files."""

from __future__ import annotations

import json
import re

from kernel_arms import ROOT, medians

PAGE = (ROOT / "docs/measured.md").read_text()

TOPK = json.loads((ROOT / "ci/checkpoints/raw/h200-topk/bench.json").read_text())


TOPK_ROWS = {(row["group"], row["case"]): row for row in TOPK["cases"]}


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


def scores(run: dict, shape: str) -> dict[str, float]:
    """Our time of each kind of scores."""
    return {
        row["case"].removeprefix(shape): medians(row, "ours")[0]
        for row in run["cases"]
        if row["group"] == "topk-scores" and row["case"].startswith(f"{shape}-")
    }


def test_the_worst_distribution_is_what_the_raw_file_says():
    file = "ci/checkpoints/raw/h200-topk/bench-beside-starting-servers.json"
    before = json.loads((ROOT / file).read_text())
    stated: dict[str, list[str]] = {"all": [], "ulps": [], "before": []}
    for shape, slowest in (("1x262144", "-plateau"), ("64x8192", "-few-values")):
        times, older = scores(TOPK, shape), scores(before, shape)
        assert (len(times), len(older)) == (25, 20)
        assert max(times, key=times.get) == slowest
        assert "-ulps-apart-with-outlier" not in older and older.keys() < times.keys()
        best, worst = min(times.values()), max(times.values())
        assert worst / best <= 1.25
        stated["all"].append(f"{worst / best:.2f}")
        stated["ulps"].append(f"{times['-ulps-apart-with-outlier'] / best:.2f}")
        stated["before"].append(f"{max(older.values()) / min(older.values()):.2f}")
    text = " ".join(PAGE.split())
    words = (
        "takes {} times the fastest at 1 x 262,144 (a plateau) and {} times at"
        " 64 x 8,192 (few values): 1.25 was aimed at, and both meet it"
    )
    assert words.format(*stated["all"]) in text
    assert "1.28), take {} and {} times.".format(*stated["ulps"]) in text
    assert "was asked it was {} and {} ([raw]".format(*stated["before"]) in text


def test_times_of_long_rows_are_what_the_raw_file_says():
    keys = (
        ("topk-lengths", "1x262144"),
        ("topk-skewed", "262144-alone"),
        ("topk-scores", "1x262144-normal"),
        ("topk-lengths", "64x262144"),
    )
    times = [medians(TOPK_ROWS[key], "ours")[0] for key in keys]
    text = " ".join(PAGE.split())
    words = (
        "One row of 262,144 takes {:.2f} us, and in the two other places of the run that"
        " have one of normal scores {:.2f} and {:.2f} (12 was aimed at); 64 rows {:.2f} us"
    )
    assert words.format(*times) in text
    modes = TOPK_ROWS["topk-lengths", "64x131072"]["timings"]["ours"]
    words = "64 rows of 131,072 take {low:.2f} to {high:.2f} us, {median:.2f} in"
    assert words.format(**modes) in text


def above(group: str, case: str, than: str) -> float:
    """By how many us ours is slower."""
    ours, its = medians(TOPK_ROWS[group, case], "ours", than)
    return ours - its


def test_where_v1_and_v2_are_faster_is_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    rows = [
        above("topk-lengths", f"{n}x{length}", "v1")
        for n, length in ((1, 512), (16, 512), (64, 512), (1, 1_024))
    ]
    words = (
        "by {:.2f} us at one row, {:.2f} at 16, {:.2f} at 64; and by {:.2f} us on one"
    )
    assert words.format(*rows) in text
    slower = {
        case for (_, case) in TOPK_ROWS if above(*key_of(case), "v1") > 0
    }  # the page names each of these
    assert slower == {"1x512", "16x512", "64x512", "1x1024"}
    spread = [
        TOPK_ROWS["topk-lengths", "1x512"]["timings"][arm][end]
        for arm in ("ours", "v1")
        for end in ("low", "high")
    ]
    words = "(one row {:.2f} to {:.2f} us, v1 {:.2f} to {:.2f})"
    assert words.format(*spread) in text
    caps = [
        -above("topk-caps", f"64x512-cap{cap}", "v1")
        for cap in (2_048, 32_768, 262_144)
    ]
    words = "64 rows of 512, by {:.2f}, {:.2f} and {:.2f} us."
    assert words.format(*caps) in text
    lengths = (2_048, 8_192, 16_384)
    of_ours = [
        its / ours
        for n in (1, 16, 64)
        for length in lengths
        for ours, its in [
            medians(TOPK_ROWS["topk-lengths", f"{n}x{length}"], "ours", "v2")
        ]
    ]
    assert f"v2 takes {min(of_ours):.2f} to {max(of_ours):.2f} of our time" in text
    many = [
        ours / its
        for length in (2_048, 8_192, 32_768)
        for ours, its in [
            medians(TOPK_ROWS["topk-rows", f"2048x{length}"], "ours", "v2")
        ]
    ]
    assert f"takes {min(many):.2f} to {max(many):.2f} times its time from" in text


def key_of(case: str) -> tuple[str, str]:
    (key,) = (key for key in TOPK_ROWS if key[1] == case)
    return key


def test_what_a_wide_cap_and_a_long_row_cost_is_what_the_raw_file_says():
    ratios = TOPK["ratios"]["topk"]
    cap = ratios["64 x 512, cap 262144 / cap 2048"]["ours"]
    wide, narrow = (
        medians(TOPK_ROWS["topk-caps", f"64x512-cap{cap}"], "ours")[0]
        for cap in (262_144, 2_048)
    )
    skewed = ratios["one 262144 among 63 short / alone"]["ours"]
    text = " ".join(PAGE.split())
    assert f"of 2,048 cost {wide - narrow:.2f} us ({cap:.2f} times; 1.02" in text
    assert f"among 63 short takes {skewed:.2f} times its time alone (1.2)" in text
