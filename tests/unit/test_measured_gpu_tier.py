"""What is said of the GPU tier against what it said."""

from __future__ import annotations

import re

from kernel_arms import ROOT

PAGE = (ROOT / "docs/measured.md").read_text()


def test_what_is_said_of_the_gpu_tier_is_what_it_said():
    raw = (ROOT / "ci/checkpoints/raw/h200-gpu-tier/gpu-tier.txt").read_text()
    failed, passed, skipped = re.search(
        r"^=+ (\d+) failed, (\d+) passed, (\d+) skipped", raw, re.M
    ).groups()
    assert f"{passed} tests passed, {skipped} was skipped" in " ".join(PAGE.split())
    assert failed == skipped == "1"
    ours, stock = map(float, re.search(r"assert ([\d.]+) <= ([\d.]+)", raw).groups())
    for page in (
        PAGE,
        (ROOT / "ci/checkpoints/raw/h200-gpu-tier/README.md").read_text(),
    ):
        assert f"was {ours:.11f} and the stock kernel's {stock:.11f}" in " ".join(
            page.split()
        )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"gpu` {passed} tests passed on an H200" in readme
    assert f"of the attention {ours / stock - 1:.0e}".replace("e-07", "e-7") in readme
