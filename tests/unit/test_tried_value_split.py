"""What docs/tried.md says of the attention's value dims over two programs, against the raw file of that run."""

from __future__ import annotations

import json
import re

import pytest

from kernel_arms import ROOT, table_line

RAW = ROOT / "ci/checkpoints/raw/h200-decode"
RUN = json.loads((RAW / "tuning-14-value-split.json").read_text())
TIMES = {
    case["case"]: {arm: time["median"] for arm, time in case["timings"].items()}
    for case in RUN["cases"]
}
RATIOS = {
    case: {arm: time / times["base"] for arm, time in times.items()}
    for case, times in TIMES.items()
}
TRIED = (ROOT / "docs/tried.md").read_text()
SECTION = TRIED[
    TRIED.index("## The value's dims over") : TRIED.index("## Hyper-connection pre")
]
WORDS = " ".join(SECTION.split())
ROWS = re.findall(r"^\| (.*) \| `([\w-]+)` \| .*\|$", SECTION, re.M)
FORMER = {"base", "base-again", "FlashMLA"}
FEW = {"v16", "v16p2", "b16p2"}
OF_32 = ("v32", "v32g", "v32g128", "v32g128u4")
OF_64 = ("v64", "v64g", "v64gu1", "v64t32")
ROWS_64, LONGER, ROWS_16, ROWS_4, ROW, LONG = (
    f"B{shape}"
    for shape in (
        "64-h16-128+512",
        "64-h16-128+1024",
        "16-h16-128+512",
        "4-h16-128+512",
        "1-h16-128+512",
        "1-h16-128+8192",
    )
)
HEADS_32, HEADS_64, ROW_64, PREFILL = (
    f"B{rows}-128+512" for rows in ("64-h32", "64-h64", "1-h64", "2048-h64")
)
PAGE = (RAW / "prediction-14-value-split.md").read_text()
OUTCOME = " ".join(PAGE[PAGE.index("## Outcome") :].split())


def more(ratios) -> str:
    """The least and the largest of ratios as per cent above 1."""
    per_cent = sorted(100 * (ratio - 1) for ratio in ratios)
    return f"{per_cent[0]:.0f} to {per_cent[-1]:.0f} %"


def less(ratios) -> str:
    """The same below 1."""
    return more(2 - ratio for ratio in ratios)


def test_each_arm_is_told_once_and_all_were_right():
    assert [arm for _, arm in ROWS] == [*dict.fromkeys(arm for _, arm in ROWS)]
    assert {arm for _, arm in ROWS} == RUN["arms"].keys() | {"FlashMLA"}
    assert not RUN["left_out"] and all(not case["wrong"] for case in RUN["cases"])
    checked = [*RUN["mixed"].values(), *(case["worst_error"] for case in RUN["cases"])]
    many = RUN["arms"].keys()
    assert [errors.keys() for errors in checked] == [
        many if "b32g" in errors else FEW | {"base", "base-again"} for errors in checked
    ]
    printed = (RAW / "tuning-14-value-split.txt").read_text()
    assert "wrong arms: none; left out for time: none" in printed


@pytest.mark.parametrize("stated,arm", ROWS, ids=[arm for _, arm in ROWS])
def test_a_form_is_what_the_raw_file_says(stated, arm):
    cells = {case: times[arm] for case, times in TIMES.items() if arm in times}
    assert table_line(f"{stated} | `{arm}`", cells, " ".join(TIMES)) in SECTION


def test_what_the_split_gains_is_what_the_raw_file_says():
    gains = {case: ratios["v16"] for case, ratios in RATIOS.items()}
    assert {case for case, ratio in gains.items() if ratio < 1} == {
        ROW,
        ROWS_4,
        ROW_64,
    }
    per_cent = [f"{100 * (1 - gains[case]):.0f}" for case in (ROW, ROWS_4, ROW_64)]
    assert per_cent == ["4", "4", "6"]
    assert (
        "gains 4 % with one and four rows of 640 keys, 6 % with one row of 64" in WORDS
    )
    one = TIMES[ROW]["v16"]
    assert f"takes {one:.2f} us, still over the 8" in WORDS and one > 8
    pair = "{:.2f} for {:.2f}".format(*(TIMES[LONG][arm] for arm in ("v16", "base")))
    assert f"one row of 8,320 keys takes {pair}, over the 12 asked" in WORDS
    assert TIMES[LONG]["v16"] > 12
    saved = sorted(
        times["base"] - times["v16"]
        for times in (TIMES[case] for case in (ROW, ROWS_4, ROW_64))
    )
    assert f"save {saved[0]:.1f} to {saved[-1]:.1f} us a layer" in WORDS


