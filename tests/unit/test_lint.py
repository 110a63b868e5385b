"""Each rule of the lint is red once, and green on the real series and on a clean one."""

from __future__ import annotations

import pytest

from made_series import BASE, LINES, STEPS
from made_wheel import ROOT, make_release
from patchset import lint
from patchset.commits import commit_series
from patchset.series import load_series

ENVIRON = "python/sglang/srt/environ.py"


def problems(release) -> str:
    return "\n".join(lint.lint_series(release.series))


def applied_problems(release) -> str:
    series, repo = release.series, release.wheel.parent / "made"
    applied = commit_series(repo, series.pin.commit, series)
    return "\n".join(lint.lint_applied(repo, series.pin.commit, applied))


def test_a_clean_series_has_no_problem(small):
    assert problems(small) == ""
    assert applied_problems(small) == ""


def test_the_real_series_has_no_problem():
    assert lint.lint_series(load_series(ROOT / "patches" / "0.5.13")) == []


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("Why it is so.", "diff -u of it", "a message line that `git am` takes"),
        ("Why it is so.", "Index: of it", "a message line that `git am` takes"),
        ("Why it is so.", "From: someone", "a message line that `git am` takes"),
        ("Why it is so.", "Subject: this", "a message line that `git am` takes"),
        ("Why it is so.", "--- a", "a message line that `git am` takes"),
        ("Why it is so.", "Why it is so. ", "ends in a space"),
        ("Why it is so.", "Why.\n\n\nSo.", "two empty lines in a row"),
        ("[PATCH] environ: change", "[PATCH] [sm120] change", "starts with [..]"),
        ("[PATCH] environ: change", "[PATCH] environ:  change", "has spaces"),
        ("sm120 patches <patches@", "Someone <someone@", "the author is Someone"),
        (
            "Upstream-Status: Inappropriate [made for a test]\n",
            "",
            "no trailer Upstream",
        ),
        ("Inappropriate [made for a test]", "Inappropriate", "with a [reason]"),
        ("Inappropriate [made for a test]", "Inappropriate []", "with a [reason]"),
        ("Inappropriate [made", "Rejected [made", "not one of Pending"),
        ("Origin: a test\n", "", "no trailer Origin:"),
        ("Env-Flag: none\n", "", "no trailer Env-Flag:"),
        ("Scope: a test\n", "", "no trailer Scope:"),
        ("Depends-On: none\n", "", "no trailer Depends-On:"),
        ("Tests: none\n", "", "no trailer Tests:"),
        ("Evidence: none\n", "", "no trailer Evidence:"),
        ("Drop-When: never\n", "", "no trailer Drop-When:"),
        ("Patch: 0020-environ\n", "", "no trailer Patch:"),
        ("Patch: 0020-environ\n", "Patch: 0020-x\n", "0020-x and the file name differ"),
        (
            "Drop-When: never\n",
            "Drop-When: never\nDrop-If: x\n",
            "unknown trailer Drop-If",
        ),
        ("Evidence: none", "Evidence: yes", "neither none nor a record id"),
        (
            "Depends-On: none",
            "Depends-On: 0005-zero",
            "0005-zero is no patch before it",
        ),
        ("Depends-On: none", "Depends-On: 0030-indexer", "is no patch before it"),
        ("Depends-On: none", "Depends-On: 0020-environ", "is no patch before it"),
        (
            f"a/{ENVIRON} b/{ENVIRON}",
            "a/README.md b/README.md",
            "outside python/sglang/",
        ),
        (
            f"a/{ENVIRON} b/{ENVIRON}",
            "a/python/sglang/_version.py b/python/sglang/_version.py",
            "_version.py is made by the build",
        ),
        (
            f"a/{ENVIRON} b/{ENVIRON}",
            "a/python/sglang/srt/layers/sm120/x.py b/python/sglang/srt/layers/sm120/x.py",
            "only through kernels/",
        ),
    ],
)
def test_each_rule_is_red_once(own, old, new, said):
    path = own.patches / "0020-environ.patch"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    found = problems(own)
    assert said in found
    assert all(line.startswith("00") for line in found.splitlines())


def test_several_dependencies_by_name_or_number(own):
    path = own.patches / "0030-indexer.patch"
    text = path.read_text()
    path.write_text(text.replace("Depends-On: none", "Depends-On: 0010, 0020-environ"))
    assert problems(own) == ""


def test_content_that_is_not_ascii(own):
    path = own.patches / "0020-environ.patch"
    path.write_bytes(path.read_bytes().replace(b"+flag = 1", "+flag = \u00e9".encode()))
    assert "is not ASCII" in problems(own)


def test_a_generated_patch_names_exactly_its_files(own):
    path = own.patches / "0010-kernels.patch"
    text = path.read_text()
    path.write_text(text.replace(" kernels/config.py", ""))
    assert "Generated-From and the files of the diff differ" in problems(own)
    path.write_text(text.replace("index " + "0" * 40, "index " + "1" * 40))
    assert "a generated patch only adds files" in problems(own)


def test_a_gap_between_two_patches_of_one_file(own):
    series = own.series
    left = series.patches[1].changes[0].new_blob
    path = own.patches / "0030-indexer.patch"
    path.write_text(path.read_text().replace(left, "e" * 40))
    assert f"0030-indexer: {ENVIRON} is not as 0020-environ leaves it" in problems(own)


@pytest.mark.parametrize(
    "content, said",
    [
        (LINES.replace(b"line 3\n", b"line 3 \n"), "whitespace: <stdin>"),
        (LINES.replace(b"line 3\n", b" \tline 3\n"), "whitespace: <stdin>"),
        (LINES + b"\n", "whitespace: <stdin>"),
    ],
)
def test_whitespace_errors(tmp_path, content, said):
    release = make_release(
        tmp_path, steps=[STEPS[0], ("0020-environ", {ENVIRON: content})]
    )
    assert problems(release) == ""
    assert said in applied_problems(release)


def test_a_touched_file_with_crlf(tmp_path):
    files = {**BASE, ENVIRON: LINES.replace(b"line 20\n", b"line 20\r\n")}
    changed = files[ENVIRON].replace(b"line 3\n", b"line three\n")
    release = make_release(
        tmp_path, files, [STEPS[0], ("0020-environ", {ENVIRON: changed})]
    )
    assert f"0020-environ: {ENVIRON} has CRLF line endings" in applied_problems(release)
