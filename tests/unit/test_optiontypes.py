"""Numbers on a command line: what each type takes, and that every option has one of them."""

from __future__ import annotations

import argparse
import ast

import pytest

from made_wheel import ROOT
from patchset import optiontypes


@pytest.mark.parametrize("text, value", [("1", 1), ("007", 7), ("1048576", 1 << 20)])
def test_a_count(text, value):
    assert optiontypes.count(text) == value


@pytest.mark.parametrize("text", ["", "0", "00", "-1", "1.5", "1_0", "²", "٣", "x"])
def test_what_is_no_count(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no whole number above 0"):
        optiontypes.count(text)


@pytest.mark.parametrize("text", ["1048577", "9" * 5_000])
def test_a_count_that_is_too_large(text):
    with pytest.raises(argparse.ArgumentTypeError, match="at most 1,048,576"):
        optiontypes.count(text)


@pytest.mark.parametrize("text, value", [("0.5", 0.5), ("86400", 86_400.0)])
def test_seconds(text, value):
    assert optiontypes.seconds(text) == value


@pytest.mark.parametrize(
    "text, said",
    [
        ("0", "above 0"),
        ("-1", "above 0"),
        ("nan", "above 0"),
        ("-inf", "above 0"),
        ("inf", "at most 86,400"),
        ("1e12", "at most 86,400"),
        ("86400.1", "at most 86,400"),
        ("1h", "'1h' is no number of seconds"),
    ],
)
def test_what_are_no_seconds(text, said):
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        optiontypes.seconds(text)


def test_no_option_takes_any_number_at_all():
    """Read from the sources: int and float have no limit, and NaN is a float."""
    found = 0
    for path in (ROOT / "scripts" / "patchset").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "type":
                        name = ast.unparse(keyword.value)
                        assert name not in (
                            "int",
                            "float",
                        ), f"{path.name}:{node.lineno}"
                        found += name.startswith("optiontypes.")
    assert found >= 10