def test_what_the_split_costs_is_what_the_raw_file_says():
    costs = [
        f"{100 * (RATIOS[case]['v16'] - 1):.0f} %"
        for case in (ROWS_16, ROWS_64, LONGER)
    ]
    words = "it loses: {} with 16 rows, {} with 64, {} with 64 of 1,152 keys;"
    assert words.format(*costs) in WORDS
    assert f"take {RATIOS[PREFILL]['v16']:.1f} times as long" in WORDS
    # 512 keys more are 8 tiles of the one program that has a row, 4 of each of two.
    tile = [
        (TIMES[LONGER][arm] - TIMES[ROWS_64][arm]) / tiles
        for arm, tiles in (("v16", 8), ("base", 4))
    ]
    grids = {case["case"]: case["plans"] for case in RUN["cases"]}[ROWS_64]
    assert [grids[arm]["groups"] for arm in ("v16", "base")] == [2, 1]
    assert "a tile takes {:.2f} us for {:.2f}.".format(*tile) in WORDS


def test_what_is_said_of_two_programs_is_what_the_raw_file_says():
    unsplit = [ratios["b16p2"] for ratios in RATIOS.values()]
    assert f"they lose {more(unsplit)}, why" in WORDS and min(unsplit) > 1
    assert f"everywhere {more(unsplit)}" in OUTCOME
    plans = RUN["cases"][0]["plans"]
    resources = (
        plans["b16p2"]["registers"],
        plans["base"]["registers"],
        plans["b16p2"]["local_bytes"],
    )
    words = "({} registers for {}, {} bytes spilled)".format(*resources)
    assert words in WORDS and words in OUTCOME
    against = {case: times["v16p2"] / times["v16"] for case, times in TIMES.items()}
    many = (LONGER, HEADS_32, HEADS_64, PREFILL)
    assert f"take {less(against[case] for case in many)} less than `v16`" in WORDS
    assert f"takes {less(against[case] for case in many)} less than" in OUTCOME
    few = more(against[case] for case in (ROWS_16, ROWS_4, ROW, LONG, ROW_64))
    assert f"they take {few} more than `v16`" in WORDS
    assert f"{few} more with fewer rows" in OUTCOME
    assert abs(against[ROWS_64] - 1) < 0.01
    least = min(RATIOS[case]["v16p2"] for case in many)
    assert f"{100 * (least - 1):.0f} % more than today's kernel at the least" in WORDS
    asked = (ROWS_64, LONGER, ROWS_16, HEADS_32)
    lost = f"loses {more(RATIOS[case]['b16p2'] for case in asked)} there"
    assert f"gain 2 to 5 % on four shapes and {lost}" in WORDS and lost in OUTCOME


def test_what_is_said_of_more_heads_is_what_the_raw_file_says():
    lost = [more(RATIOS[case][arm] for arm in OF_32) for case in (HEADS_32, HEADS_64)]
    assert "lose {} with 64 rows of 32 heads".format(lost[0]) in WORDS
    assert f"and {lost[1]} with 64 of 64 heads" in WORDS
    times = sorted(RATIOS[HEADS_64][arm] for arm in OF_64)
    assert f"take {times[0]:.1f} to {times[-1]:.1f} times as long there" in WORDS
    ours = {
        case: times["s32v"] / times["b32c"]
        for case, times in TIMES.items()
        if "s32v" in times
    }
    assert f"is {100 * (1 - ours.pop(ROW_64)):.0f} % quicker with one row" in WORDS
    assert min(TIMES[ROW_64][arm] for arm in ("s32v", "b32c")) > TIMES[ROW_64]["base"]
    slower = sorted(ours.values())
    assert f"takes {slower[0]:.1f} to {slower[-1]:.1f} times as long with" in WORDS
    by_the_way = [TIMES[HEADS_32][arm] for arm in ("b32g", "base", "b32c")]
    words = "takes {:.2f} for {:.2f} with 64 rows of 32 heads".format(*by_the_way[:2])
    assert words in WORDS and f"that shape takes {by_the_way[2]:.2f}." in WORDS


