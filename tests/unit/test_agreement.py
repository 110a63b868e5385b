"""What is compared of two answers, and when they are not alike: the rule for random weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from made_wheel import ROOT
from patchset import agreement
from patchset.agreement import Alike, Said


def answer(*places: tuple[int, dict[int, float]]) -> Said:
    return Said(tuple(token for token, _ in places), tuple(best for _, best in places))


THEIRS = answer((1, {1: -1.0, 2: -1.1}), (3, {3: -1.0, 4: -3.0}))


@pytest.mark.parametrize(
    "ours, lead, off",
    [
        (answer((1, {1: -1.5, 2: -2.0}), (3, {3: -1.2, 4: -3.0})), 2, [0.5, 0.2]),
        # The place where they part counts, and nothing after it.
        (answer((2, {2: -0.9, 1: -1.2}), (9, {9: 0.0, 8: -9.0})), 0, [0.2]),
        (answer((1, {1: -1.0, 2: -1.1}), (4, {4: -1.0, 3: -1.25})), 1, [0.0, 0.25]),
        (answer((7, {7: -1.0, 8: -1.1}), (3, {3: -1.0, 4: -3.0})), 0, [float("inf")]),
    ],
)
def test_the_places_that_both_reach_with_the_same_text(ours, lead, off):
    assert agreement.first_difference(ours, THEIRS) == lead
    assert agreement.differences(ours, THEIRS) == pytest.approx(off)


@pytest.mark.parametrize("share, alike", [(4, True), (5, False)])
def test_less_than_a_quarter_may_be_off_however_far(share, alike):
    theirs = answer((1, {1: -1.0, 2: -2.0}))
    far = answer((3, {3: -1.0, 4: -2.0}))
    near = answer((1, {1: -1.09, 2: -2.0}))
    found = Alike.of([(far, theirs)] * share + [(near, theirs)] * (20 - share))
    assert found.parted == share and len(found.off) == 20
    lines = agreement.wrong({"short": found, "none off": Alike(1, (1,), (0.0,))})
    assert (lines == []) is alike
    if not alike:
        assert lines == [
            "short: 5 of 20 are off by more than 0.1, a quarter by more than shown; equal tokens "
            "before the answers part: 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... of 1"
        ]


def test_an_answer_goes_into_a_raw_file_and_back():
    said = answer((1, {1: -1.0, 2: -1.25}), (4, {4: -0.5, 3: -2.0}))
    assert Said.of_json(json.loads(json.dumps(said.as_json()))) == said


@pytest.mark.parametrize("verb", [("smoke",), ("bench", "steps")])
def test_the_rule_is_said_where_it_is_used(verb):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "patchset", *verb, "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "75% " in said and f"within {agreement.NEAR:g} " in said
