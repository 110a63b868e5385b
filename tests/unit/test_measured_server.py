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
    text = " ".join(page.split())
    file = "ci/checkpoints/raw/server-h200-1m/shake.json"
    assert f"(../{file})" in page
    profiles = json.loads((ROOT / file).read_text())["profiles"]
    many, one = (profiles[f"0100@1m C={rows}"] for rows in (64, 1))

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


ENDS = json.loads((ROOT / "ci/checkpoints/raw/server-h200-1m/shake.json").read_text())


def of_arm(arm: str, rows: int) -> dict[int, dict]:
    """The runs of an arm at so many rows, by repetition; the first warms up."""
    runs = ((run["arm"], run["n"], run) for run in ENDS["runs"])
    return {run["rep"]: run for of, n, run in runs if (of, n) == (arm, rows)}


def steps_of(arm: str, rows: int) -> list[float]:
    return [run["step_ms"] for rep, run in of_arm(arm, rows).items() if rep]


def test_the_steps_at_both_ends_of_the_context():
    arms = ("stock-det@8k", "0100@8k", "stock@1m", "0100@1m")
    for rows in (1, 16, 64):
        cells = []
        for times in (steps_of(arm, rows) for arm in arms):
            assert len(times) in (5, 6)
            median, ends = statistics.median(times), (min(times), max(times))
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(median, *ends))
        assert f"| {rows} | {' | '.join(cells)} |\n" in PAGE
    stock8, ours8, stock1, ours1 = (statistics.median(steps_of(a, 64)) for a in arms)
    assert (
        f"{stock8 / ours8:.1f} times as fast at 8K, and {stock1 / ours1:.0f} times"
        in STATED
    )
    assert f"takes {stock1 / stock8:.1f} times its time at 8K" in STATED
    profile = ENDS["profiles"]["0100@1m C=1"]
    (steps,) = (n for name, _, n in profile["by_kernel"] if "ArgMax" in name)
    busy, whole = (profile[part] / steps / 1e3 for part in ("busy_us", "span_us"))
    assert f"the GPU works {busy:.2f} ms of {whole:.2f}" in STATED


def first_tokens(arm: str, other: str) -> tuple[int, int, int]:
    """Rows of both arms: with the same first token, with the same kept ones, all."""
    rows = [
        pair
        for n in (1, 16, 64)
        for rep, run in of_arm(arm, n).items()
        if (its := of_arm(other, n).get(rep))
        for pair in zip(run["ids"], its["ids"], strict=True)
    ]
    whole = (a[: len(b)] == b[: len(a)] for a, b in rows)
    return sum(a[0] == b[0] for a, b in rows), sum(whole), len(rows)


def test_the_tokens_at_both_ends_of_the_context():
    for arm, name in (("0100", "the series"), ("stock", "stock")):
        other = "stock-det@8k" if arm == "stock" else "0100@8k"
        _, equal, rows = first_tokens(f"{arm}@1m", other)
        assert f"of {name} ({equal} of {rows}" in STATED and equal == rows
    first, _, rows = first_tokens("0100@1m", "stock@1m")
    assert f"the first token is the same in {first} of {rows} rows" in STATED


def test_the_flag_of_the_torch_indexer():
    gains = [
        statistics.median(steps_of("0095-off", rows))
        / statistics.median(steps_of("0095-on", rows))
        for rows in (64, 16, 1)
    ]
    words = "{:.2f} times at 64 rows, {:.2f} at 16, {:.2f} at one"
    assert words.format(*gains) in STATED


BUNDLE = ROOT / "ci/checkpoints/raw/server-h200-bundle"


def test_what_was_served_from_a_bundle():
    said = (BUNDLE / "run.txt").read_text()
    for words in (
        "[6] install exit 0",
        "install again, exit 4",
        "a damaged part, exit 4",
        "ready  http://127.0.0.1:33900 after 49 s",
        "23 of 23 patches",
        "left: 0",
    ):
        assert words in said
    assert "\n0\n" in said  # modules of SGLang that the server compiled
    for words in ("needed 6 s", "ready after 49 s", "`23 of 23 patches`"):
        assert words in STATED
    told = json.loads((BUNDLE / "smoke.json").read_text())
    checks = {check["check"]: check for check in told["checks"]}
    assert all(check["ok"] for check in checks.values())
    needles = [
        tuple(map(int, re.match(r"(\d+) of (\d+) texts", check["detail"]).groups()))
        for name, check in checks.items()
        if name.startswith("needles")
    ]
    right, asked = map(sum, zip(*needles))
    assert (
        f"passed {len(checks)} checks: 72 of 72 products, {right} of {asked}" in STATED
    )
    assert checks["products"]["detail"].startswith("72 of 72")


def test_the_whole_series_passed_todays_rule_twice():
    details = [
        check["detail"]
        for check in json.loads((BUNDLE / "smoke.json").read_text())["checks"]
    ]
    (command,) = (c for c in ENDS["commands"] if c["tag"] == "smoke-m-ours")
    assert command["exit"] == 0 and "smoke   passed, 15 checks" in command["stdout"]
    details += command["stderr"].splitlines()
    within = re.findall(r"75% of the gaps within (\d\.\d+)", "\n".join(details))
    assert len(within) == 16
    assert f"each group's gaps within {max(map(float, within)):.2f}" in STATED
