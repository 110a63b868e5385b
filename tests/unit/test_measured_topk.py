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
    stated: dict[str, list[str]] = {"all": [], "others": [], "before": []}
    for shape in ("1x262144", "64x8192"):
        times, older = scores(TOPK, shape), scores(before, shape)
        assert (len(times), len(older)) == (25, 20)
        assert max(times, key=times.get) == "-ulps-apart-with-outlier"
        assert "-ulps-apart-with-outlier" not in older and older.keys() < times.keys()
        best, *_, second, worst = sorted(times.values())
        stated["all"].append(f"{worst / best:.2f}")
        stated["others"].append(f"{second / best:.2f}")
        stated["before"].append(f"{max(older.values()) / min(older.values()):.2f}")
    text = " ".join(PAGE.split())
    one, many = stated["all"]
    words = "takes {} times the fastest at 1 x 262,144 and {} times at 64 x 8,192"
    assert words.format(one, many) in text
    assert "All others take at most {} and {} times".format(*stated["others"]) in text
    assert "where it was {} and {} ([raw]".format(*stated["before"]) in text


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
    assert slower == {
        *("1x512", "16x512", "64x512", "1x1024"),
        *(f"64x512-cap{cap}" for cap in (2_048, 32_768, 262_144)),
    }
    caps = [above("topk-caps", f"64x512-cap{cap}", "v1") for cap in (262_144, 32_768)]
    assert "v1 is {:.2f} us faster there and {:.2f} at a cap".format(*caps) in text
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
    assert f"entries costs {wide - narrow:.2f} us ({cap:.2f} times; 1.02" in text
    assert f"among 63 short takes {skewed:.2f} times its time alone (1.2)" in text
