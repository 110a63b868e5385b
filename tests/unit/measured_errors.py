"""What docs/measured.md says of errors made on purpose, made from what smoke.sh said of their servers."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RAW = ROOT / "ci/checkpoints/raw/server-h200-errors"
ERRORS = {
    "b-sign": "sign of the scores",
    "b-page": "pages of the scores shifted by one",
    "b-entry": "each entry replaced by the next of its page",
    "b-xor": "each entry exchanged with its neighbour",
    "b-scale": "softmax scale x1.25",
    "b-sink": "attention sink left out",
}
RIGHT = ("stock", "on", "topk", "radix", "radix again")


def raw() -> dict:
    """The raw file of those servers."""
    return json.loads((RAW / "smoke.json").read_text())


def passed(made: dict, tag: str, group: str) -> list[str]:
    """What a server's smoke test said of the checks that passed and begin so."""
    found = (re.match(rf"ok +({group}.*)", line) for line in made["smoke"][tag]["said"])
    return [line[1] for line in found if line]


def texts_told(texts: dict[str, tuple[int, int]]) -> str:
    """Texts that differ: by group how many, and of how many."""
    differ, asked = map(sum, zip(*texts.values()))
    *others, last = texts
    names = f"{', '.join(others)} and {last}" if others else last
    return f"{differ} of {asked} texts ({names})"


def by_what(made: dict, tag: str) -> str:
    """By which texts and gaps a server's smoke test failed."""
    failed = [
        re.match("FAILED +(?:needles )?(.*?)  +(.*)", line).groups()
        for line in made["smoke"][tag]["said"]
        if line.startswith("FAILED") and "at once" not in line
    ]
    texts, gaps = {}, []
    for group, said in failed:
        if found := re.search(r"(\d+) of (\d+) answers differ", said):
            texts[group] = tuple(map(int, found.groups()))
        elif found := re.search(r"off by (\S+) or more", said):
            gaps.append(float(found[1]))
    parts = []
    if texts:
        parts.append(texts_told(texts))
    if gaps:
        groups = "1 group" if len(gaps) == 1 else f"{len(gaps)} groups"
        spread = f"{min(gaps):.2f}" + (
            f" to {max(gaps):.2f}" if max(gaps) > min(gaps) else ""
        )
        parts.append(f"gaps of {groups}, off by {spread}")
    rest = len(failed) - len(texts) - len(gaps)
    return "; ".join([*parts, *([f"{rest} more checks"] if rest else [])])


def lines(made: dict) -> list[list[str]]:
    """The table's rows."""
    return [
        [
            what,
            {6: "fails", 0: "**passes**"}[made["smoke"][tag]["exit"]],
            by_what(made, tag),
        ]
        for tag, what in ERRORS.items()
        if tag in made["smoke"]
    ]


def widest(made: dict) -> float:
    """Within how much three quarters of each group's gaps are on the right servers."""
    said = "\n".join(line for tag in RIGHT for line in passed(made, tag, ""))
    return max(float(each) for each in re.findall(r"gaps within (\d+\.\d+)", said))
