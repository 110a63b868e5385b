"""What docs/measured.md says of real servers against the raw files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from patchset import references

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()


SERVER = ROOT / "ci/checkpoints/raw/server-h200"


def test_the_servers_answers_are_what_the_readme_says():
    def answers(tag):
        return json.loads((SERVER / f"res_{tag}.json").read_text())

    on, stock, broken = answers("on"), answers("stock"), answers("neg")
    for group in ("table_one", "table_list", "needles", "needles_list"):
        ours, theirs = ([item["ids"] for item in run[group]] for run in (on, stock))
        assert ours == theirs, group
    assert [item["text"] for item in on["table_one"]] == on["want"]
    assert [item["text"] for item in on["needles"]] == on["codes"]
    right = [
        item["text"] == code for item, code in zip(broken["needles"], broken["codes"])
    ]
    long = [tokens > 2_048 for tokens in broken["S"]]
    assert sum(long) == 20
    assert not any(ok for ok, is_long in zip(right, long) if is_long)
    assert all(ok for ok, is_long in zip(right, long) if not is_long)


EQUAL = ROOT / "ci/checkpoints/raw/server-h200-equal"
BROKEN = ROOT / "ci/checkpoints/raw/server-h200-broken"
EARLIER = ROOT / "ci/checkpoints/raw/server-h200-smoke"
LENGTHS = (300, 2047, 2049, 6000, 30000)
STATED = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def servers():
    return json.loads((EQUAL / "answers.json").read_text())["servers"]


@pytest.fixture(scope="module")
def sets():
    return json.loads((EQUAL / "sets.json").read_text())


@pytest.fixture(scope="module")
def moved():
    """Rows whose sets differ, with the reference's scores of the entries that do."""
    file = EQUAL / "scores-of-entries-that-differ.json"
    return json.loads(file.read_text())["rows"]


def off(ours: list[dict], theirs: list[dict]) -> list[float]:
    """How far apart the gaps of two servers' answers are, in rising order."""
    return sorted(
        abs(a - b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one["gaps"], other["gaps"], strict=True)
    )


def quarters(gaps: list[float]) -> float:
    return gaps[int(len(gaps) * references.SHARE)]


def test_the_list_of_five_is_answered_alike(servers):
    lists = [servers[tag]["list"] for tag in ("on", "topk", "stock-c", "on-c")]
    assert [one["tokens"] for one in lists[0]] == list(LENGTHS)
    for answers in lists:
        assert [len(one["ids"]) for one in answers] == [48] * 5
        assert [one["ids"] for one in answers] == [one["ids"] for one in lists[0]]
    assert "`on`, `topk` and stock give the same token ids" in STATED
    assert off(servers["topk"]["list"], servers["stock-c"]["list"])[-1] == 0
    assert off(servers["on"]["list"], servers["on-c"]["list"])[-1] == 0


def test_recorded_prompts_are_answered_alike(servers):
    on, topk = servers["on"]["recorded"], servers["topk"]["recorded"]
    assert [one["ids"] for one in on] == [one["ids"] for one in topk]
    assert (
        f"{len(on)} recorded prompts: `on` and `topk` give the recorded ids" in STATED
    )
    assert off(topk[:72], servers["stock-c"]["recorded"])[-1] == 0
    for tag in ("stock", "topk", "on"):
        assert said_in(EQUAL, tag)["exit"] == 0
        assert len(words_of(EQUAL, tag, "ok", "")) >= 14


def test_the_gaps_are_as_near_as_stated(servers, sets):
    recorded = off(servers["on"]["recorded"], servers["topk"]["recorded"])
    in_list = off(servers["on"]["list"], servers["topk"]["list"])
    near = [sum(gap <= 0.1 for gap in gaps) for gaps in (recorded, in_list)]
    assert f"{near[0]} of {len(recorded)} are within 0.1 on the recorded" in STATED
    assert f"{near[1]} of {len(in_list)} on the list, three quarters" in STATED
    assert quarters(recorded) <= 0.05 and quarters(in_list) <= 0.07
    assert "three quarters within 0.05 and 0.07." in STATED
    products = sets["products_by_experts"]
    same = [gap for gap, rows in products if rows == 0]
    other = [gap for gap, rows in products if rows]
    assert (
        f"largest is {max(same):.2f} in the {len(same)} prompts where the same experts "
        f"ran and {max(other):.2f} in the other {len(other)}" in STATED
    )
    again = [off([first], [second]) for first, second, _ in radix(servers, "stock")]
    assert f"Stock moves one by {max(gaps[-1] for gaps in again):.2f} itself" in STATED


