"""What docs/measured.md says of real servers against the raw files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from patchset import references

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()


def test_the_work_that_remains_is_what_the_profile_says():
    page = (ROOT / "docs/remaining.md").read_text()
    profile = "ci/checkpoints/raw/server-h200-ladder/profile-metadata.json"
    assert f"(../{profile})" in page
    (_, attention), *others = json.loads((ROOT / profile).read_text())
    rest = sum(time for _, time in others)
    text = " ".join(page.split())
    assert f"the {rest / 1e3:.1f} ms outside of upstream's attention" in text
    assert f"which takes {attention / 1e3:.1f} ms more" in text
    stated = re.findall(r"^\| `(.+)` \| ([\d,]+) \| (\S+) \| .* \|$", page, re.M)
    assert len(stated) == 11
    for part, *cells in stated:
        (time,) = (time for name, time in others if part in name)
        assert cells == [f"{time:,.0f}", f"{time / rest:.1%}"], part


SERVER = ROOT / "ci/checkpoints/raw/server-h200"


def test_the_servers_answers_are_what_the_readme_says():
    def answers(tag):
        return json.loads((SERVER / f"res_{tag}.json").read_text())

    on, stock, broken = answers("on"), answers("stock"), answers("neg")
    for group in ("table_one", "table_list", "needles", "needles_list"):
        ours, theirs = ([item["ids"] for item in run[group]] for run in (on, stock))
        assert ours == theirs, group
    assert [item["text"] for item in on["table_one"]] == on["want"]
    assert [item["text"] for item in on["needles"]] == on["codes"]
    right = [
        item["text"] == code for item, code in zip(broken["needles"], broken["codes"])
    ]
    long = [tokens > 2_048 for tokens in broken["S"]]
    assert sum(long) == 20
    assert not any(ok for ok, is_long in zip(right, long) if is_long)
    assert all(ok for ok, is_long in zip(right, long) if not is_long)


SMOKE = ROOT / "ci/checkpoints/raw/server-h200-smoke"


LADDER = ROOT / "ci/checkpoints/raw/server-h200-ladder"


STATED = " ".join(PAGE.split())


def test_the_whole_series_answers_as_the_stock_server():
    answers = json.loads((SMOKE / "answers.json").read_text())
    gaps = []
    for group in ("table_one", "table_list", "needles"):
        for ours, theirs in zip(answers["on"][group], answers["stock"][group]):
            assert ours["ids"] == theirs["ids"]
            if group == "table_one":
                gaps += [abs(a - b) for a, b in zip(ours["gap"], theirs["gap"])]
    median = statistics.median(gaps)
    assert (
        f"differ by {median:.2f} in the median of products asked one by one" in STATED
    )


def test_the_needles_in_a_list_and_the_flags_of_that_run():
    lines = (SMOKE / "run.txt").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("on vs stock needles_list:"))
    equal = re.search(r"ids (\d+)/28", line)[1]
    assert f"asked in one list {equal} of the 28 are equal" in STATED
    (line,) = (line for line in lines if line.startswith("on | table_one"))
    right = re.findall(r"(\d+)/(\d+)", line.split("needles_list")[1])
    assert right and all(one == all_of_them for one, all_of_them in right)
    (line,) = (line for line in lines if "] flags SGLANG_SM120" in line)
    on = set(re.findall(r"SGLANG_SM120_\w+", line))
    assert len(on) == 7 and "SGLANG_SM120_MXFP4_DRAFT" not in on
    (build,) = said_of("on", "ok", "build")
    assert "with 20 of 20 patches: 0100-" in build
    assert "the 20 patches there were up to 0100, so not 0089 to 0095" in STATED


def said_of(tag: str, word: str, group: str) -> list[str]:
    """What the smoke test of that run said of a server's groups."""
    said = json.loads((SMOKE / "smoke.json").read_text())[tag]["said"]
    lines = [re.sub(r"^(\w+) +", r"\1 ", line) for line in said]
    return [line for line in lines if line.startswith(f"{word} {group}")]


def test_the_rule_of_that_run_failed_every_server():
    said = json.loads((SMOKE / "smoke.json").read_text())
    assert len(said) == 7 and all(run["exit"] == 6 for run in said.values())
    for tag in ("stock", "on"):
        (products,) = said_of(tag, "FAILED", "products")
        assert "the texts are right" in products and "up to 0.5 is" in products
        assert re.search(r"off by 3\.7\d;", products)


