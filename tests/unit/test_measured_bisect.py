"""What docs/measured.md says of a bisect on a GPU against what it said."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATED = " ".join((ROOT / "docs/measured.md").read_text().split())


def test_the_patch_that_a_bisect_named_on_a_gpu():
    told = (ROOT / "ci/checkpoints/raw/h200-bisect-decode/bisect.txt").read_text()
    time = {
        name: float(us.replace(",", ""))
        for name, us in re.findall(r"^\w{12}  (\S+) +([\d,.]+) us ", told, re.M)
    }
    assert len(time) == 6
    threshold = float(re.search(r"^threshold +(\S+) us", told, re.M)[1])
    assert re.search(r"^gain +\w{40}  0060-decode-mma$", told, re.M)
    later = [name >= "0060" for name in time]
    assert [us < threshold for us in time.values()] == later
    release, first = time["0000-stock"], time["0060-decode-mma"]
    assert (
        f"{release:,.0f} us at the release, {first:.0f} us at 0060, threshold "
        f"{threshold:.0f} us" in STATED
    )