def predicted() -> dict[tuple[str, str], tuple[float, float]]:
    """(case, arm) -> what was predicted and what came, of the page's table."""
    table = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(TIMES) + 1 or cells[0].startswith(("-", "arm")):
            continue
        for case, cell in zip(TIMES, cells[1:]):
            assert bool(cell) == (cells[0] in TIMES[case])
            if cell:
                before, came = cell.split(" / ")
                time = TIMES[case][cells[0]]
                shown = f"{time:,.0f}" if time >= 1000 else f"{time:.2f}"
                ratio = f" ({RATIOS[case][cells[0]]:.2f})"
                assert came == shown + ratio * (cells[0] != "base")
                number = float(before.split()[0].replace(",", ""))
                table[case, cells[0]] = number, time
    return table


def test_the_outcome_is_what_the_predictions_and_the_raw_file_say():
    table = predicted()
    assert {arm for _, arm in table} == {arm for _, arm in ROWS} - {"base-again"}
    off = {key: came / before for key, (before, came) in table.items()}

    def of(*arms, cases=TIMES):
        return [
            ratio for (case, arm), ratio in off.items() if arm in arms and case in cases
        ]

    assert max(abs(ratio - 1) for ratio in of("v16")) < 0.07
    assert "Predicted was each figure of `v16` to within 7 %" in WORDS
    assert "within 7 % of what was predicted and on the right side of base" in OUTCOME
    for case, ratios in RATIOS.items():
        before = table[case, "v16"][0] / table[case, "base"][0]
        assert (before < 1) == (ratios["v16"] < 1)
    assert max(abs(ratio - 1) for ratio in of("base", "b32c", "FlashMLA")) < 0.05
    assert f"`s32v` ({less(of('s32v'))} quicker than predicted)" in OUTCOME
    others = TIMES.keys() - {ROW_64}
    assert max(abs(ratio - 1) for ratio in of(*OF_32, cases=others)) < 0.05
    assert f"one row of 64 heads ({more(of(*OF_32, cases=[ROW_64]))} slower)" in OUTCOME
    wide = more(of(*OF_64))
    assert f"64 heads split ({wide} slower than predicted)" in WORDS
    assert f"They take {wide} more than predicted" in OUTCOME
    again = [abs(ratios["base-again"] - 1) for ratios in RATIOS.values()]
    assert f"within {100 * sorted(again)[-2]:.1f} %" in PAGE
    assert max(again) == abs(RATIOS[PREFILL]["base-again"] - 1)
    assert f"but {100 * max(again):.1f} % on 2,048 rows." in PAGE


def test_what_compiles_is_what_the_file_of_the_compiler_says():
    text = (RAW / "compiled-14-value-split.txt").read_text()
    lines = dict(re.findall(r"^([\w]+) +sm_120 (.*)$", text, re.M))
    fit = {arm for arm, line in lines.items() if "does not fit" not in line}
    assert fit & (RUN["arms"].keys() - FORMER) == {*FEW, "b32c", "s32v"}
    for arm, registers, words in (
        ("v16", 188, "`v16` has 188 registers and `s32v` 168, no spills"),
        ("s32v", 168, "`v16` has 188 registers and `s32v` 168, no spills"),
        ("v16p2", 128, "only `v16p2` fits its shared memory, one program an SM"),
    ):
        assert f"regs {registers} stack    0 LDL/STL 0/0" in lines[arm]
        assert words in WORDS
    assert "stack  176" in lines["s64v"] and "176 bytes of spills" in OUTCOME
    assert "shared 100,976" in lines["v16p2"] and "of 100,976 bytes" in OUTCOME
    assert text.count(": same instructions (") == 5 and "DIFFERENT" not in text
    right = set(re.findall(r"^(\w+): 63 runs right", text, re.M))
    assert RUN["arms"].keys() - FORMER - right == {"b32g", "b32c"}
