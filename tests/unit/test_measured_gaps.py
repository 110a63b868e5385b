"""What docs/measured.md says of gaps, selected sets and peak memory against the raw file of that run."""

from __future__ import annotations

import json
import re

import measured_gaps as gaps

PAGE = (gaps.ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())
MADE = gaps.raw()
EXPECTED = json.loads((gaps.ROOT / "ci/smoke-model/expected.json").read_text())


def table(start: str) -> list[list[str]]:
    rest = PAGE.partition(start)[2]
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [
        [cell.strip() for cell in line[1:].removesuffix("|").split("|")]
        for line in lines
    ]


def test_the_model_is_the_one_of_this_repository():
    assert MADE["checkpoint"] == EXPECTED["checkpoint"]
    assert f"at commit {gaps.commit(MADE)} with today's smoke model" in STATED


def test_the_gaps_of_logits_in_float32():
    assert table("With logits in float32") == gaps.lines(MADE)


def test_text_and_gaps_within_a_tenth_are_met_with_the_whole_series_on():
    found = {(row[0], row[1]): row for row in gaps.lines(MADE)}
    for what in ("`on` and stock", "stock asked one prompt at a time, and stock"):
        _, _, texts, near, _ = found[what, "recorded"]
        assert texts == "114 of 114" and near.startswith("560 of 560, ")
    ours = found["`on` and stock", "recorded"][3].partition(", ")[2]
    itself = near.partition(", ")[2]
    assert (
        "is **met** with the whole series on: 114 of 114 texts and 560 of 560 gaps, the "
        f"farthest {ours}; stock is {itself} from itself when asked one prompt"
        in STATED
    )
    assert "It is met with **today's model, which has no learned gate**" in STATED
    assert all(
        found["`on` and stock", "the five, 48 tokens"][at].startswith(all_of)
        for at, all_of in ((2, "5 of 5"), (3, "25 of 25"))
    )


def test_which_texts_part_past_the_end_of_the_five_answers():
    parted = [
        next(i for i, (a, b) in enumerate(zip(one["ids"], other["ids"])) if a != b)
        for one, other in zip(MADE["answers"]["on/list"], MADE["answers"]["stock/list"])
        if one["ids"] != other["ids"]
    ]
    assert parted == [47] == [len(MADE["answers"]["on/list"][0]["ids"]) - 1]
    assert "one text of `on` parts from stock's at its last token" in STATED


def test_where_one_of_the_five_parts():
    parts = {}
    for prompt, ours, stock in zip(
        MADE["list"], MADE["answers"]["on/list"], MADE["answers"]["stock/list"]
    ):
        for place, (one, other) in enumerate(zip(ours["ids"], stock["ids"])):
            if one != other:
                parts[prompt] = (place + 1, stock["gap"][place])
                break
    ((prompt, (place, gap)),) = parts.items()
    assert (
        f"that of {prompt:,} tokens has another token in the end, the {place}th, where stock's two best are {gap:.3f} apart"
    ) in STATED
    assert place == MADE["new_tokens"]


def test_the_sets_of_the_text_that_parts_are_told():
    sets = {tuple(s["arms"]): s for s in MADE["sets"] if s["prompt"] == 2047}
    assert sets["topk", "stock"]["rows_with_another_set"] == 0
    ours = sets["on", "topk"]
    assert (
        f"of its {ours['rows_over_2048']} rows over 2,048 tokens {ours['rows_with_another_set']} of `on` have another set, "
        f"by {ours['most_entries']} entries at most"
    ) in STATED
    place = MADE["list"].index(2047)
    last = {
        arm: MADE["answers"][arm][place]["ids"][47]
        for arm in MADE["answers"]
        if arm.endswith("/list")
    }
    assert last["on/list"] != last["stock/list"] == last["topk/list"]
    for alone in ("topk+attention/list", "topk+hc-pre/list"):
        assert last[alone] == last["on/list"]
    assert "the attention alone or the pre-linear alone turns that token too" in STATED


def test_how_far_stock_and_ours_are_from_the_reference():
    references = EXPECTED["references"]
    stock, ours = (
        gaps.against_the_recorded(MADE, arm, references) for arm in ("stock", "on")
    )
    assert (
        f"stock has {gaps.within(stock)} of the {len(stock)} within 0.1, the farthest {stock[-1]:.2g}, "
        f"and `on` {gaps.within(ours)}, {ours[-1]:.2g}"
    ) in STATED


def test_what_learned_gates_made_of_it():
    before = gaps.raw("learned-gates.json")
    rows = {
        (row[0], row[1]): row[3] for row in gaps.lines(before) if row[1] == "recorded"
    }
    ours = rows["`on` and stock", "recorded"]
    itself = rows["stock asked one prompt at a time, and stock", "recorded"]
    assert f"`on` and stock had {ours.replace(', ', ', the farthest ')}" in STATED
    assert f"asked one prompt at a time {itself.replace(', ', ', ')}" in STATED
    (found,) = (
        each
        for each in before["by_experts"]
        if each["arms"] == ["on/recorded", "topk/recorded"]
    )
    others = sum(sum(each["differ_by_layer"]) for each in found["prompts"])
    share = others / sum(3 * each["positions"] for each in found["prompts"])
    assert f"other experts ran in {share:.1%} of all positions and layers" in STATED


def test_the_selected_sets_of_the_five_prompts():
    assert not any(
        each["rows_with_another_set"]
        for each in gaps.sets(MADE, "topk", "stock").values()
    )
    found = gaps.sets(MADE, "on", "topk")
    assert found[300]["rows_with_another_set"] == 0
    for prompt, words in (
        (
            6000,
            "{rows_with_another_set:,} of {rows_over_2048:,} of the prompt of 6,000 tokens differ, by {median_entries:.0f} entries in the median and {most_entries} at most",
        ),
        (
            30000,
            "{rows_with_another_set:,} of {rows_over_2048:,} of that of 30,000, by {median_entries:.0f} and {most_entries}",
        ),
    ):
        assert words.format(**found[prompt]) in STATED


def test_the_peak_memory_of_a_long_prompt_is_within_its_bound():
    memory, took = MADE["memory"], {8_192: set(), 100_000: set()}
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
