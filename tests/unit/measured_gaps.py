"""What docs/measured.md says of texts, gaps, selected sets and peak memory, made from the raw file of that run."""

from __future__ import annotations

import json
from pathlib import Path

# The token that ends an answer.
END = 1
ROOT = Path(__file__).resolve().parents[2]
RAW = ROOT / "ci/checkpoints/raw/server-h200-gaps"
PAIRS = (
    ("topk", "stock", "`topk` and stock"),
    ("on", "stock", "`on` and stock"),
    ("topk+attention", "topk", "`topk` with the attention, and `topk`"),
    ("topk+hc-pre", "topk", "`topk` with the pre-linear, and `topk`"),
    ("stock alone", "stock", "stock asked one prompt at a time, and stock"),
)


def raw(name: str = "gaps.json") -> dict:
    """A raw file of those servers."""
    return json.loads((RAW / name).read_text())


def near(pairs) -> list[float]:
    """How far gaps are apart, in order, of places up to which both texts are equal."""
    found = []
    for one, other in pairs:
        for a, b, u, v in zip(one["ids"], other["ids"], one["gap"], other["gap"]):
            if a != b:
                break
            found.append(abs(u - v))
    return sorted(found)


def within(apart: list[float]) -> int:
    """How many of these are within the 0.1 of issue and bound."""
    return sum(each <= 0.1 for each in apart)


def said(apart: list[float]) -> str:
    """Of how many gaps so many are within 0.1, and the farthest."""
    return f"{within(apart)} of {len(apart)}, {apart[-1]:.2g}"


def lines(made: dict) -> list[list[str]]:
    """The table's rows: the five prompts and all recorded ones."""
    answers, rows = made["answers"], []
    for one, other, what in PAIRS:
        for kind in ("list", "recorded"):
            if (kind == "list" and other != "stock") or f"{one}/{kind}" not in answers:
                continue
            pairs = list(zip(answers[f"{one}/{kind}"], answers[f"{other}/{kind}"]))
            ends = [a["ids"].index(END) + 1 for a, _ in pairs]
            upto = _cut(pairs, [slice(end) for end in ends])
            past = _past(pairs, ends) if kind == "list" else []
            equal = sum(
                a["ids"][:end] == b["ids"][:end] for (a, b), end in zip(pairs, ends)
            )
            prompts = "the five, 48 tokens" if kind == "list" else "recorded"
            rows.append([what, prompts, f"{equal} of {len(pairs)}", said(near(upto))])
            rows[-1].append(said(near(past)) if past else "")
    return rows


def _past(pairs, ends):
    """What comes behind an answer, where the answers are equal."""
    kept = [
        (pair, slice(end, None))
        for pair, end in zip(pairs, ends)
        if pair[0]["ids"][:end] == pair[1]["ids"][:end]
    ]
    return _cut([pair for pair, _ in kept], [part for _, part in kept])


def _cut(pairs, parts):
    return [
        [{key: row[key][part] for key in ("ids", "gap")} for row in pair]
        for pair, part in zip(pairs, parts)
    ]


def against_the_recorded(made: dict, arm: str, references: list[dict]) -> list[float]:
    """How far an arm's gaps are from the reference's."""
    recorded = [{"ids": each["ids"], "gap": each["gaps"]} for each in references]
    return near(zip(made["answers"][f"{arm}/recorded"], recorded))


def sets(made: dict, one: str, other: str) -> dict[int, dict]:
    """The comparison of two servers' selected sets, by the prompt's length."""
    return {
        each["prompt"]: each for each in made["sets"] if each["arms"] == [one, other]
    }


def commit(made: dict) -> str:
    """The commit of every patched server there."""
    (found,) = {
        each["served"]["commit"][:12]
        for each in made["arms"]
        if each["served"] and each["served"]["commit"]
    }
    return found
