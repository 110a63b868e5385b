"""`check` proves a series: each predicate is red once, and a red one does not hide the others."""

from __future__ import annotations

import json

import pytest

from made_records import record
from made_wheel import patchset
from patchset import gitenv
from patchset.errors import Exit

PREDICATES = ["lint", "strict apply", "whitespace", "round trip", "kernels"]
PREDICATES += ["drift guard", "CHECKPOINTS.md", "records"]


@pytest.fixture
def proven(own):
    """A release for which every predicate holds."""
    where = ("--root", own.wheel.parent, "--wheel", own.wheel)
    assert patchset("checkpoint", "render", *where).returncode == 0
    return own


def check(release) -> tuple[int, dict[str, list[str]]]:
    where = ("--root", release.wheel.parent, "--wheel", release.wheel)
    done = patchset("check", *where, "--json")
    assert "Traceback" not in done.stderr
    red = {
        v["predicate"]: v["problems"] for v in json.loads(done.stdout) if not v["ok"]
    }
    return done.returncode, red


def edit(path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_all_predicates_hold_and_are_printed(proven):
    where = ("--root", proven.wheel.parent, "--wheel", proven.wheel)
    done = patchset("check", *where)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line[6:21].strip() for line in lines] == PREDICATES
    assert all(line.startswith("ok  ") for line in lines)


def test_lint(proven):
    edit(proven.patches / "0020-environ.patch", "Origin: a test\n", "")
    code, red = check(proven)
    assert code == Exit.PATCH
    assert red["lint"] == ["0020-environ: no trailer Origin:"]


def test_strict_apply(proven):
    edit(proven.patches / "0020-environ.patch", "\n line 2\n", "\n line two\n")
    code, red = check(proven)
    assert code == Exit.PATCH
    assert list(red) == ["strict apply"]
    assert "0020-environ conflicts in this hunk" in red["strict apply"][0]


def test_round_trip(proven):
    path = proven.patches / "0020-environ.patch"
    edit(path, "1 file changed, 1 insertion", "1 file changed, 9 insertion")
    code, red = check(proven)
    assert code == Exit.PATCH and list(red) == ["round trip"]
    assert red["round trip"][0].startswith("0020-environ.patch differs at line")


def test_kernels(proven):
    (proven.wheel.parent / "kernels" / "config.py").write_text("WIDTH = 5\n")
    code, red = check(proven)
    assert code == Exit.PATCH and list(red) == ["kernels"]
    assert red["kernels"][0].startswith("0010-kernels.patch differs from kernels/ at")
    (proven.wheel.parent / "kernels" / "config.py").unlink()
    code, red = check(proven)
    assert code == Exit.PATCH and "which is not there" in red["kernels"][0]


def test_a_kernel_file_that_no_patch_is_made_from(proven):
    kernels = proven.wheel.parent / "kernels"
    (kernels / "config_ref.py").write_text("WIDTH = 4\n")
    assert check(proven)[1] == {}
    (kernels / "extra.py").write_text("WIDTH = 4\n")
    code, red = check(proven)
    assert code == Exit.PATCH
    assert red == {
        "kernels": [
            "kernels/extra.py is in no patch: name it in the Generated-From of one"
        ]
    }


@pytest.mark.parametrize("name", ["0020-environ"])
def test_a_patch_that_cannot_be_exported_hides_no_other_finding(proven, name):
    edit(proven.patches / f"{name}.patch", f"Patch: {name}\n", "")
    code, red = check(proven)
    assert code == Exit.PATCH
    assert f"{name}: no trailer Patch:" in red["lint"]
    assert "round trip" in red and "CHECKPOINTS.md" in red


def test_drift_guard(proven):
    (proven.patches / "hooks.toml").write_text(
        '[[hook]]\npatch = "0020-environ"\nfile = "python/sglang/__init__.py"\n'
        'function = "gone"\nparameters = []\n'
    )
    code, red = check(proven)
    assert code == Exit.PATCH and list(red) == ["drift guard"]
    assert "no such function" in red["drift guard"][0]


def test_a_stale_page_is_a_no_and_not_a_bad_patch(proven):
    page = proven.wheel.parent / "CHECKPOINTS.md"
    page.write_text(page.read_text() + "edited\n")
    code, red = check(proven)
    assert code == Exit.NO and list(red) == ["CHECKPOINTS.md"]
    where = ("--root", proven.wheel.parent, "--wheel", proven.wheel)
    dry = patchset("checkpoint", "render", *where, "--dry-run")
    assert dry.returncode == Exit.NO and "edited" in page.read_text()
    assert patchset("checkpoint", "render", *where).returncode == 0
    assert check(proven) == (Exit.DONE, {})


