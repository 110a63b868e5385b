"""Raw files of kernels: the times of each case's arms."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arms_of(raw: str) -> dict[str, dict[str, float]]:
    """Median times of each case's arms, of the first row where a case has two."""
    rows = json.loads((ROOT / "ci/checkpoints/raw" / raw).read_text())
    rows = rows["cases"] if isinstance(rows, dict) else rows
    cases: dict[str, dict[str, float]] = {}
    for row in rows:
        if "us" in row:
            times = {arm: samples[0] for arm, samples in row["us"].items()}
            cases.setdefault(row["case"], times)
    return cases


def medians(row: dict, *arms: str) -> list[float]:
    """Median times of arms of a case that `bench.sh kernel` wrote."""
    return [row["timings"][arm]["median"] for arm in arms]


LOGITS_TUNING = arms_of("h200-kernels/tuning-one-page-shares.json")


def table_line(stated: str, times: dict[str, float], arms: str) -> str:
    """A line of a Markdown table: what is stated, then the time of each of the arms, which are named in a string."""
    cells = (_cell(times.get(arm)) for arm in arms.split())
    return f"\n| {stated} | {' | '.join(cells)} |\n"


def _cell(time: float | None) -> str:
    if time is None:
        return "-"
    return f"{time:,.0f}" if time >= 1000 else f"{time:.2f}"


def checks(file: str) -> list[dict[str, bool | str]]:
    """For each case of a raw file: of which arms the bits were compared with base's, and the outcome."""
    made = json.loads((ROOT / "ci/checkpoints/raw" / file).read_text())
    return [row["ok"] for row in made["cases"]]
