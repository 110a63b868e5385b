"""What docs/measured.md says of the last round of smoke tests against its raw file."""

from __future__ import annotations

import re
from pathlib import Path

import measured_gate as gate

# The token that ends an answer.
END = 1
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())


def table(start: str) -> list[list[str]]:
    rest = PAGE.partition(start)[2]
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_gate_for_random_weights():
    start = "The rule on slices of four layers with random weights"
    assert table(start) == gate.gate()
    assert {each["tag"]: each["exit"] for each in gate.RANDOM["commands"]} == {
        "slice-ours": 0,
        "slice-stock": 0,
        "slice-wrong-scale": 6,
        "slice-wrong-sign": 6,
        "slice-wrong-sink": 0,
        "radix": 0,
    }
    assert gate.RANDOM["reference_asked_once"]
    (ours,) = (row for row in gate.gate() if row[0] == "ours")
    assert ours[2].endswith("15 of 16 answers parted")
    assert "15 of its 16 answers part somewhere" in STATED
    assert "**A missing attention sink passes**" in STATED


def test_the_list_of_five_prompts():
    assert table("The five prompts once more") == gate.lists()


def test_where_a_text_of_the_list_parts():
    answers = gate.MADE["list"]["answers"]
    parted = {
        prompt: next(
            at for at, (a, b) in enumerate(zip(one["ids"], other["ids"])) if a != b
        )
        for prompt, one, other in zip(
            gate.MADE["list"]["prompts"], answers["radix"], answers["topk"]
        )
        if one["ids"] != other["ids"]
    }
    assert parted == {2047: 29}
    on, topk = (answers[name][1] for name in ("radix", "topk"))
    past = 29 - on["ids"].index(END)
    assert f"parts at its 30th token, {past} past the end of the answer" in STATED
    assert on["gap"][29] == 0 and topk["gap"][29] == 0.0625
    assert "`topk` one 0.0625 ahead" in STATED


def test_the_gaps_of_the_list():
    answers = gate.MADE["list"]["answers"]
    both = list(zip(answers["radix"], answers["topk"]))
    assert all(one["ids"].index(END) == 4 for one, _ in both)
    assert all(one["ids"][:5] == other["ids"][:5] for one, other in both)
    far = max(
        abs(a - b) for one, other in both for a, b in zip(one["gap"][:5], other["gap"])
    )
    assert round(far, 3) == 0.125 and "gaps differ by 0.125 at most" in STATED
    (row,) = (
        each
        for each in gate.MADE["list"]["compared"]
        if each["arms"] == ["radix", "topk"]
    )
    share, within = row["within_0.1"] / row["gaps"], row["three_quarters_within"]
    assert f"{share:.0%} of the gaps are within 0.1" in STATED
    assert f"three quarters within {within:.3f}: less than" in STATED


def test_the_smoke_tests_that_had_not_ended():
    shown = {
        line.split("`")[1]: line.rsplit("exit ", 1)[1].rstrip(".;,")
        for line in re.findall(r"`[a-z ]+`: exit \d", PAGE)
    }
    assert shown == {
        tag: str(code)
        for tag, code in gate.exits().items()
        if not tag.startswith("slice-")
    }
