"""What is compared of two answers, and when they are not alike: the rule for random weights."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from made_wheel import ROOT
from fake_server import Fake, serving
from patchset import agreement, decodelist
from patchset.agreement import Alike, Said
from patchset.askserver import Server
from patchset.errors import Exit, Failure


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_far(value):
    theirs = answer((1, {1: value, 2: -2.0}))
    ours = answer((1, {1: -1.0, 2: -2.0}))
    for pair in ((ours, theirs), (theirs, ours), (theirs, theirs)):
        assert agreement.differences(*pair) == [math.inf]
    found = Alike.of([(ours, theirs)])
    assert agreement.wrong({"short": found}) == [
        "short: 1 of 1 are off by more than 0.1, a quarter by more than shown; equal tokens "
        "before the answers part: 1 of 1"
    ]


def test_a_difference_that_is_no_number_is_never_near():
    (told,) = agreement.wrong({"short": Alike(1, (1,), (math.nan,))})
    assert told.startswith("short: 1 of 1 are off")


@pytest.mark.parametrize("what", ["output_token_logprobs", "output_top_logprobs"])
def test_a_log_probability_that_is_null_is_no_answer(what):
    fake = Fake()
    answers = fake.generated

    def generated(body):
        made = answers(body)
        for each in made:
            if what == "output_token_logprobs":
                # The token is not among the best ones, so its own is the one that is read.
                each["meta_info"][what][1] = [None, 9_999, None]
            else:
                each["meta_info"][what][1][0][0] = None
        return made

    fake.generated = generated
    with serving(fake) as url, pytest.raises(Failure) as raised:
        agreement.greedy(Server(url), [[11, 12]], 3)
    assert raised.value.code == Exit.SERVER
    assert "without tokens and log-probabilities" in raised.value.what


def test_the_ids_of_prompts_are_those_that_every_vocabulary_has(monkeypatch):
    monkeypatch.setattr(agreement, "LENGTHS", (2_000,))
    fakes = Fake(), Fake()
    with serving(fakes[0]) as url, serving(fakes[1]) as other:
        agreement.compare(Server(url), Server(other))
    (asked,) = (body["input_ids"] for path, body in fakes[0].asked)
    assert {id for ids in asked for id in ids} == set(decodelist.IDS)


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
