"""What docs/measured.md says of gaps, experts, selected sets and peak memory against the raw file of that run."""

from __future__ import annotations

import json
import re
from pathlib import Path

# The token that ends an answer.
END = 1
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())
GAPS = json.loads((ROOT / "ci/checkpoints/raw/server-h200-gaps/gaps.json").read_text())
# Of the smoke model that was asked there.
REFERENCES = json.loads(
    (ROOT / "ci/checkpoints/raw/server-h200-retrained/recorded.json").read_text()
)


def table(start: str) -> list[list[str]]:
    rest = PAGE.partition(start)[2]
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def near(pairs) -> list[float]:
    """How far gaps are apart, in order, of places up to which both texts are equal."""
    found = []
    for one, other in pairs:
        for a, b, u, v in zip(one["ids"], other["ids"], one["gap"], other["gap"]):
            if a != b:
                break
            found.append(abs(u - v))
    return sorted(found)


def test_the_gaps_of_logits_in_float32():
    answers = GAPS["answers"]
    rows = []
    for arm in ("topk", "on"):
        pairs = list(zip(answers[f"{arm}/list"], answers["stock/list"]))
        equal = sum(a["ids"] == b["ids"] for a, b in pairs)
        ends = [a["ids"].index(END) + 1 for a, _ in pairs]
        cut = lambda part: near(
            [
                [{key: row[key][part(end)] for key in ("ids", "gap")} for row in pair]
                for pair, end in zip(pairs, ends)
            ]
        )
        within = [cut(lambda end: slice(end)), cut(lambda end: slice(end, None))]
        rows.append(
            [f"`{arm}` and stock", "the five, 48 tokens", f"{equal} of 5"]
            + [said(each) for each in within]
        )
    for arm in ("topk", "on"):
        pairs = list(zip(answers[f"{arm}/recorded"], answers["stock/recorded"]))
        equal = sum(a["ids"] == b["ids"] for a, b in pairs)
        rows.append([f"`{arm}` and stock", "recorded", f"{equal} of 117"])
        rows[-1] += [said(near(pairs)), ""]
    for one, other, what in (
        ("topk+attention", "topk", "`topk` with the attention, and `topk`"),
        ("topk+hc-pre", "topk", "`topk` with the pre-linear, and `topk`"),
        ("stock alone", "stock", "stock asked one prompt at a time, and stock"),
    ):
        pairs = list(zip(answers[f"{one}/recorded"], answers[f"{other}/recorded"]))
        equal = sum(a["ids"] == b["ids"] for a, b in pairs)
        rows.append([what, "recorded", f"{equal} of 117", said(near(pairs)), ""])
    assert table("With logits in float32") == rows


def said(apart: list[float]) -> str:
    within = sum(each <= 0.1 for each in apart)
    return f"{within} of {len(apart)}, {apart[-1]:.2g}"


def test_how_far_stock_and_ours_are_from_the_reference():
    references = [
        {"ids": each["ids"], "gap": each["gaps"]} for each in REFERENCES["references"]
    ]
    groups = [each["group"] for each in REFERENCES["references"]]
    on, stock = (GAPS["answers"][f"{arm}/recorded"] for arm in ("on", "stock"))
    counts = [sum(a <= 0.1 for a in near(zip(arm, references))) for arm in (stock, on)]
    assert "stock has {} of the 575 within 0.1 and `on` {}".format(*counts) in STATED
    assert f"own farthest is {near(zip(stock, references))[-1]:.1f}" in STATED
    for products in (True, False):
        apart = near(
            pair
            for pair, group in zip(zip(on, stock), groups)
            if (group == "products") == products
        )
        within = sum(each <= 0.1 for each in apart)
        assert re.search(f"{within} of {len(apart)}\\b", STATED)


def test_the_experts_that_ran_elsewhere():
    (found,) = (
        each
        for each in GAPS["by_experts"]
        if each["arms"] == ["on/recorded", "topk/recorded"]
    )
    prompts = found["prompts"]
    assert len(prompts) == 117 and {each["first"] for each in prompts} == {1}
    others = sum(sum(each["differ_by_layer"]) for each in prompts)
    share = others / sum(3 * each["positions"] for each in prompts)
    assert f"Other experts ran in {share:.1%} of all positions and layers" in STATED
    # So the second token is the mark of the user's turn.
    start = "<｜begin▁of▁sentence｜><｜User｜>"
    today = json.loads((ROOT / "ci/smoke-model/expected.json").read_text())
    assert all(each["prompt"].startswith(start) for each in today["references"])
    (itself,) = (
        each
        for each in GAPS["compared"]
        if each["arms"] == ["stock alone/recorded", "stock/recorded"]
    )
    farthest = itself["answer"]["largest"]
    assert f"moves a gap by up to {farthest:.1f} itself" in STATED


def test_the_selected_sets_of_the_five_prompts():
    def sets(one: str, other: str) -> dict[int, dict]:
        return {
            each["prompt"]: each
            for each in GAPS["sets"]
            if each["arms"] == [one, other]
        }

    assert not any(
        each["rows_with_another_set"] for each in sets("topk", "stock").values()
    )
    found = sets("on", "topk")
    assert found[300]["rows_with_another_set"] == 0
    for prompt in (2047, 2049):
        rows = found[prompt]["rows_over_2048"]
        assert found[prompt]["rows_with_another_set"] <= rows
    some, many = found[6000], found[30000]
    assert (
        "{rows_with_another_set:,} of {rows_over_2048:,} of the prompt of 6,000 tokens "
        "differ, by {median_entries:.0f} entries".format(**some) in STATED
    )
    assert (
        "{rows_with_another_set:,} of {rows_over_2048:,} of that of 30,000, by "
        "{median_entries:.0f} (".format(**many) in STATED
    )
    most = some["most_entries"], many["most_entries"]
    assert "the most of a row are {} and all {}:".format(*most) in STATED


def test_the_peak_memory_of_a_long_prompt_is_within_its_bound():
    memory, took = GAPS["memory"], {8_192: set(), 100_000: set()}
    for each in memory["readings"]:
        assert each["given"] == each["tokens"]
        took[each["tokens"]].add(each["more"])
    # Each reading of one length is the same to the byte.
    (short,), (long,) = took.values()
    assert len(memory["readings"]) == 6
    bound = short + 512 * 2**20 + 24 * 8_192 * -(-100_000 // 256)
    assert long <= bound == memory["bound"]
    stated = [f"{value / 2**20:.1f}" for value in (long, short, bound)]
    assert "{} MiB for 100,000 tokens and {} for 8,192, in 3".format(*stated) in STATED
    assert f"and a page) is {stated[2]}." in STATED
