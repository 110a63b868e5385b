"""What is said of the GPU tier against what it said."""

from __future__ import annotations

import re

from kernel_arms import ROOT


def test_what_is_said_of_the_gpu_tier_is_what_it_said():
    raw = (ROOT / "ci/checkpoints/raw/h200-gpu-tier/gpu-tier.txt").read_text()
    passed, skipped = re.search(
        r"^=+ (\d+) passed, (\d+) skipped in", raw, re.M
    ).groups()
    assert skipped == "1"
    for page in ("docs/measured.md", "README.md"):
        text = " ".join((ROOT / page).read_text().split())
        words = f"{passed} tests passed"
        assert words in text
        assert "1 was skipped (it needs two GPUs) and none failed" in text
