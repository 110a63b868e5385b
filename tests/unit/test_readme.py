"""Commands, flags, links and headline figures of the README against the files behind them."""

from __future__ import annotations

import ast
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from made_wheel import patchset
from patchset import serverflags
from patchset.errors import Exit
from patchset.series import load_series
from stock import tree

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_serve_knows_each_flag_of_the_flag_table():
    series = load_series(ROOT / "patches/0.5.13")
    table = set(re.findall(r"^\| `(SGLANG_SM120_\w+)` \|", README, re.M))
    assert {*serverflags.words_of(series), "SGLANG_SM120_LOGITS_MB"} == table


# What each line of the headline table is: raw file, case, both arms.
HEADLINES = [
    (
        "h200-kernels/h200-bench-kernel",
        "B64-text512-cap1048576",
        "ours, served",
        "stock",
    ),
    (
        "h200-kernels/h200-bench-kernel",
        "B64-text131072-cap131072",
        "ours, served",
        "stock",
    ),
    ("h200-kernels/h200-bench-kernel", "rows2048-text131072", "ours, served", "stock"),
    ("h200-metadata/bench", "decode64-text512-cap1M", "ours", "stock"),
    ("h200-topk/bench", "1x262144", "ours", "v1"),
    ("h200-topk/bench", "64x512", "ours", "v1"),
    ("h200-decode/bench", "B64-h16-128+512", "ours", "stock"),
    ("h200-decode/bench", "B1-h16-128+8192", "ours", "stock"),
    ("h200-hc-pre/bench", "rows64", "ours", "stock"),
]


def test_the_headline_table_is_what_the_raw_files_say():
    table = re.findall(r"^\|[^|]*\|[^|]*\| (\S+) \| (\S+) \| (\S+)x \|$", README, re.M)
    assert len(table) == len(HEADLINES)
    for stated, (file, name, ours, stock) in zip(table, HEADLINES):
        raw = json.loads((ROOT / f"ci/checkpoints/raw/{file}.json").read_text())
        (case,) = (case for case in raw["cases"] if case["case"] == name)
        times = [case["timings"][arm]["median"] for arm in (stock, ours)]
        for text, value in zip(stated, (*times, times[0] / times[1])):
            assert rounded(value, text) == text, name


def rounded(value: float, like: str) -> str:
    """``value`` with as many decimals as ``like`` has."""
    return f"{value:,.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_links_to_are_there(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert links or page.name in ("roofline.md", "remaining.md")
    for link in links:
        assert (page.parent / link).exists(), link


def anchors(page: Path) -> set[str]:
    """What a heading of the page is linked by: its words without marks, joined by hyphens."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", words).strip()))
    return found


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ci/smoke-model/README.md"], ids=lambda page: page.name
)
def test_headings_that_a_page_links_to_are_there(page):
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / link if link else page), anchor


def test_the_variables_of_the_readme_are_read_somewhere():
    code = "".join(
        file.read_text()
        for file in (ROOT / "scripts").rglob("*")
        if file.suffix in (".py", ".sh")
    )
    for name in set(re.findall(r"PATCHSET_[A-Z_]+", README)):
        assert name in code, name


def test_what_measures_and_where_its_figures_are_is_told():
    (row,) = re.findall(r"^\| `PATCHSET_TEST_PYTHON` \|.*$", README, re.M)
    shared = (ROOT / "scripts" / "probe_python.sh").read_text()
    assert "PATCHSET_TEST_PYTHON" in shared
    for name in ("bisect.sh", "checkpoint.sh"):
        assert "probe_python.sh" in (ROOT / "scripts" / name).read_text()
        assert f"`{name}" in row
    assert "`rm -r build/bisect build/measure`" in README
    assert "A measurement is `stale` when" in README


def test_adding_evidence_is_told_in_commands_that_there_are():
    told = README.partition("To add evidence, ")[2].partition("\n### ")[0]
    lines = re.findall(r"^scripts/checkpoint\.sh (\w+)([^#&\n]*)", told, re.M)
    assert [verb for verb, _ in lines] == ["record", "record", "render"]
    for verb, words in lines:
        usage = patchset("checkpoint", verb, "--help").stdout
        for option in re.findall(r"--[a-z]+", words):
            assert option in usage
    for said in ("`SHA256SUMS`", "git's history", "`render --drop ID`"):
        assert said in told
    assert "--drop ID" in patchset("checkpoint", "render", "--help").stdout


SLICE = "scripts/serve.sh --model-path build/slice-4 $(cat ci/slice.args)"


def test_the_line_that_serves_a_slice_has_the_options_of_its_file(tmp_path):
    assert f"\n{SLICE}\n" in README
    package = tmp_path / "tree" / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    passed = (ROOT / "ci" / "slice.args").read_text().split()
    _, *typed, _, _ = SLICE.split()
    # What a shell makes of it, with a Python and a tree that need no SGLang.
    own = ("--tree", str(tmp_path / "tree"), "--python", sys.executable, "--dry-run")
    done = patchset("serve", *own, *typed, *passed)
    assert done.returncode == 0, done.stderr
    assert f"--model-path build/slice-4 {' '.join(passed)}" in done.stdout


def test_each_option_for_slices_is_one_of_the_trees():
    source = (tree() / "python/sglang/srt/server_args.py").read_text()
    known = {
        word.value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant)
    }
    words = (ROOT / "ci" / "slice.args").read_text().split()
    options = {word for word in words if word.startswith("-")}
    assert len(options) > 10 and options <= known


def test_each_exit_code_is_in_the_table():
    table = README.partition("| exit code |")[2].partition("\n\n")[0]
    told = [
        cell
        for row in re.findall(r"^\| (\d.*?) \|", table, re.M)
        for cell in row.split(", ")
    ]
    signals = [128 + number for number in (signal.SIGTERM, signal.SIGHUP)]
    assert sorted(map(int, told)) == sorted([*map(int, Exit), *signals])