def test_the_kept_answers_pass_todays_rule():
    recording = references.load(ROOT / "ci/smoke-model/expected.json")
    answers = json.loads((SMOKE / "answers.json").read_text())
    assert f"three quarters of each group's gaps within {recording.tolerance}" in STATED
    assert references.SHARE == 0.75
    typical, groups = [], set()
    for tag in ("stock", "on"):
        asked = zip(answers["codes"], answers[tag]["needles"], strict=True)
        needles = {(code, one["n_in"]): heard(one) for code, one in asked}
        for group in recording.groups:
            wanted = recording.of(group)
            # The needles at 2,048 and the early ones were not kept.
            kept = [needles.get((each.text, each.prompt_tokens)) for each in wanted]
            given = [kept]
            if group == "products":
                lists = (answers[tag]["table_one"], answers[tag]["table_list"])
                given = [[heard(one) for one in products] for products in lists]
            for every in given:
                if not any(every):
                    continue
                references.require_alike(wanted, every, recording.tolerance)
                off = references.differences(wanted, every)
                typical.append(off[int(len(off) * references.SHARE)])
                groups.add(group)
    assert len(groups) == 6 and len(typical) == 14
    assert f"{max(typical):.2f} at most" in STATED


def test_the_stock_server_with_tilelang_passes_todays_rule():
    recording = references.load(ROOT / "ci/smoke-model/expected.json")
    kept = json.loads((LADDER / "smoke-model-stock-tilelang.json").read_text())
    assert len(recording.groups) == 8
    typical = []
    for group in recording.groups:
        wanted = recording.of(group)
        of_group = [one for one in kept if one["group"] == group]
        pairs = zip(wanted, of_group, strict=True)
        assert all(list(each.ids) == one["ids"] for each, one in pairs)
        off = sorted(
            abs(recorded - found)
            for each, one in zip(wanted, of_group)
            for recorded, found in zip(each.gaps, one["gaps"], strict=True)
        )
        typical.append(off[int(len(off) * references.SHARE)])
    assert max(typical) <= recording.tolerance
    assert f"in all eight ({max(typical):.2f} at most)" in STATED


def heard(one: dict) -> references.Heard:
    return references.Heard("", tuple(one["ids"]), tuple(one["gap"]), one["n_in"])


@pytest.mark.parametrize("tag", ["b-sign", "b-page", "b-entry"])
def test_errors_that_are_named_by_their_texts(tag):
    differ = [x for x in said_of(tag, "FAILED", "needles") if "answers differ" in x]
    names = {re.match(r"FAILED needles (\w+)", line)[1] for line in differ}
    assert names >= {"2500", "4000", "6000", "early"}


def largest_gaps(tag: str) -> list[float]:
    """The largest gap of each group of needles whose texts are right."""
    lines = said_of(tag, "FAILED", "needles") + said_of(tag, "ok", "needles")
    found = [re.search(r"(?:off by|gaps within) (\d+\.\d+)", line) for line in lines]
    return sorted(float(each[1]) for each in found if each)


def test_what_is_known_of_the_other_errors():
    right, scale, sink = map(largest_gaps, ("on", "b-scale", "b-sink"))
    assert len(right) == len(scale) == len(sink) == 7
    without = f"the needles, {right[0]:.1f} to {right[-1]:.1f} without it,"
    assert f"{without} to {scale[0]:.1f} to {scale[-1]:.1f};" in STATED
    assert all(abs(a - b) < 0.2 for a, b in zip(right, sink))
    for tag in ("b-scale", "b-sink"):
        failed = said_of(tag, "FAILED", "")
        assert failed and all("the texts are right" in line for line in failed)


def test_each_step_of_the_ladder_is_what_the_raw_file_says():
    runs = json.loads((LADDER / "ladder.json").read_text())["runs"]
    arms = ("stock-8k", "stock", "indexer", "+metadata")
    for rows in (1, 16, 64):
        medians = [
            statistics.median(
                run["step_ms"]
                for run in runs
                if (run["arm"], run["n"]) == (arm, rows) and run["rep"]
            )
            for arm in arms
        ]
        cells = " | ".join(f"{value:.3f}" for value in medians)
        assert f"| {rows} | {cells} |\n" in PAGE


@pytest.mark.parametrize("name, stated", [("stock", "69 %"), ("metadata", "88 %")])
def test_the_share_of_attention_is_what_the_profile_says(name, stated):
    kernels = json.loads((LADDER / f"profile-{name}.json").read_text())
    share = kernels[0][1] / sum(time for _, time in kernels)
    assert kernels[0][0] == "_tiled_sparse_decode_kernel"
    assert f"{share:.0%}".replace("%", " %") == stated and stated in PAGE
