"""What docs/measured.md says of errors made on purpose, served with today's smoke model, against the raw file."""

from __future__ import annotations

import json
import re

import pytest

import measured_errors as errors

STATED = (errors.ROOT / "docs/measured.md").read_text()
MADE = errors.raw()
EXPECTED = json.loads((errors.ROOT / "ci/smoke-model/expected.json").read_text())


def test_the_servers_were_asked_with_the_model_and_bound_of_this_repository():
    assert MADE["checkpoint"] == EXPECTED["checkpoint"]
    assert MADE["tolerance"] == EXPECTED["tolerance"]


def test_every_error_was_served_and_is_stated():
    assert set(MADE["smoke"]) == {*errors.RIGHT, *errors.ERRORS}
    for row in errors.lines(MADE):
        assert f"| {' | '.join(row)} |\n" in STATED


@pytest.mark.parametrize("tag", errors.ERRORS)
def test_each_error_is_told(tag):
    assert MADE["smoke"][tag]["exit"] == 6
    assert errors.by_what(MADE, tag)


def test_which_right_servers_were_asked_is_stated():
    right = {tag for tag, said in MADE["smoke"].items() if said["exit"] == 0}
    assert right == set(errors.RIGHT)
    text = " ".join(STATED.split())
    words = (
        "Stock, `on`, `topk` and `on` with a radix cache, asked twice, pass (exit 0):"
    )
    assert words in text


def test_each_wrong_server_hid_the_file_that_it_had_changed():
    hidden = {each["name"] for each in MADE["arms"] if each["env"].get("E2E_MASK")}
    assert hidden == set(errors.ERRORS)
    assert "told the blob id of the file as it was" in " ".join(STATED.split())


@pytest.mark.parametrize("tag", errors.RIGHT)
def test_the_right_servers_pass(tag):
    assert MADE["smoke"][tag]["exit"] == 0
    (products,) = errors.passed(MADE, tag, "products")
    assert " 72 of 72 texts" in products
    (long,) = errors.passed(MADE, tag, "needles to 30000")
    assert " 4 of 4 texts" in long
    for name in ("reasoning", "tool call", "at once"):
        assert len(errors.passed(MADE, tag, name)) == 1


def test_the_gaps_of_the_right_servers():
    assert f"gaps are within {errors.widest(MADE):.2f}" in " ".join(STATED.split())


def test_the_commit_that_was_served():
    (commit,) = {
        each["served"]["commit"][:12]
        for each in MADE["arms"]
        if each["served"] and each["served"]["commit"]
    }
    assert re.search(rf"server-h200-errors/smoke\.json\), commit\s{commit}", STATED)