def test_how_many_sets_differ(sets):
    found = [(each["rows"], each["rows_with_another_set"]) for each in sets["sets"]]
    # Row 2,051 is the first whose 513 entries are one too many.
    above = [max(0, rows - 2051) for rows, _ in found]
    assert found[0][1] == 0
    assert all(row[0] >= 2051 for each in sets["sets"] for row in each["differ"])
    assert f"one entry in {found[1][1]} and {found[2][1]} rows of" in STATED
    most = [each["most_entries"] for each in sets["sets"]]
    assert most[:3] == [0, 1, 1]
    assert (
        f"{found[3][1]:,} of {above[3]:,} rows of 6,000 tokens (by {most[3]}" in STATED
    )
    assert f"{found[4][1]:,} of {above[4]:,} of 30,000 ({most[4]} at most)" in STATED
    shares = [each["experts_differ"] / each["expert_rows"] for each in sets["sets"]]
    assert f"other experts ran in {max(shares):.0%}".replace("%", " %") in STATED


def test_the_entries_that_differ_are_near_the_edge(sets, moved):
    far = sorted(abs(d) for row in moved for d in row["spreads_from_512th"])
    assert f"For {len(moved)} of these rows" in STATED
    assert f"the {len(far):,} entries that only one server took" in STATED
    assert f"lie {far[len(far) // 2]:.2f} spreads" in STATED
    assert far[int(len(far) * 0.95)] <= 0.08 and "95 % within 0.08" in STATED
    assert f"the farthest {far[-1]:.2f}" in STATED
    kept = {f"list {row['prompt']}": [] for row in moved}
    for row in moved:
        kept[f"list {row['prompt']}"].append(
            [row["row"], row["only_stock"], row["only_ours"]]
        )
    of_the_run = {each["prompt"]: each for each in sets["sets"]}
    assert all(of_the_run[name]["differ"] == rows for name, rows in kept.items())
    most = max(moved, key=lambda row: len(row["only_stock"]))
    experts = of_the_run[f"list {most['prompt']}"]["experts"]
    assert [layer for row, layer, *_ in experts if row == most["row"]] == [1]
    assert f"largest difference, {len(most['only_stock'])} entries" in STATED


def radix(servers: dict, tag: str) -> list[list[dict]]:
    """Each prompt of the list, asked three times of a server with a radix cache."""
    return servers[f"{tag}-radix"]["radix"]


def test_a_second_run_from_the_radix_cache_equals_the_first(servers):
    for prompt, length in zip(radix(servers, "on"), LENGTHS, strict=True):
        first, second, third = prompt
        cached = (length - 1) // 256 * 256
        assert [one["cached"] for one in prompt] == [0, cached, cached]
        assert first["ids"] == second["ids"] == third["ids"]
        assert second["gaps"] == third["gaps"]
    assert f"({cached:,} of 30,000)" in STATED


def said_in(room: Path, tag: str) -> dict:
    """What the smoke test of that run said of a server."""
    return json.loads((room / "smoke.json").read_text())[tag]


def words_of(room: Path, tag: str, word: str, group: str) -> list[str]:
    """The lines about the groups that begin so."""
    said = said_in(room, tag)["said"]
    lines = [re.sub(r"^(\w+) +", r"\1 ", line) for line in said]
    return [line for line in lines if line.startswith(f"{word} {group}")]


def amounts(lines: list[str], pattern: str) -> list[float]:
    found = [re.search(pattern, line) for line in lines]
    return sorted(float(each[1]) for each in found if each)


@pytest.mark.parametrize("tag", ["stock", "on"])
def test_the_right_servers_pass(tag):
    assert said_in(BROKEN, tag)["exit"] == 0
    typical = [
        value
        for room in (EQUAL, BROKEN)
        for value in amounts(words_of(room, tag, "ok", ""), r"gaps within (\S+)$")
    ]
    assert len(typical) == 16 and max(typical) <= 0.16
    assert "three quarters of each group's gaps are within 0.16" in STATED


@pytest.mark.parametrize(
    "room, tag",
    [(BROKEN, "b-sign"), (BROKEN, "b-page"), (EARLIER, "b-entry")],
)
def test_errors_that_are_named_by_their_texts(room, tag):
    assert said_in(room, tag)["exit"] == 6
    failed = words_of(room, tag, "FAILED", "needles")
    differ = [line for line in failed if "answers differ" in line]
    names = {re.match(r"FAILED needles (\w+)", line)[1] for line in differ}
    assert names >= {"2500", "4000", "6000", "early"}
    assert not names & {"600", "1500"}


def test_errors_that_are_named_by_their_gaps():
    off_by = r"off by (\S+) or more"
    scale = amounts(words_of(BROKEN, "b-scale", "FAILED", ""), off_by)
    sink = amounts(words_of(BROKEN, "b-sink", "FAILED", "products"), off_by)
    assert [said_in(BROKEN, tag)["exit"] for tag in ("b-scale", "b-sink")] == [6, 6]
    assert len(scale) == 8
    stated = f"all eight groups, off by {scale[0]:.2f} to {scale[-1]:.2f} where 0.3"
    assert stated in STATED
    assert f"gaps of the products, off by {sink[0]:.2f}" in STATED


def test_what_passes_and_proves_nothing():
    assert said_in(BROKEN, "b-entry")["exit"] == 0
    assert "`b-entry` there, passes and proves nothing" in STATED
