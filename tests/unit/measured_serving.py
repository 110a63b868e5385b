"""The table of docs/measured.md about `bench.sh serving`, made from what the command wrote."""

from __future__ import annotations

import json
from pathlib import Path

RAW = Path(__file__).resolve().parents[2] / "ci/checkpoints/raw/server-h200-serving"


def results() -> list[dict]:
    """What each call wrote, by concurrency."""
    made = [json.loads(file.read_text()) for file in RAW.glob("c*/result.json")]
    return sorted(made, key=lambda each: each["workload"]["concurrency"])


def lines() -> list[list[str]]:
    """The table's rows."""
    return [
        [
            str(row["concurrency"]),
            row["arm"],
            f"{row['output_throughput']:,.0f}",
            f"{row['least']:,.0f} to {row['most']:,.0f}",
            f"{row['median_ttft_ms']:,.1f}",
            f"{row['median_tpot_ms']:.2f}",
            "" if row["arm"].startswith("stock") else f"{row['ratio']:.2f}x",
        ]
        for made in results()
        for row in made["summary"]
    ]
