"""The top-512's figures of docs/measured.md against their raw files."""

from __future__ import annotations

import json
import re

from kernel_arms import ROOT, medians

PAGE = (ROOT / "docs/measured.md").read_text()

TOPK = json.loads((ROOT / "ci/checkpoints/raw/h200-topk/bench.json").read_text())


TOPK_ROWS = {(row["group"], row["case"]): row for row in TOPK["cases"]}


SHORT_GRAPHS = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-topk/bench-short-graphs.json").read_text()
)


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
        stated["all"].append(f"{worst / best:.3f}")
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
        " have one of normal scores {:.2f} and {:.2f} (12 was aimed at; {} of the 25"
        " distributions are above it, the plateau's {:.2f} the most); 64 rows {:.2f} us"
    )
    kinds = scores(TOPK, "1x262144")
    above = sum(us > 12 for us in kinds.values())
    assert max(kinds, key=kinds.get) == "-plateau"
    times[3:3] = [above, max(kinds.values())]
    assert words.format(*times) in text
    modes = TOPK_ROWS["topk-lengths", "64x131072"]["timings"]["ours"]
    words = "64 rows of 131,072 take {low:.2f} to {high:.2f} us, {median:.2f} in"
    assert words.format(**modes) in text


def ours_now_and_before() -> dict[str, tuple[dict, dict]]:
    """Our times at 8 to 64 rows of 32,768 entries or more, each with those of the run with shorter graphs."""
    before = {(row["group"], row["case"]): row for row in SHORT_GRAPHS["cases"]}
    times = {}
    for key, row in TOPK_ROWS.items():
        shape = re.match(r"(8|16|64)x(\d+)", key[1])
        if shape and int(shape[2]) >= 32_768:
            times[key[1]] = (row["timings"]["ours"], before[key]["timings"]["ours"])
    return times


def test_where_the_two_modes_show_is_what_the_raw_files_say():
    spread, more, fastest = {}, {}, {}
    for case, (now, before) in ours_now_and_before().items():
        spread[case] = 100 * (now["high"] / now["low"] - 1)
        if spread[case] > 10:
            more[case] = 100 * (now["median"] / before["median"] - 1)
            fastest[case] = now["low"] / before["low"]
    wide = [spread.pop(case) for case in more]
    assert spread.keys() == {"64x262144"} | {
        case for case in spread if case.startswith("8x32768")
    }
    text = " ".join(PAGE.split())
    assert f"in {len(more)} cases of 8, 16 and 64 rows" in text
    assert f"spread by {min(wide):.0f} to {max(wide):.0f} % and medians" in text
    assert -1 < min(more.values()) and f"to {max(more.values()):.0f} % above" in text
    slow = fastest.pop("64x131072")
    assert {round(100 * abs(each - 1)) for each in fastest.values()} <= {0, 1, 2}
    assert f"within 2 % of its (64 of 131,072: {100 * (slow - 1):.0f} % above)" in text
    narrow = f"spread by {min(spread.values()):.0f} to {max(spread.values()):.0f} %."
    assert narrow in text


def below(case: str) -> float:
    """By how many us ours is quicker than v1."""
    ours, v1 = medians(TOPK_ROWS["topk-caps", case], "ours", "v1")
    return v1 - ours


def test_v1_is_slower_in_every_case_that_has_it():
    timed = [row["timings"] for row in TOPK_ROWS.values() if "v1" in row["timings"]]
    assert len(timed) == len(TOPK_ROWS)
    assert all(each["ours"]["high"] < each["v1"]["low"] for each in timed)
    text = " ".join(PAGE.split())
    assert f"**v1 is slower in each of the {len(timed)} cases**" in text
    least = max(TOPK_ROWS, key=lambda key: ratio_to_v1(TOPK_ROWS[key]))
    assert least == ("topk-caps", "1x512-cap32768")
    times = medians(TOPK_ROWS[least], "ours", "v1")
    assert "as wide as 32,768 entries, {:.2f} us for {:.2f}.".format(*times) in text


def ratio_to_v1(row: dict) -> float:
    ours, v1 = medians(row, "ours", "v1")
    return ours / v1


def test_what_shorter_graphs_read_is_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    slower = {}
    for row in SHORT_GRAPHS["cases"]:
        ours, v1 = medians(row, "ours", "v1")
        if ours > v1:
            slower[row["case"]] = ours - v1
    assert slower.keys() == {"1x512", "16x512", "64x512", "1x1024"}
    least, *_, most = sorted(slower.values())
    assert f"v1 quicker by {least:.2f} to {most:.2f} us on short rows" in text
    (then,) = (
        row["timings"]["ours"]
        for row in SHORT_GRAPHS["cases"]
        if (row["group"], row["case"]) == ("topk-lengths", "1x512")
    )
    now = TOPK_ROWS["topk-lengths", "1x512"]["timings"]["ours"]
    words = "ours spread from {low:.2f} to {high:.2f} us at 1 x 512, where it is"
    assert words.format(**then) + " {low:.2f} to {high:.2f} now".format(**now) in text


