"""What docs/remaining.md says of a served model against the profile."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_work_that_remains_is_what_the_profile_says():
    page = (ROOT / "docs/remaining.md").read_text()
    text = " ".join(page.split())
    file = "ci/checkpoints/raw/server-h200-series/128k.json"
    assert f"(../{file})" in page
    profiles = json.loads((ROOT / file).read_text())["profiles"]
    many, one = (profiles[f"0090 C={rows}"] for rows in (64, 1))

    def took(profile: dict, part: str) -> tuple[float, float]:
        """Microseconds of the kernels with these words in their names, and their share."""
        found = [time for name, time, _ in profile["by_kernel"] if part in name]
        assert found, part
        return sum(found), sum(found) / profile["busy_us"]

    busy = [f"{each['busy_us'] / 1e3:.1f} ms" for each in (many, one)]
    assert f"of {busy[0]} at 64 rows and {busy[1]} at one row" in text
    stated = re.findall(r"^\| `(.+)` \| ([\d,]+) \| (\S+) \| (.*) \|$", page, re.M)
    assert len(stated) == 8
    for part, time, share, rest in stated:
        cells = [time, share, *rest.split(" | ")[:2]]
        of_both = [took(each, part) for each in (many, one)]
        assert cells == [
            cell for time, share in of_both for cell in (f"{time:,.0f}", f"{share:.1%}")
        ], part
    for part, words in (
        ("sparse_mla_decode", "Attention is {} at 64 rows and {} at one"),
        ("_paged_mqa_logits_kernel", "our indexer {} and {}"),
        ("topk_page_indices", "top-k {} and {}"),
    ):
        shares = (f"{took(each, part)[1]:.1%}" for each in (many, one))
        assert words.format(*shares) in text
    experts = (f"{took(each, 'fused_moe_kernel')[1]:.0%}" for each in (many, one))
    assert "experts {} and {}".format(*experts) in text
    names = [name for each in (many, one) for name, *_ in each["by_kernel"]]
    assert not [name for name in names if "sgemm" in name or "f32f32" in name]
