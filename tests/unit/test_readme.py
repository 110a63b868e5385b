"""Figures and commands of the README against the files behind them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

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
    ratios = RAW["cap_ratios"]
    text = " ".join(README.split())
    assert f"ours {ratios['ours']:.3f}, stock {ratios['stock']:.0f}." in text
    assert RAW["cap_ratios"]["ours"] <= 1.05


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
    worst = max(case["error"] for case in RAW["cases"])
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


def test_each_row_of_the_topk_table_is_what_the_raw_file_says():
    measured = {row["shape"]: row for row in TOPK["runs"][0]["results"]}
    rows = re.findall(
        r"^\| ([\d,]+) x ([\d,]+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", README, re.M
    )
    assert len(rows) == 15
    for batch, length, *stated in rows:
        row = measured[f"{batch}:{length}".replace(",", "")]
        ours, v1, v2, torch = (row["us"][arm][0] for arm in ("c0", "v1", "v2", "torch"))
        assert stated == [f"{ours:.2f}", f"{v1:.2f}", f"{v2:.2f}", f"{torch:.1f}"]
    assert all(row["ok"]["c0"] for row in measured.values() if "ok" in row)


def test_the_recall_and_the_worst_distribution_are_what_the_raw_file_says():
    measured = {row["shape"]: row for row in TOPK["runs"][0]["results"]}
    close = measured["8:262144:n100"]
    assert f"has {close['recall_v1']:.1%} of its".replace("%", " %") in README
    assert f"and {close['recall_v2']:.1%} from v2".replace("%", " %") in README
    times = [
        row["us"]["c0"][0]
        for shape, row in measured.items()
        if re.match(r"1:262144(:|$)", shape)
    ]
    random = measured["1:262144"]["us"]["c0"][0]
    assert 1.45 <= max(times) / random <= 1.5
