"""What docs/remaining.md says of a served model against the profile."""

from __future__ import annotations

import re
from pathlib import Path

from measured_steps import kernels, raw

ROOT = Path(__file__).resolve().parents[2]


def test_the_work_that_remains_is_what_the_profile_says():
    page = (ROOT / "docs/remaining.md").read_text()
    text = " ".join(page.split())
    file = "ci/checkpoints/raw/server-h200-steps/128k.json"
    assert f"(../{file})" in page
    many, one = (kernels(raw("128k"), "0090", rows) for rows in (64, 1))

    def took(profile: dict[str, float], part: str) -> tuple[float, float]:
        """Microseconds of the kernels with these words in their names, and their share."""
        found = [time for name, time in profile.items() if part in name]
        assert found, part
        return sum(found), sum(found) / sum(profile.values())

    busy = [f"{sum(each.values()) / 1e3:.2f} ms" for each in (many, one)]
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
    names = [*many, *one]
    assert not [name for name in names if "sgemm" in name or "f32f32" in name]
    share = took(kernels(raw("128k"), "0070", 64), "sgemm")[1]
    assert f"`sgemm` of hc_pre, {share:.1%} of a step at 64 rows" in text
    deep = [kernels(raw("43"), "0090-128k", rows) for rows in (64, 1)]
    for part, words in (
        ("_hc_head_kernel", "hc_head is {} and {}, hc_post"),
        ("mhc_post_tilelang_kernel", "hc_post {} and {}"),
        ("hc_split_sinkhorn_kernel", "hc_split_sinkhorn {} and {}"),
    ):
        assert words.format(*(f"{took(each, part)[1]:.1%}" for each in deep)) in text
    both = [
        took(each, "hc_pre_few")[1] + took(each, "_weighted_sum_kernel")[1]
        for each in deep
    ]
    assert "weighted sum {:.1%} and {:.1%}".format(*both) in text
