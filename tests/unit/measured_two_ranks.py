"""The table of docs/measured.md about whole servers of two ranks, made from their raw files."""

from __future__ import annotations

import json
from pathlib import Path

RAW = Path(__file__).resolve().parents[2] / "ci/checkpoints/raw/server-h200-tp2"
# In the order in which they ran.
RUNS = ("trial", "final", "one-split")
WEIGHTS = {"slice": "four layers, random", "smoke": "smoke model"}
KERNELS = {
    "upstream": "upstream's Triton",
    "ours": "ours",
    "ours-one-split": "ours, one split",
}


def raw(run: str) -> dict:
    """One raw file of the runs."""
    return json.loads((RAW / f"{run}.json").read_text())


def runs() -> list[str]:
    """The runs of which there is a raw file."""
    return [run for run in RUNS if (RAW / f"{run}.json").exists()]


def pairs(made: dict) -> dict[tuple[str, str], list[dict]]:
    """The comparisons of padded with local heads, by model and kernel: a row for each length of prompts."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in made["equal"]:
        one, other = (arm.rsplit("-", 1) for arm in row["arms"])
        if one[0] == other[0] and (one[1], other[1]) == ("padded", "local"):
            model, kernel = one[0].split("-", 1)
            found.setdefault((model, kernel), []).append(row)
    return found


def lines() -> list[list[str]]:
    """The table's rows."""
    made = []
    for run in runs():
        for (model, kernel), rows in pairs(raw(run)).items():
            texts = sum(row["rows"] for row in rows)
            apart = max(row["largest_logprob_difference"] for row in rows)
            made.append(
                [
                    f"[{run}](../ci/checkpoints/raw/server-h200-tp2/{run}.json)",
                    WEIGHTS[model],
                    KERNELS[kernel],
                    ", ".join(f"{row['prompt']:,}" for row in rows),
                    f"{sum(row['ids_equal'] for row in rows)} of {texts}",
                    f"{sum(row['bits_equal'] for row in rows)} of {texts}",
                    f"{apart:.3g}",
                ]
            )
    return made
