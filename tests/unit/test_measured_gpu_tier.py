"""What is said of the GPU tier against what it said."""

from __future__ import annotations

import re

from kernel_arms import ROOT

FOLDER = ROOT / "ci/checkpoints/raw/h200-gpu-tier"
PAGE = " ".join((ROOT / "docs/measured.md").read_text().split())


def test_what_is_said_of_the_gpu_tier_is_what_it_said():
    raw = (FOLDER / "gpu-tier.txt").read_text()
    collected = re.search(r"^collected (\d+) items", raw, re.M)[1]
    (passed,) = re.search(r"^=+ (\d+) passed in", raw, re.M).groups()
    assert passed == collected and "gpu: passed" in raw
    today = (FOLDER / "indexer-prefill.txt").read_text()
    (since,) = re.search(r"^(\d+) passed in", today, re.M).groups()
    assert (
        f"all {passed} tests passed on two idle H200s with the kernels before today's"
        f" logits, none was skipped; the {since} of the indexer, the prefill and the"
        " torch indexer passed with today's on one"
    ) in PAGE
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"all {passed} tests passed on two H200s with the kernels before today's logits,"
        f" {since} of the indexer, the torch indexer and the prefill with today's"
    ) in text


def test_what_is_said_of_the_run_before_is_what_it_said():
    raw = (FOLDER / "two-ranks-tuned-apart.txt").read_text()
    collected = re.search(r"^collected (\d+) items", raw, re.M)[1]
    failed, passed = re.search(r"^=+ (\d+) failed, (\d+) passed in", raw, re.M).groups()
    assert re.findall(r"^FAILED tests/gpu/(\w+)\.py::", raw, re.M) == [
        "test_local_heads"
    ]
    assert "{'kernel': \"upstream's Triton\"," in raw
    assert failed == "1" and int(passed) + 1 == int(collected)
    assert f"one of the {collected} had failed, that of two ranks" in PAGE


def test_how_the_failed_one_came_out_since_is_what_the_job_showed():
    raw = (FOLDER / "two-ranks-tuned-apart.txt").read_text()
    seed = re.search(r"^seed: (\d+) ", raw, re.M)[1]
    showed = (FOLDER / "two-ranks-held.txt").read_text()
    runs = re.findall(
        r"test_local_heads\.py --seed (\d+)\n(?:.+\n)*?    1 (\w+) in", showed
    )
    assert runs == [(seed, "passed"), (seed, "failed"), ("5", "passed")]
    assert "with another configuration for one rank it failed the same way" in PAGE
