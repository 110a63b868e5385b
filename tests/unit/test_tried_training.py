"""What docs/tried.md says of the smoke model's training against the raw files."""

from __future__ import annotations

import json
from pathlib import Path

from answer_columns import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "ci/checkpoints/raw/h200-smoke-model"
TRIED = ROOT / "docs/tried.md"


def test_what_more_training_gave():
    trials = json.loads((TRAINING / "trials.json").read_text())
    text = TRIED.read_text()
    for row, trial in (
        ("committed", "committed"),
        ("after 50 s", "050"),
        ("after 225 s", "225"),
    ):
        groups = trials[trial]["groups"]
        cells = [
            " of ".join(
                str(sum(groups[name][what] for name in names))
                for what in ("sure", "asked")
            )
            for names in COLUMNS
        ]
        assert f"| {row} | {' | '.join(cells)} |\n" in text


def test_what_the_sinks_and_the_lead_are_after_training():
    ablations = json.loads((TRAINING / "ablations.json").read_text())
    text = " ".join(TRIED.read_text().split())
    products = [i for i, name in enumerate(ablations["groups"]) if name == "products"]
    pairs = [(ablations["intact"][i], ablations["sink"][i]) for i in products]
    gaps = sorted(
        abs(a - b)
        for whole, without in pairs
        for a, b in zip(whole["gaps"], without["gaps"], strict=True)
    )
    right = sum(without["right"] for _, without in pairs)
    assert f"without them {right} of {len(pairs)} products stay right" in text
    assert f"off by {gaps[int(len(gaps) * 0.75)]:.2f} or more (transformers)" in text
    alone = [
        (rank, lead)
        for group, rank, lead, _ in ablations["lead"]
        if "among" not in group and "30000" not in group
    ]
    assert all(rank == 0 for rank, _ in alone)
    leads = sorted(lead for _, lead in alone)
    assert f"{leads[len(leads) // 2]:.1f} spreads ({leads[0]:.1f} at least)" in text