def test_where_v1_is_quicker_behind_the_logits_is_what_the_tuning_run_says():
    file = "ci/checkpoints/raw/h200-topk/tuning-6-shares-and-placement.json"
    timed = [row for row in json.loads((ROOT / file).read_text()) if "us" in row]
    behind = {
        row["case"]: [row["us"][arm][0] for arm in ("v1", "kept")]
        for row in timed
        if row["case"].startswith("pair ") and "v1" in row["us"]
    }
    quicker = {case: us for case, us in behind.items() if us[0] < us[1]}
    assert len(behind) > 1 and quicker.keys() == {"pair 64 x 512-cap262144"}
    (us,) = quicker.values()
    words = "for 64 rows at the widest cap, {:.3f} us for {:.3f}.".format(*us)
    assert words in " ".join(PAGE.split())


def v2_of_ours(group: str, case: str) -> float:
    ours, its = medians(TOPK_ROWS[group, case], "ours", "v2")
    return its / ours


def test_where_v2_is_faster_and_what_caps_cost_is_what_the_raw_file_says():
    text = " ".join(PAGE.split())
    caps = [
        below(f"{n}x512-cap{cap}") for n in (64, 1) for cap in (2_048, 32_768, 262_144)
    ]
    words = (
        "64 rows of 512 by {:.2f}, {:.2f} and {:.2f} us, for one by {:.2f}, {:.2f}"
        " and {:.2f}."
    )
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
    one, most = (v2_of_ours("topk-lengths", f"{n}x32768") for n in (1, 64))
    assert f"{one:.2f} and {most:.2f} on 1 and 64 rows of 32,768" in text
    assert v2_of_ours("topk-lengths", "16x32768") > 1
    cases = [name for group, name in TOPK_ROWS if group == "topk-recall"]
    above = sorted(
        v2_of_ours("topk-recall", name)
        for name in cases
        if not name.startswith("8x8192-")
    )
    slower = [ratio for ratio in above if ratio > 1]
    others = above[: -len(slower)]
    assert f"on {others[0]:.2f} to {others[-1]:.2f} but for two cases" in text
    found = {
        f"{v2_of_ours('topk-recall', name):.2f}": TOPK_ROWS["topk-recall", name][
            "facts"
        ]["recall"]["v2"]
        for name in ("8x262144-concentrated", "8x262144-mean-100")
    }
    assert [f"{ratio:.2f}" for ratio in slower] == list(found)
    assert "({} and {}, where".format(*found) in text
    assert "finds {:.3f} and {:.3f} of the top-512".format(*found.values()) in text
    many = [
        ours / its
        for length in (2_048, 8_192, 32_768)
        for ours, its in [
            medians(TOPK_ROWS["topk-rows", f"2048x{length}"], "ours", "v2")
        ]
    ]
    assert f"takes {min(many):.2f} to {max(many):.2f} times its time from" in text


def test_what_a_wide_cap_and_a_long_row_cost_is_what_the_raw_file_says():
    ratios = TOPK["ratios"]["topk"]
    cap = ratios["64 x 512, cap 262144 / cap 2048"]["ours"]
    wide, narrow = (
        medians(TOPK_ROWS["topk-caps", f"64x512-cap{cap}"], "ours")[0]
        for cap in (262_144, 2_048)
    )
    skewed = ratios["one 262144 among 63 short / alone"]["ours"]
    text = " ".join(PAGE.split())
    assert wide - narrow <= 0.2 and cap > 1.02
    words = f"of 2,048 cost 64 rows {wide - narrow:.2f} us ({cap:.2f} times; 1.02"
    assert words in text
    wide, narrow = (
        medians(TOPK_ROWS["topk-caps", f"1x512-cap{cap}"], "ours")[0]
        for cap in (262_144, 2_048)
    )
    words = f"one row {wide - narrow:.2f} us ({wide / narrow:.2f} times)."
    assert words in text
    assert f"among 63 short takes {skewed:.2f} times its time alone (1.2)" in text


def test_the_1024_best_are_what_the_raw_file_says():
    file = ROOT / "ci/checkpoints/raw/h200-topk/bench-1024.json"
    rows = json.loads(file.read_text())["cases"]
    assert f"([raw](../{file.relative_to(ROOT)});" in PAGE
    for row in rows:
        batch, length = row["case"].removesuffix("-k1024").split("x")
        ours, v1, torch = medians(row, "ours", "v1", "torch.topk")
        assert (
            f"| {batch} x {int(length):,} | {ours:.2f} | {v1:.2f} | {torch:.1f} |\n"
            in PAGE
        )
        assert row["correct"] and ours < v1
        assert set(row["facts"].get("recall", {"ours": 1.0}).values()) == {1.0}
    assert len(rows) == 12 and "v1 is slower in each of the twelve; v2, which" in PAGE
