"""What docs/measured.md says of the last round of smoke tests, made from its raw file."""

from __future__ import annotations

import json
import re
from pathlib import Path

RAW = Path(__file__).resolve().parents[2] / "ci/checkpoints/raw/server-h200-gate"
MADE = json.loads((RAW / "smoke.json").read_text())
# A later run, of the servers with random weights first.
_LATER = RAW / "gate.json"
RANDOM = json.loads(_LATER.read_text()) if _LATER.exists() else MADE
SERVERS = {
    "slice-ours": "ours",
    "slice-stock": "stock, upstream's own top-k",
    "slice-wrong-scale": "wrong on purpose: scale",
    "slice-wrong-sign": "wrong on purpose: sign",
    "slice-wrong-sink": "wrong on purpose: no sink",
}


def exits() -> dict[str, int]:
    """The exit code of each smoke test."""
    return {each["tag"]: each["exit"] for each in MADE["commands"]}


def gate() -> list[list[str]]:
    """The rows of the table about random weights."""
    said = {each["tag"]: each for each in RANDOM["commands"]}
    return [
        [shown, *_outcome(said[tag])] for tag, shown in SERVERS.items() if tag in said
    ]


def _outcome(command: dict) -> tuple[str, str]:
    """An exit code and what was said; the job stops a command at its own time limit."""
    if command["exit"] == "timeout":
        told = f"stopped after {command['seconds']:.0f} s at the job's time limit, not judged"
        return "none", told
    return str(command["exit"]), _agreement(command["stderr"])


def _agreement(text: str) -> str:
    passed = re.search(r"agreement +\S+ s  (.*) \(random", text)
    if passed:
        return passed[1]
    lengths = re.search(r"for (\d of \d lengths) of prompts", text)
    rows = re.findall(
        r"prompts of (\d+) tokens: (\d+) of (\d+) .*?, a quarter by ([^;]+);", text
    )
    told = "; ".join(
        f"{int(tokens):,} tokens: {off} of {of} places off, a quarter by {by}"
        for tokens, off, of, by in rows
    )
    return f"{lengths[1]}: {told}" if lengths else "another check failed"


def compared(one: str, other: str) -> str | None:
    """How two servers answered the list of five prompts."""
    for row in MADE["list"]["compared"]:
        if row["arms"] == [one, other]:
            equal = sum(row["ids_equal"])
            gaps = f"{row['within_0.1']} of {row['gaps']} gaps within 0.1"
            farthest = row["largest"] or 0
            return f"ids of {equal} of 5 equal, {gaps}, the farthest {farthest:.3g}"
    return None


PAIRS = {
    ("topk", "stock"): "`topk` and stock",
    ("radix", "topk"): "`on` and `topk`",
    ("radix", "stock"): "`on` and stock",
    ("radix again", "radix"): "`on` asked again, from its radix cache",
}


def lists() -> list[list[str]]:
    """The rows of the table about the list."""
    return [[shown, told] for pair, shown in PAIRS.items() if (told := compared(*pair))]
