"""Figures of docs/tried.md on short rows of the top-k made ready before the wait, against their raw file."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT, arms_of

TRIED = (ROOT / "docs/tried.md").read_text()
RAW = "h200-topk/tuning-5-short-rows-ready.json"
ROWS = json.loads((ROOT / "ci/checkpoints/raw" / RAW).read_text())
FIRST = arms_of(RAW)
SECTION = TRIED.partition("\n### Top-k, short rows made ready")[2].partition("\n### ")[
    0
]


def medians(case: str, arm: str) -> list[float]:
    """The medians of an arm, one for each time that the case ran."""
    return [
        row["us"][arm][0]
        for row in ROWS
        if row.get("case") == case and arm in row["us"]
    ]


@pytest.mark.parametrize(
    "case,stated",
    [
        ("1x512", "1 row of 512"),
        ("16x512", "16 rows of 512"),
        ("64x512", "64 rows of 512"),
        ("64x512-cap2048", "64 rows of 512, cap 2,048"),
        ("64x512-cap32768", "64 rows of 512, cap 32,768"),
        ("64x512-cap262144", "64 rows of 512, cap 262,144"),
        ("1x512-cap262144", "1 row of 512, cap 262,144"),
        ("2048x512-cap2048", "2,048 rows of 512, cap 2,048"),
        ("2048x512-cap262144", "2,048 rows of 512, cap 262,144"),
        ("1x1024", "1 row of 1,024"),
        ("64x1024", "64 rows of 1,024"),
        ("64x2048", "64 rows of 2,048"),
    ],
)
def test_an_arm_of_the_topk_made_ready_is_what_the_raw_file_says(case, stated):
    cells = []
    for arm in "base p0 pre late hint hl spec c2 v1".split():
        times = sorted(f"{time:.2f}" for time in medians(case, arm))
        assert len(times) in (0, 1, 3)
        cells.append(" to ".join(sorted({times[0], times[-1]})) if times else "-")
    assert f"\n| {stated} | {' | '.join(cells)} |\n" in SECTION


def more(case: str, arm: str, than: str) -> list[float]:
    return [a - b for a, b in zip(medians(case, arm), medians(case, than))]


SHORT = [case for case in FIRST if re.match(r"(1|16|64)x512", case)]


@pytest.mark.parametrize(
    "arm,than,cases,digits,words",
    [
        ("late", "pre", SHORT, 1, "costs {} to {} us"),
        ("pre", "hint", ["1x512", "16x512"], 2, "(hint) gains {} to {} for one row"),
        (
            "hint",
            "pre",
            [case for case in SHORT if case.startswith("64x")],
            1,
            "and costs {} to {} for 64",
        ),
        ("hlc", "hl", SHORT, 2, "takes {} to {} more"),
    ],
)
def test_what_an_arm_costs_short_rows_is_what_the_raw_file_says(
    arm, than, cases, digits, words
):
    found = [gap for case in cases for gap in more(case, arm, than)]
    ends = (f"{end:.{digits}f}" for end in (min(found), max(found)))
    assert words.format(*ends) in SECTION


def test_what_is_said_of_the_topk_made_ready_is_what_the_raw_file_says():
    assert ROWS[0] == {"correctness_bad": 0}
    assert all(good is True for row in ROWS for good in row.get("ok", {}).values())
    assert all(
        gap > 0
        for case in [*SHORT, "2048x512-cap2048", "2048x512-cap262144"]
        for arm in ("hl", "spec")
        for gap in more(case, arm, "pre")
    )
    gains = [gap for case in SHORT for gap in more(case, "hl", "hlq")]
    words = " ".join(SECTION.split())
    assert f"(hlq) give hl at most {max(gains):.2f}," in words
    one, long = FIRST["1x1024"], FIRST["64x131072"]
    assert f"(bal) takes {one['bal']:.2f} for {one['base']:.2f}" in words
    assert f"(c3) {one['c3']:.2f} for {one['c2']:.2f}" in words
    taken = [f"{long[arm]:.1f}" for arm in "c2 hl c3 base p0 bal".split()]
    assert (
        "c2 {}, hl {} and c3 {} for base's {} and p0's {}; bal {}.".format(*taken)
        in words
    )
    longest = FIRST["64x262144"].values()
    assert f"all take {min(longest):.1f} to {max(longest):.1f}." in words


def test_the_cycles_of_short_rows_are_what_the_raw_file_says():
    def median(arm: str) -> dict[str, int]:
        (row,) = (
            row
            for row in ROWS
            if row.get("stamps") == f"st_{arm}" and row["cap"] == 512
        )
        return dict(zip(row["names"], row["quartiles"][1]))

    late, pre = median("late"), median("pre")
    parts = "before", "wait", "length", "written", "vote+end"
    words = " ".join(SECTION.split())
    assert (
        "{} to prepare, {} to wait, {} for the length, {} until it is written, {} to"
        " its end".format(*(late[part] for part in parts))
    ) in words
    assert (
        "takes {}, {}, {}, {} and {}.".format(*(pre[part] for part in parts)) in words
    )
    assert (
        f"starts {late['start-end']:,} cycles after that end, pre's"
        f" {pre['start-end']}, so a launch takes {late['period']:,} cycles for"
        f" {pre['period']:,}."
    ) in words


def test_the_kinds_of_scores_with_outliers_apart_are_what_the_raw_file_says():
    words = " ".join(SECTION.split())

    def cell(case: str) -> str:
        times = FIRST[case]
        return f"{times['c1']:.2f} for {times['base']:.2f}"

    for text, kind in (
        ("64 rows of 8,192 take {}", "64x8192-ulps-apart-with-outlier"),
        ("one of 262,144 takes {}", "1x262144-ulps-apart-with-outlier"),
        ("Normal scores take {}", "64x8192"),
        ("three values lose most, {}", "64x8192-three-values"),
        ("at 1 x 262,144 {}.", "1x262144-three-values"),
    ):
        assert text.format(cell(kind)) in words
    for shape, text in (
        ("64x8192", "{} times the fastest at 64 x 8,192 (few values; before {})"),
        ("1x262144", "{} times at 1 x 262,144 (a plateau; before {})"),
    ):
        ratios = []
        for arm in ("c1", "base"):
            kinds = {
                case: times[arm]
                for case, times in FIRST.items()
                if (case == shape or case.startswith(f"{shape}-")) and "c1" in times
            }
            assert len(kinds) == 25
            ratios.append(f"{max(kinds.values()) / min(kinds.values()):.2f}")
        assert text.format(*ratios) in words
