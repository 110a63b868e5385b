"""Figures of docs/tried.md on the shares and the placement of the top-k's programs, against their raw file."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT

TRIED = (ROOT / "docs/tried.md").read_text()
RAW = "h200-topk/tuning-6-shares-and-placement.json"
ROWS = json.loads((ROOT / "ci/checkpoints/raw" / RAW).read_text())
SECTION = TRIED.partition("\n### Top-k, even shares of long rows")[2].partition(
    "\n### "
)[0]
WORDS = " ".join(SECTION.split())
TIMED = [row for row in ROWS if "us" in row]


def medians(case: str, arm: str) -> list[float]:
    """The medians of an arm, one for each time that the case ran."""
    return [
        row["us"][arm][0] for row in TIMED if row["case"] == case and arm in row["us"]
    ]


CASES = {
    "64x131072": "64 x 131,072",
    "pair 64 x 131072-cap262144": "64 x 131,072, behind",
    "64x262144": "64 x 262,144",
    "64-half-long": "64 rows of 65,536 and 8,192 by turns",
    "1x512": "1 row of 512",
    "16x512": "16 rows of 512",
    "64x512": "64 rows of 512",
    "1x512-cap262144": "1 row of 512, cap 262,144",
    "16x512-cap262144": "16 rows of 512, cap 262,144",
    "64x512-cap262144": "64 rows of 512, cap 262,144",
    "pair 64 x 512-cap2048": "64 rows of 512, cap 2,048, behind",
    "pair 64 x 512-cap262144": "64 rows of 512, cap 262,144, behind",
    "1x1024": "1 row of 1,024",
    "16x1024": "16 rows of 1,024",
    "64x1024": "64 rows of 1,024",
}


@pytest.mark.parametrize("case", CASES)
def test_an_arm_of_the_shares_is_what_the_raw_file_says(case):
    cells = []
    for arm in "base kept even linger v1".split():
        times = sorted(medians(case, arm))
        ends = dict.fromkeys(f"{time:.2f}" for time in times[:1] + times[-1:])
        cells.append(" to ".join(ends) or "-")
    assert f"\n| {CASES[case]} | {' | '.join(cells)} |\n" in SECTION


def test_what_is_said_of_the_shares_is_what_the_raw_file_says():
    assert ROWS[0] == {"correctness_bad": 0}
    assert all(good is True for row in TIMED for good in row["ok"].values())
    kept = [f"{time:.1f}" for time in medians("64x131072", "kept")]
    assert "kept took {}, {}, {} and {} at 64 x 131,072.".format(*kept) in WORDS
    even = medians("64x131072", "even")
    assert f"so it takes {min(even):.1f} to {max(even):.1f} always" in WORDS

    def percent(case: str) -> float:
        (ours,), (than,) = medians(case, "even"), medians(case, "kept")
        return 100 * (ours / than - 1)

    assert f"{percent('64-half-long'):.0f} % more where" in WORDS
    assert f"{-percent('64x262144'):.0f} % less at 64 x 262,144" in WORDS
    pair = "pair 64 x 131072-cap262144"
    taken = {arm: medians(pair, arm)[0] for arm in ("base", "kept", "even", "linger")}
    assert min(taken, key=taken.get) == "kept"
    assert f"linger takes {taken['linger'] - taken['kept']:.1f} more." in WORDS


def test_the_cases_in_which_v1_is_quicker_are_those_of_the_raw_file():
    short = {row["case"] for row in TIMED if re.match(r"(1|16|64)x512", row["case"])}
    assert len(short) == 12
    slower = {}
    for row in TIMED:
        if "v1" in row["us"] and row["us"]["v1"][0] < row["us"]["kept"][0]:
            times = (f"{row['us'][arm][0]:.3f}" for arm in ("v1", "kept"))
            slower[row["case"]] = "({} for {})".format(*times)
    assert slower.keys() == {"1x512-cap262144", "pair 64 x 512-cap262144"}
    assert f"last only {slower['1x512-cap262144']};" in WORDS
    assert f"at that cap {slower['pair 64 x 512-cap262144']}." in WORDS
    one = (medians("1x1024", arm)[0] for arm in ("kept", "v1"))
    assert "One row of 1,024 takes {:.3f} for {:.3f}.".format(*one) in WORDS


def test_what_today_s_kernel_loses_to_the_one_before_is_what_the_raw_file_says():
    lost: dict[str, float] = {}
    for row in TIMED:
        gap = 100 * (row["us"]["kept"][0] / row["us"]["base"][0] - 1)
        lost[row["case"]] = max(gap, lost.get(row["case"], gap))
    most = {case: f"{gap:.0f} %" for case, gap in lost.items() if gap > 2}
    three = "1x262144-three-values"
    assert most.keys() == {"64x131072", three}
    times = (medians(three, arm)[0] for arm in ("kept", "base"))
    assert (
        f"it loses {most['64x131072']} in the slow mode and {most[three]} for one row of"
        " 262,144 of three values ({:.2f} for {:.2f}),".format(*times)
    ) in WORDS


def test_the_placement_of_programs_is_what_the_stamps_say():
    doubled, slow, others = {}, {}, []
    for row in ROWS:
        if "stamps" not in row or row["case"] != "64x131072":
            continue
        arm = row["stamps"].removeprefix("st_")
        launches = [dict(zip(row["names"], launch)) for launch in row["all"]]
        assert len(launches) == 115
        late = [launch for launch in launches if launch["period"] > 28_000]
        assert all(launch["doubled"] > 0 for launch in late)
        placed = [launch for launch in launches if launch["doubled"] > 0]
        doubled[arm], slow[arm] = len(placed), len(late)
        others += [one["period"] for one in placed if one not in late]
    assert doubled.keys() == {"base", "kept", "even", "linger"}
    assert doubled["even"] == doubled["linger"] == 0
    assert (
        f"all launches over 28 us, {slow['base']} of base's and {slow['kept']} of"
        " kept's, had SMs with two of their programs."
    ) in WORDS
    assert (
        f"{doubled['base']} of base's launches had them and {doubled['kept']} of"
        f" kept's, and the others of these took at most {max(others) / 1000:.1f}."
    ) in WORDS
