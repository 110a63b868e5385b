"""What is said of the GPU tier against what it said."""

from __future__ import annotations

import re

from kernel_arms import ROOT


def test_what_is_said_of_the_gpu_tier_is_what_it_said():
    raw = (ROOT / "ci/checkpoints/raw/h200-gpu-tier/gpu-tier.txt").read_text()
    collected = re.search(r"^collected (\d+) items", raw, re.M)[1]
    failed, passed = re.search(r"^=+ (\d+) failed, (\d+) passed in", raw, re.M).groups()
    assert re.findall(r"^FAILED tests/gpu/(\w+)\.py::", raw, re.M) == [
        "test_local_heads"
    ]
    assert "{'kernel': \"upstream's Triton\"," in raw
    assert failed == "1" and int(passed) + 1 == int(collected)
    text = " ".join((ROOT / "docs/measured.md").read_text().split())
    assert f"{passed} of {collected} tests passed" in text
    assert "none was skipped and one failed: that of two ranks" in text
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"{passed} tests passed on two H200s with today's kernels and one fail" in text
    )


def test_how_the_failed_one_came_out_since_is_what_the_job_showed():
    folder = ROOT / "ci/checkpoints/raw/h200-gpu-tier"
    seed = re.search(r"^seed: (\d+) ", (folder / "gpu-tier.txt").read_text(), re.M)[1]
    showed = (folder / "two-ranks-held.txt").read_text()
    runs = re.findall(
        r"test_local_heads\.py --seed (\d+)\n(?:.+\n)*?    1 (\w+) in", showed
    )
    assert runs == [(seed, "passed"), (seed, "failed"), ("5", "passed")]
    text = " ".join((ROOT / "docs/measured.md").read_text().split())
    assert "with the seed of the failure and with another;" in text
    assert "with another configuration for one rank it failed the same way" in text
