"""`next:` lines: the user's own options, a script that works where the user is, and rights."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from made_series import snapshot
from made_wheel import ROOT, command, environment, patchset, without_rights
from patchset.errors import Exit


def next_of(done: subprocess.CompletedProcess) -> str:
    return done.stderr.partition("\nnext:")[2].strip()


def test_every_failure_says_what_to_do_next():
    """Read from the sources: a Failure without `next` has no place in them."""
    found = 0
    for path in (ROOT / "scripts" / "patchset").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Failure":
                found += 1
                names = {keyword.arg for keyword in node.keywords}
                assert "next" in names, f"{path.name}:{node.lineno}"
    assert found > 40


def test_no_message_sends_to_the_module():
    for path in (ROOT / "scripts" / "patchset").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                documents = node.value.endswith(".") or "\n\n" in node.value
                assert documents or "-m patchset" not in node.value, path.name


@pytest.mark.parametrize(
    "cwd, script",
    [
        (ROOT, "scripts/apply.sh"),
        (ROOT / "scripts", "./apply.sh"),
        (ROOT / "tests", "../scripts/apply.sh"),
        ("/", f"{ROOT}/scripts/apply.sh"),
    ],
)
def test_the_script_is_named_as_it_works_from_here(small, own_tree, cwd, script):
    (own_tree / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    line = ("--patches", small.patches, "--wheel", small.wheel, "--upto", "0020")
    done = patchset("apply", *line, "--to", own_tree, cwd=cwd)
    assert done.returncode == Exit.PATCH
    told = shlex.split(next_of(done).partition(": ")[2])
    assert told == [
        *(script, "--upto", "0020-environ", "--to", str(own_tree)),
        *("--force", "--wheel", str(small.wheel), "--patches", str(small.patches)),
    ]
    assert (Path(cwd) / told[0]).samefile(ROOT / "scripts" / "apply.sh")


def test_the_success_line_too(small, own_tree, tmp_path):
    line = ("--patches", small.patches, "--wheel", small.wheel, "--to", own_tree)
    done = patchset("apply", *line, cwd=tmp_path)
    (last,) = [each for each in done.stdout.splitlines() if each.startswith("next")]
    assert Path(shlex.split(last)[1]) == ROOT / "scripts" / "test.sh"


def test_a_wheel_that_is_not_there_keeps_the_other_options(small, tmp_path):
    line = ("--patches", small.patches, "--to", tmp_path / "t", "--upto", "0010")
    env = {"PATCHSET_CACHE": str(tmp_path / "c"), "PIP_NO_INDEX": "1"}
    done = patchset("apply", *line, env=env | {"PIP_CONFIG_FILE": os.devnull})
    assert done.returncode == Exit.ENVIRONMENT
    options = f"--upto 0010 --to {tmp_path / 't'} --wheel FILE --patches {shlex.quote(str(small.patches))}"
    assert next_of(done).endswith(f"scripts/apply.sh {options}")


def test_git_that_does_not_answer_keeps_the_other_options(small, tmp_path):
    line = ("--patches", small.patches, "--to", tmp_path / "t")
    done = patchset("apply", *line, "--source", "git", "--url", tmp_path / "none")
    assert done.returncode == Exit.ENVIRONMENT
    rest = f"--patches {shlex.quote(str(small.patches))}"
    to = f"--to {tmp_path / 't'}"
    assert f"apply.sh {to} --source git --url URL {rest}" in next_of(done)
    assert f"apply.sh {to} --source wheel {rest}" in next_of(done)


@pytest.fixture
def closed(tmp_path):
    """A directory that this user can't even look into."""
    place = tmp_path / "closed"
    place.mkdir()
    (place / "t").mkdir()
    place.chmod(0)
    yield place
    place.chmod(0o755)


def refused(line: list[str], **env: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        without_rights(line), env=environment(env), capture_output=True, text=True
    )
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    labels = [each.partition(":")[0] for each in done.stderr.splitlines()]
    assert {"error", "where", "state", "next"} <= set(labels)
    assert "Permission denied" in done.stderr
    return done


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--force"]])
def test_a_target_in_a_closed_place(small, closed, more):
    line = ("--patches", small.patches, "--wheel", small.wheel, "--to", closed / "t")
    done = refused(command("apply", *line, *more))
    assert str(closed / "t") in done.stderr
    assert "choose another place:" in next_of(done) and "--to DIR" in next_of(done)


def test_a_checkout_in_a_closed_place(small, closed):
    done = refused(command("apply", "--patches", small.patches, "--into", closed / "t"))
    assert str(closed / "t") in done.stderr


def test_a_tree_to_export_in_a_closed_place(small, closed):
    line = ("--patches", small.patches, "--from", closed / "t")
    before = snapshot(small.patches)
    done = refused(command("export", *line))
    assert str(closed / "t") in done.stderr and "--from DIR" in next_of(done)
    assert snapshot(small.patches) == before


def test_a_tree_to_export_that_is_none(small, tmp_path):
    done = patchset("export", "--patches", small.patches, "--from", tmp_path)
    assert done.returncode == Exit.PATCH and "not a git repository" in done.stderr
    assert "--from DIR" in next_of(done) and "--to" not in next_of(done)


@pytest.mark.parametrize("verb", ["apply", "export"])
def test_patches_that_are_not_there(small, tmp_path, verb):
    line = ("--patches", tmp_path / "none", "--wheel", small.wheel)
    done = patchset(verb, *line)
    assert done.returncode == Exit.USAGE
    assert f"error: no such patch directory\nwhere: {tmp_path}/none\n" in done.stderr
    assert "git checkout" not in done.stderr


def test_a_release_that_is_not_pinned_names_the_whole_path(tmp_path):
    done = patchset("apply", "--patches", tmp_path, "--dry-run")
    assert done.returncode == Exit.PATCH
    assert next_of(done) == f"restore it: git checkout -- {tmp_path}/upstream.toml"


def test_patches_in_a_closed_place(small, closed):
    refused(command("apply", "--patches", closed / "t", "--wheel", small.wheel))


@pytest.mark.parametrize("mode", [0, 0o555])
def test_a_closed_cache_is_named_and_not_the_target(small, tmp_path, mode):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    line = ("--patches", small.patches, "--to", tmp_path / "t")
    done = refused(command("apply", *line), PATCHSET_CACHE=str(cache))
    cache.chmod(0o755)
    assert "error: the cache directory cannot be" in done.stderr
    assert f"where: {cache}\n" in done.stderr
    assert "PATCHSET_CACHE=DIR " in next_of(done)
    assert f"scripts/apply.sh --to {tmp_path / 't'} --patches" in next_of(done)
    assert not (tmp_path / "t").exists()


def test_a_right_that_is_missing_anywhere_is_no_bug():
    code = (
        "import sys\nfrom patchset import cli, verbs\n"
        "def closed(*arguments): raise PermissionError(13, 'Permission denied', '/x/y')\n"
        "verbs.check.check.run = closed\nsys.exit(cli.main(['check', '--json']))"
    )
    done = subprocess.run(
        [command()[0], "-P", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == Exit.ENVIRONMENT
    assert "where: /x/y" in done.stderr and '"exit": 4' in done.stdout
