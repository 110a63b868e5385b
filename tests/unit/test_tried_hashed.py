"""What docs/tried.md and the pages beside it say of the smoke model without learned gates against the raw files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import measured_errors as errors
import pytest
from answer_columns import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
RAW = ROOT / "ci/checkpoints/raw/h200-smoke-model-hashed"
ANSWERS = json.loads((RAW / "answers.json").read_text())
ABLATIONS = json.loads((RAW / "ablations.json").read_text())
EXPECTED = json.loads((ROOT / "ci/smoke-model/expected.json").read_text())
SECTION = (
    (ROOT / "docs/tried.md")
    .read_text()
    .partition("\n## The smoke model, without learned gates")[2]
    .partition("\n## ")[0]
)
STATED = " ".join(SECTION.split())
BOUND = EXPECTED["tolerance"]
FORCED = json.loads(
    (ROOT / "ci/checkpoints/raw/gaps-by-rounding/forced.json").read_text()
)
ERRORS = {tag.removeprefix("b-"): said for tag, said in errors.ERRORS.items()}


def apart(pairs) -> list[float]:
    """How far gaps are apart, in order."""
    return sorted(abs(a - b) for one, other in pairs for a, b in zip(one, other))


def recorded_prompts() -> list[dict]:
    """The reckoned prompts whose answers are recorded."""
    least = min(min(each["gaps"]) for each in EXPECTED["references"])
    chat = EXPECTED["chat"]
    return [
        each
        for each in ABLATIONS["prompts"]
        if min(each["recorded"]) >= least and each["group"] not in chat
    ]


def test_the_raw_files_are_of_the_model_of_this_repository():
    assert ANSWERS["sha256"] == ABLATIONS["checkpoint"] == EXPECTED["checkpoint"]
    assert EXPECTED["checkpoint"][:8] in STATED


def test_the_recorded_answers_are_those_of_the_run():
    found = [
        (each["group"], each["tokens"], each["gaps"])
        for each in ANSWERS["bf16"]
        if each["right"]
    ]
    for each in EXPECTED["references"]:
        assert (each["group"], each["prompt_tokens"], each["gaps"]) in found


@pytest.mark.parametrize(
    "page, words",
    [
        ("README.md", "{} recorded answers of a small trained model"),
        ("ci/smoke-model/README.md", "(bfloat16, on an H200) to {} prompts"),
    ],
)
def test_how_many_answers_are_recorded(page, words):
    text = " ".join((ROOT / page).read_text().split())
    assert words.format(len(EXPECTED["references"])) in text


def test_how_it_answers():
    asked = ANSWERS["bf16"]
    for row, good in (
        ("right", lambda each: each["right"]),
        ("every gap over 0.5", lambda each: each["right"] and min(each["gaps"]) >= 0.5),
    ):
        cells = []
        for names in COLUMNS:
            of = [each for each in asked if each["group"] in names]
            cells.append(f"{sum(map(good, of))} of {len(of)}")
        assert f"| {row} | {' | '.join(cells)} |\n" in SECTION


def test_how_far_fp8_keys_move_a_gap():
    pairs = [
        (one["gaps"], other["gaps"])
        for one, other in zip(ANSWERS["bf16"], ANSWERS["fp8"])
        if one["right"] and other["right"]
    ]
    off = apart(pairs)
    near = sum(each <= 0.1 for each in off)
    assert f"{near} of {len(off)} within 0.1, the farthest {off[-1]:.2f}" in STATED
    products = [each["gaps"] for each in ANSWERS["bf16"] if each["group"] == "products"]
    least, most = min(map(min, products)), max(map(max, products))
    assert f"Gaps of the products are {least:.2f} to {most:.2f}" in STATED


def test_how_far_ours_and_stocks_attention_are_apart():
    for products in (True, False):
        off = apart(
            (each["ours"]["float32"], each["stock"]["float32"])
            for each in ABLATIONS["prompts"]
            if (each["group"] == "products") == products
        )
        assert off[-1] <= 0.1
        assert f"all {len(off)} " in STATED and f"{off[-1]:.3f}" in STATED


def test_the_right_arithmetic_passes_with_room():
    worst, farthest = 0.0, 0.0
    for group in {each["group"] for each in recorded_prompts()}:
        for arm in ("ours", "stock"):
            of = [each for each in recorded_prompts() if each["group"] == group]
            assert all(each[arm]["right"] for each in of)
            off = apart((each["recorded"], each[arm]["bf16"]) for each in of)
            worst = max(worst, off[int(len(off) * 0.75)])
            farthest = max(farthest, off[-1])
    assert worst <= 0.6 * BOUND
    assert f"three quarters of each group's within {worst:.3f}" in STATED
    assert f"the farthest of all {farthest:.2f}" in STATED


@pytest.mark.parametrize("error", ERRORS)
def test_each_error_is_found_as_stated(error):
    texts, quartiles = {}, []
    groups = dict.fromkeys(each["group"] for each in recorded_prompts())
    for group in groups:
        of = [each for each in recorded_prompts() if each["group"] == group]
        wrong = sum(not each[error]["right"] for each in of)
        if wrong:
            texts[group.removeprefix("needles ")] = (wrong, len(of))
            continue
        off = apart((each["recorded"], each[error]["bf16"]) for each in of)
        typical = off[int(len(off) * 0.75)]
        if typical > BOUND:
            quartiles.append(typical)
    (by,) = re.findall(rf"^\| {re.escape(ERRORS[error])} \| (.*) \|$", SECTION, re.M)
    parts = [errors.texts_told(texts)] if texts else []
    if quartiles:
        parts.append(
            f"gaps of {len(quartiles)} groups, off by {min(quartiles):.2f} to {max(quartiles):.2f}"
        )
    assert parts and by == "; ".join(parts)
    # Well over the bound somewhere, or other texts in more than one place.
    assert sum(wrong for wrong, _ in texts.values()) > 1 or max(quartiles) > 3 * BOUND


def test_forced_experts():
    page = " ".join((ROOT / "docs/tried.md").read_text().split())
    (said,) = re.findall(
        r"With the experts of A forced in every layer and row(.*?) - Not", page
    )
    for arm, words in (
        ("F", "F {} of {} near A, the farthest {:.2f}"),
        ("S", "S {}, {farthest:.2f}"),
        ("B", "ours {}, {farthest:.2f}"),
    ):
        off = apart(
            (each["arms"]["A"]["gaps"], each["arms"][arm]["gaps"])
            for each in FORCED["runs"]["products"]
        )
        near = sum(each <= 0.1 for each in off)
        assert words.format(near, len(off), off[-1], farthest=off[-1]) in said
    needles = apart(
        (each["arms"]["A"]["gaps"], each["arms"]["B"]["gaps"])
        for each in FORCED["runs"]["needles"]
    )
    assert needles[-1] <= 0.1
    assert (
        f"All {len(needles)} gaps of needles are near then (ours {needles[-1]:.2f} at most)"
        in said
    )
