"""What options of a command line take: a value, or an error that says why it can't be one. Numbers have a most."""

from __future__ import annotations

import argparse

# Longer than anything waits here, and far below what a socket's time-out can hold.
MOST_SECONDS = 86_400.0
# As many as the longest text that the model takes has tokens.
MOST_COUNT = 1 << 20


def count(text: str) -> int:
    """A whole number from 1 to MOST_COUNT. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    # Python refuses to read thousands of digits.
    if len(text.lstrip("0")) > len(str(MOST_COUNT)) or int(text) > MOST_COUNT:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_COUNT:,}")
    return int(text)


def seconds(text: str) -> float:
    """A time above 0, of a day at most. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    if value > MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"must be at most {MOST_SECONDS:,.0f}, which is a day"
        )
    return value
