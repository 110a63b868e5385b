"""What docs/tried.md says of gaps by the attention's rounding against the gaps of each prompt in the raw file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RAW = json.loads((ROOT / "ci/checkpoints/raw/gaps-by-rounding/gaps.json").read_text())
PAGE = (ROOT / "docs/tried.md").read_text()
SECTION = PAGE.partition("\n## Gaps by the attention's rounding")[2].partition("\n## ")[
    0
]
ORDER = ", halves in another order"


def rows() -> dict[str, list[str]]:
    """The table's cells after the name of the arm, by the arm."""
    lines = re.findall(r"^\| \**(\w+): (.*) \|$", SECTION, re.M)
    return {arm: rest.split(" | ")[1:] for arm, rest in lines}


def apart(run: str, arm: str, other: str) -> list[float]:
    """How far the gaps of two arms are apart; nothing where one of them did not run."""
    pairs = (
        zip(arms[arm]["gaps"], arms[other]["gaps"])
        for arms in (
            each["arms"] for each in RAW["runs"].get(run, {"prompts": []})["prompts"]
        )
        if arm in arms and other in arms
    )
    return [abs(a - b) for pair in pairs for a, b in pair]


def within(run: str, arm: str, other: str) -> int | None:
    found = apart(run, arm, other) or apart(run + ORDER, arm, other)
    return sum(gap <= 0.1 for gap in found) if found else None


def counts(cell: str) -> list[int]:
    return [
        int(number.split(" of ")[0]) for number in cell.split(", ") if number != "-"
    ]


@pytest.mark.parametrize("arm", rows())
def test_gaps_near_stocks_and_near_the_exact_ones(arm):
    narrow, wide, needles, farthest, *_, near, of_needles = rows()[arm]
    runs = "products", "products, float32 gate", "needles"
    found = [within(run, arm, "A") for run in runs]
    stated = [counts(cell) for cell in (narrow, wide, needles)]
    assert stated == [[] if count is None else [count] for count in found]
    both = [
        max(apart(run, arm, "A") or apart(run + ORDER, arm, "A"), default=0)
        for run in runs[:2]
    ]
    assert float(farthest) == float(f"{max(both):.2g}")
    exact = [within(run, arm, "S") for run in runs]
    assert counts(near) == [count for count in exact[:2] if count is not None]
    assert counts(of_needles) == [count for count in exact[2:] if count is not None]


def test_every_answer_is_right_in_every_arm():
    assert "all answers are right in every arm" in SECTION
    for run in RAW["runs"].values():
        for prompt in run["prompts"]:
            assert all(arm["text"] for arm in prompt["arms"].values())


def test_how_often_other_experts_ran_and_how_far_outputs_are_off():
    for arm, cells in rows().items():
        differ, others = cells[4], cells[5]
        for run in ("products", "products" + ORDER):
            ran = [
                sum(prompt["arms"][arm]["other_experts"])
                for prompt in RAW["runs"][run]["prompts"]
                if arm in prompt["arms"]
            ]
            if ran:
                assert int(others) == sum(ran), arm
                break
        layers = RAW["same_inputs"]["arms"].get(arm)
        if layers and differ not in ("-", "0"):
            for said, part in zip(differ.split(", "), ("nope", "rope")):
                mine = [each for name, each in layers.items() if part in name]
                share = sum(each["differ"] for each in mine) / sum(
                    each["outputs"] for each in mine
                )
                digits = len(said.partition(".")[2].removesuffix(" %"))
                assert f"{share * 100:.{digits}f} %" == said, (arm, part)
