"""Figures and commands of the README against the files behind them."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from patchset import references

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RAW = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-kernels/h200-bench-kernel.json").read_text()
)


@pytest.mark.parametrize("case", RAW["cases"], ids=lambda case: case["case"])
def test_a_measured_row_is_what_the_raw_file_says(case):
    median = {arm: timing["median"] for arm, timing in case["timings"].items()}
    ours, stock = median["ours"], median["stock"]
    assert (
        f"| {case['case']} | {ours:,.2f} | {median['ours, served']:,.2f} | {stock:,.0f} |"
        f" {stock / ours:,.0f}x | {median['DeepGEMM']:,.2f} | {case['floor_us'] / ours:.0%} |\n"
    ) in README


def test_the_ratio_between_caps_is_what_the_raw_file_says():
    ratios = RAW["ratios"]["indexer"]["text 512, cap 1M / cap 8K"]
    text = " ".join(README.split())
    assert f"ours {ratios['ours']:.3f}, stock {ratios['stock']:.0f}." in text
    assert ratios["ours"] <= 1.05


def test_the_scripts_that_the_readme_names_are_there():
    for name in set(re.findall(r"scripts/\w+\.sh", README)):
        file = ROOT / name
        assert file.is_file() and file.stat().st_mode & 0o111, name


def test_each_flag_of_the_series_is_in_the_flag_table():
    flags = set()
    for patch in sorted((ROOT / "patches/0.5.13").glob("*.patch")):
        flags |= set(
            re.findall(
                r"^\+ {4}(SGLANG_SM120_\w+) = EnvChoice", patch.read_text(), re.M
            )
        )
    assert flags
    for flag in flags:
        assert f"| `{flag}` |" in README


def test_files_that_the_readme_links_to_are_there():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert "CHECKPOINTS.md" in links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_stated_error_covers_every_case():
    (stated,) = re.findall(
        r"error is at most (\S+) of the size", " ".join(README.split())
    )
    worst = max(case["facts"]["error"] for case in RAW["cases"])
    assert worst <= float(stated) <= 1.1 * worst


def test_the_variables_of_the_readme_are_read_somewhere():
    code = "".join(
        file.read_text()
        for file in (ROOT / "scripts").rglob("*")
        if file.suffix in (".py", ".sh")
    )
    for name in set(re.findall(r"PATCHSET_[A-Z_]+", README)):
        assert name in code, name


def test_the_roofline_page_is_what_renders():
    from patchset import roofline

    assert roofline.PAGE.read_text() == roofline.render()


HC_PRE = json.loads((ROOT / "ci/checkpoints/raw/h200-hc-pre/bench.json").read_text())
HC_PRE_ROWS = [row for row in HC_PRE["cases"] if row["kernel"] == "hc_pre"]
HC_SUM_ROWS = [row for row in HC_PRE["cases"] if row["kernel"] == "hc_sum"]


@pytest.mark.parametrize("case", HC_PRE_ROWS, ids=lambda case: case["case"])
def test_a_row_of_the_pre_linear_is_what_the_raw_file_says(case):
    ours, bf16, stock, compiled = medians(
        case, "ours", "ours, bf16", "stock", "stock compiled"
    )
    error = case["facts"]["error"]
    assert case["correct"]
    assert (
        f"| {case['batch']:,} | {ours:,.2f} | {stock:,.2f} | {compiled:,.2f} | {stock / ours:.1f}x |"
        f" {compiled / ours:.1f}x | {case['floor_us'] / ours:.0%} | {error['split']:.1e} |"
        f" {bf16:,.2f} | {error['bf16']:.1e} |\n"
    ) in README


@pytest.mark.parametrize(
    "arm,name", [("stock", "stock, FP32"), ("split", "ours"), ("bf16", "ours, `bf16`")]
)
def test_the_errors_of_the_mixes_are_what_the_raw_file_says(arm, name):
    cells = [
        f"{max(case['facts'][f'mixes, {arm}'][field] for case in HC_PRE_ROWS):.1e}"
        for field in ("pre", "post", "comb")
    ]
    assert f"| {name} | {' | '.join(cells)} |\n" in README


def test_the_targets_of_the_pre_linear_are_met_but_for_the_one_that_the_readme_says():
    times = {
        case["batch"]: medians(case, "ours", "stock", "stock compiled")
        for case in HC_PRE_ROWS
    }
    for rows in (1, 16, 64):
        ours, stock, compiled = times[rows]
        assert ours <= 6 and stock >= 3 * ours and compiled >= 2 * ours
    (missed,) = re.findall(
        r"At ([\d,]+) rows the target of 60 % of the memory floor", README
    )
    share = {
        case["batch"]: case["floor_us"] / times[case["batch"]][0]
        for case in HC_PRE_ROWS
    }
    assert share[int(missed.replace(",", ""))] < 0.6 <= share[8_192]


def test_the_times_of_the_weighted_sum_are_what_the_raw_file_says():
    assert all(case["correct"] for case in HC_SUM_ROWS)
    text = " ".join(README.split())
    for case in HC_SUM_ROWS:
        ours, stock = medians(case, "ours", "stock")
        rows = "row" if case["batch"] == 1 else "rows"
        assert f"{case['batch']:,} {rows} {ours:.2f} us against {stock:.2f}" in text


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


TOPK = json.loads((ROOT / "ci/checkpoints/raw/h200-topk/bench.json").read_text())
TOPK_ROWS = {(row["group"], row["case"]): row for row in TOPK["cases"]}
METADATA = json.loads(
    (ROOT / "ci/checkpoints/raw/h200-metadata/bench.json").read_text()
)


def medians(row, *arms):
    return [row["timings"][arm]["median"] for arm in arms]


def test_each_row_of_the_topk_table_is_what_the_raw_file_says():
    assert all(row["correct"] for row in TOPK["cases"])
    rows = re.findall(
        r"^\| ([\d,]+) x ([\d,]+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", README, re.M
    )
    assert len(rows) == 18
    for batch, length, *stated in rows:
        group = "topk-rows" if batch == "2,048" else "topk-lengths"
        row = TOPK_ROWS[group, f"{batch}x{length}".replace(",", "")]
        ours, v1, v2, torch = medians(row, "ours", "v1", "v2", "torch.topk")
        assert stated == [f"{ours:.2f}", f"{v1:.2f}", f"{v2:.2f}", f"{torch:.1f}"]


def test_times_and_recall_of_close_scores_are_what_the_raw_file_says():
    rows = re.findall(r"^\| 8 x ([\d,]+) \| (.*) \|$", README, re.M)
    assert len(rows) == 4
    for length, cells in rows:
        stated = cells.split(" | ")
        for cell, scores in zip(
            stated, ("-normal", "-narrow", "-concentrated", "-mean-100", "-plateau")
        ):
            row = TOPK_ROWS["topk-recall", f"8x{length}{scores}".replace(",", "")]
            ours, v1, v2 = medians(row, "ours", "v1", "v2")
            recall = row["facts"]["recall"]
            assert recall["ours"] == 1
            assert cell == (
                f"{ours:.1f} / {v1:.1f} / {v2:.1f}; {recall['v1']:.3f} / {recall['v2']:.3f}"
            )


def test_the_worst_distribution_is_what_the_raw_file_says():
    one, many = (
        TOPK["ratios"]["topk"][f"{shape}, worst scores / best"]["ours"]
        for shape in ("1 x 262144", "64 x 8192")
    )
    stated = f"takes {one:.2f} times the fastest at 1 x 262,144 and {many:.2f} times at 64 x 8,192"
    assert stated in " ".join(README.split())


def test_the_metadata_figures_are_what_the_raw_file_says():
    rows = {row["case"]: row for row in METADATA["cases"]}
    ours, stock = medians(rows["decode64-text512-cap1M"], "ours", "stock")
    seen = rows["growing-32-widths"]["facts"]["first_calls"]
    text = " ".join(README.split())
    assert f"64 rows at a 1M context {ours:.2f} us against {stock:.1f};" in text
    assert (
        f"{seen['widths']} widths compile {seen['ours_compilations']} kernel against"
        f" {seen['stock_compilations']}, {seen['ours_seconds']:.2f} s against"
        f" {seen['stock_seconds']:.2f} s."
    ) in text


SMOKE = ROOT / "ci/checkpoints/raw/server-h200-smoke"
LADDER = ROOT / "ci/checkpoints/raw/server-h200-ladder"


STATED = " ".join(README.split())


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
        assert f"| {rows} | {cells} |\n" in README


@pytest.mark.parametrize("name, stated", [("stock", "69 %"), ("metadata", "88 %")])
def test_the_share_of_attention_is_what_the_profile_says(name, stated):
    kernels = json.loads((LADDER / f"profile-{name}.json").read_text())
    share = kernels[0][1] / sum(time for _, time in kernels)
    assert kernels[0][0] == "_tiled_sparse_decode_kernel"
    assert f"{share:.0%}".replace("%", " %") == stated and stated in README


DECODE = json.loads((ROOT / "ci/checkpoints/raw/h200-decode/bench.json").read_text())
DECODE_CASES = {case["case"]: case for case in DECODE["cases"]}


def test_each_row_of_the_attention_table_is_what_the_raw_file_says():
    wanted = [case for case in DECODE["cases"] if case["group"] != "decode-scores"]
    for case in wanted:
        median = {arm: timing["median"] for arm, timing in case["timings"].items()}
        ours, stock, peer = (median.get(a) for a in ("ours", "stock", "FlashMLA"))
        assert (
            f"| {case['case']} | {case['floor_us']:,.1f} | {ours:,.2f} | {median['ours, not shared out']:,.1f} |"
            f" {f'{stock:,.0f} | {stock / ours:,.0f}x' if stock else '- | -'} |"
            f" {f'{peer:,.1f}' if peer else '-'} |\n"
        ) in README
    assert len(wanted) == 14 and all(case["correct"] for case in DECODE["cases"])


def test_the_ratios_and_errors_of_attention_are_what_the_raw_file_says():
    text = " ".join(README.split())
    ratios = DECODE["ratios"]["attention"]
    skewed = ratios["one long row among 63 short / alone"]["ours"]
    assert f"among 63 of 2 takes {skewed:.2f} times its time alone" in text
    width = ratios["index table for 1M / for 8K"]["ours"]
    assert f"for 1M tokens {width:.3f} times one for 8K" in text
    errors = [
        case["facts"]["error"]
        for case in DECODE["cases"]
        if case["group"] == "decode-scores"
    ]
    ours = [error["ours"] for error in errors]
    assert f"is {min(ours):.2e} to {max(ours):.2e} of the result's" in text
    worst = max(error["ours"] / error["stock"] for error in errors)
    assert f"at most {worst:.2f} times the stock kernel's" in text


def test_what_attention_falls_short_of_is_what_the_raw_file_says():
    def ours(name):
        return DECODE_CASES[name]["timings"]["ours"]["median"]

    text = " ".join(README.split())
    share = ours("B64-h16-128+512") / DECODE_CASES["B64-h16-128+512"]["floor_us"]
    assert f"take {share:.1f} times the floor (3)" in text
    assert f"one row {ours('B1-h16-128+512'):.1f} us (8)" in text
    assert f"8,320 keys {ours('B1-h16-128+8192'):.1f} us (12)" in text
    assert f"64 heads {ours('B2048-h64-128+512') / 1_000:.2f} ms (0.87), where" in text
