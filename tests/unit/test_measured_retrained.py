"""What docs/measured.md says of the retrained smoke model's servers against the raw files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import measured_errors as errors
import pytest

ROOT = Path(__file__).resolve().parents[2]
STATED = " ".join((ROOT / "docs/measured.md").read_text().split())
RAW = ROOT / "ci/checkpoints/raw/server-h200-retrained"
SMOKE = json.loads((RAW / "smoke.json").read_text())
ANSWERS = json.loads((RAW / "answers.json").read_text())
EXPECTED = json.loads((RAW / "recorded.json").read_text())
# From where this run is told.
OF_IT = STATED.partition("with the smoke model fdf6bcfa and its bound of")[2]
ERRORS = errors.ERRORS
RIGHT = ("stock", "on", "radix")


def passed(tag: str, group: str) -> list[str]:
    return errors.passed({"smoke": SMOKE}, tag, group)


def test_the_checkpoint_is_the_one_that_is_stated():
    assert ANSWERS["checkpoint"] == EXPECTED["checkpoint"]
    named = f"smoke model {EXPECTED['checkpoint'][:8]} and its bound of {EXPECTED['tolerance']} ("
    assert named in STATED
    assert ANSWERS["groups"] == [each["group"] for each in EXPECTED["references"]]


def test_every_server_of_the_series_ran_the_commit_that_is_stated():
    for tag in {*RIGHT, *ERRORS} - {"stock"}:
        assert any("23 of 23 patches" in line for line in passed(tag, "build")), tag
        (commit,) = {line.split()[-1] for line in passed(tag, "build")}
        assert f"the 23 patches of commit {commit}). Stock" in STATED


def test_the_answers_of_on_are_the_recorded_ones():
    recorded = [r for r in EXPECTED["references"] if r["prompt_tokens"] < 7_000]
    ours = ANSWERS["recorded_under_7000_tokens"]["on"]
    assert [each["ids"] for each in ours] == [each["ids"] for each in recorded]


@pytest.mark.parametrize("tag", RIGHT)
def test_the_right_servers_pass(tag):
    assert SMOKE[tag]["exit"] == 0
    texts = [
        tuple(map(int, re.search(r"(\d+) of (\d+) texts", line).groups()))
        for line in passed(tag, "needles")
    ]
    right, asked = map(sum, zip(*texts))
    (products,) = passed(tag, "products")
    assert " 72 of 72 texts" in products
    (long,) = passed(tag, "needles to 30000")
    assert " 4 of 4 texts" in long
    assert f"72 of 72 products, {right} of {asked} needles, of which 4 of" in STATED
    assert len(passed(tag, "reasoning")) == len(passed(tag, "tool call")) == 1
    assert ", thinking apart from content, a tool call;" in STATED


def test_the_gaps_of_the_right_servers():
    assert set(SMOKE) == {*RIGHT, *ERRORS}
    lines = [line for tag in RIGHT for line in passed(tag, "")]
    gaps = re.findall(r"gaps within (\S+)", "\n".join(lines))
    assert len(gaps) == 10 * len(RIGHT)
    assert f"gaps are within {max(map(float, gaps)):.2f} there" in STATED


def test_what_did_not_end_is_said():
    run = (RAW / "run.txt").read_text()
    assert "topk smoke did not end in time" in run
    assert "radix smoke did not end in time" in run
    assert "'radix-again': None, 'topk': None" in run
    assert "the smoke test of `topk` and a second one of the" in STATED
    assert list(ANSWERS["list"]) == ["topk"]
    assert "the sets that `on` selects were not asked" in STATED


@pytest.mark.parametrize("tag", ERRORS)
def test_each_error_is_named_as_stated(tag):
    (cells,) = re.findall(rf"\| {ERRORS[tag]} \| (\w+) \| ([^|]*) \|", OF_IT)
    named, by = cells
    assert (named, SMOKE[tag]["exit"]) == ("fails", 6)
    failed = [
        re.match("FAILED +(?:needles )?(.*?)  +(.*)", line).groups()
        for line in SMOKE[tag]["said"]
        if line.startswith("FAILED") and "at once" not in line
    ]
    texts = {
        group: tuple(map(int, found.groups()))
        for group, said in failed
        if (found := re.search(r"(\d+) of (\d+) answers differ", said))
    }
    parts = []
    if texts:
        differ, asked = map(sum, zip(*texts.values()))
        *others, last = texts
        groups = f"{', '.join(others)} and {last}"
        parts.append(f"{differ} of {asked} texts ({groups})")
    gaps = sorted(
        (float(found[1]), group)
        for group, said in failed
        if (found := re.search(r"off by (\S+) or more", said))
    )
    if len(gaps) == 1:
        ((gap, group),) = gaps
        parts.append(f"gaps of the {group}, off by {gap:.2f}")
    elif gaps:
        spread = f"{gaps[0][0]:.2f} to {gaps[-1][0]:.2f}"
        parts.append(f"gaps of {len(gaps)} groups, off by {spread}")
    assert by.removesuffix(" where 0.3 may be") == "; ".join(parts)
    assert len(texts) + len(gaps) == len(failed) > 0


def test_reasoning_and_the_tool_call_name_no_error():
    for tag in ERRORS:
        assert len(passed(tag, "reasoning")) == len(passed(tag, "tool call")) == 1
    assert "Reasoning and the tool call name none of them" in STATED