def test_a_wrong_patch_outweighs_a_stale_page(proven):
    (proven.wheel.parent / "CHECKPOINTS.md").unlink()
    edit(proven.patches / "0020-environ.patch", "Origin: a test\n", "")
    code, red = check(proven)
    assert code == Exit.PATCH and {"lint", "CHECKPOINTS.md"} <= set(red)


def test_the_page_has_every_commit_and_evidence_only_with_a_record(proven):
    page = proven.wheel.parent / "CHECKPOINTS.md"
    where = ("--root", proven.wheel.parent, "--wheel", proven.wheel)
    ids = page.read_text().partition("## Commits")[2]
    rows = [line.split(" | ") for line in ids.splitlines() if "`" in line]
    rows = [row for row in rows if len(row) == 6]
    made = proven.wheel.parent / "made"
    commits = gitenv.text(made, "rev-list", "--reverse", "HEAD").split()
    assert [row[2].strip("`") for row in rows] == commits
    trees = [gitenv.text(made, "rev-parse", f"{commit}^{{tree}}") for commit in commits]
    assert [row[3].strip("`") for row in rows] == trees
    assert {row[5] for row in rows} == {"none |"}
    record(proven.wheel.parent, "0030-indexer")
    assert patchset("checkpoint", "render", *where).returncode == 0
    assert "| [0030-indexer](ci/checkpoints/0030-indexer.json) |" in page.read_text()


def test_a_record_that_was_changed(proven):
    file = record(proven.wheel.parent, "0030-indexer")
    where = ("--root", proven.wheel.parent, "--wheel", proven.wheel)
    assert patchset("checkpoint", "render", *where).returncode == 0
    assert check(proven) == (Exit.DONE, {})
    edit(file, '"gain": 5.0', '"gain": 6.0')
    code, red = check(proven)
    assert code == Exit.NO and set(red) == {"CHECKPOINTS.md", "records"}
    assert "its seal does not match" in red["records"][0]
    text = patchset("check", *where).stdout
    restore = f"next: restore what it names: git checkout -- {file.parent}"
    assert text.count(restore) == 2 and "export.sh" not in text


def test_each_predicate_that_fails_names_the_next_command(proven):
    (proven.wheel.parent / "kernels" / "config.py").write_text("WIDTH = 5\n")
    (proven.wheel.parent / "CHECKPOINTS.md").unlink()
    edit(proven.patches / "0020-environ.patch", "Origin: a test\n", "")
    path = proven.patches / "0030-indexer.patch"
    edit(path, "3 files changed, 3 insertions", "3 files changed, 9 insertions")
    where = ("--root", proven.wheel.parent, "--wheel", proven.wheel)
    done = patchset("check", *where)
    blocks = [block for block in done.stdout.split("FAIL  ")[1:]]
    named = {block.split("  ")[0]: block.partition("next: ")[2] for block in blocks}
    export = "scripts/export.sh"
    assert named["kernels"].startswith(export)
    assert named["CHECKPOINTS.md"].startswith(export)
    assert named["round trip"].startswith(f"scripts/apply.sh && {export}")
    assert named["lint"].startswith(
        f"edit that file, then scripts/apply.sh && {export}"
    )
    edit(path, "\n row 6\n", "\n row six\n")
    assert "next: restore it: git checkout -- " in patchset("check", *where).stdout


def test_the_way_back_to_a_round_trip(proven, own_tree):
    """The commands that a failed round trip names make the hand-edited file git's own again."""
    before = (proven.patches / "0020-environ.patch").read_bytes()
    path = proven.patches / "0020-environ.patch"
    edit(path, "1 file changed, 1 insertion", "1 file changed, 9 insertion")
    tree = ("--to", own_tree, "--wheel", proven.wheel)
    done = patchset("apply", "--patches", proven.patches, *tree)
    assert "made again" in done.stdout, done.stderr
    done = patchset("export", "--patches", proven.patches, "--from", own_tree)
    assert "written    0020-environ.patch" in done.stdout
    assert path.read_bytes() == before
    assert check(proven) == (Exit.DONE, {})
