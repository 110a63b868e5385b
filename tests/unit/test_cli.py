"""Exit codes and messages of the command line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from made_wheel import ROOT, command, environment, started
from patchset import cli, gitenv
from patchset.errors import Exit, Failure

SCRIPTS = ("apply", "bisect", "check", "checkpoint", "export")


@pytest.mark.parametrize(
    "line, said",
    [
        ([], "the following arguments are required: VERB"),
        (["aply"], "invalid choice: 'aply'"),
        (["apply", "--source", "tar"], "argument --source: invalid choice: 'tar'"),
        (["apply", "--revert"], "--revert needs --installed"),
        (["apply", "--python", "x"], "--python needs --installed"),
        (["apply", "--to", "a", "--into", "b"], "not allowed with argument --to"),
        (["apply", "--into", "a", "--installed"], "not allowed with argument --into"),
        (["apply", "--into", "a", "--wheel", "b"], "go with a tree of its own only"),
        (["apply", "--installed", "--source", "git"], "go with a tree of its own only"),
        (["apply", "--installed", "--force"], "--force means nothing with --installed"),
        (["apply", "--url", "x"], "--url needs --source git"),
        (["apply", "--source", "git", "--wheel", "x"], "--wheel means nothing"),
        (["apply", "--installed", "--revert", "--upto", "1"], "means nothing with it"),
        (["checkpoint"], "the following arguments are required: ACTION"),
        (["check", "more"], "unrecognized arguments: more"),
    ],
)
def test_usage(line, said):
    done = started(*line)
    assert done.returncode == Exit.USAGE and done.stdout == ""
    script = f"scripts/{line[0]}.sh" if line and line[0] in SCRIPTS else "patchset"
    assert said in done.stderr and done.stderr.startswith(f"usage: {script}")


def test_help_names_the_exit_codes():
    done = started("--help")
    assert done.returncode == 0
    exits = (
        "3 patch or drift: patches, tree, wheel or checkout are not what they must be"
    )
    for word in (*SCRIPTS, exits):
        assert word in " ".join(done.stdout.split())
    assert exits in " ".join(started("apply", "--help").stdout.split())


def test_a_failure_is_labelled_lines():
    failure = Failure(
        Exit.PATCH, "what", where="here\nand there", state="as it was", next="do this"
    )
    assert failure.lines() == [
        "error: what",
        "where: here\n       and there",
        "state: as it was",
        "next:  do this",
    ]
    assert Failure(Exit.NO, "no").lines() == ["error: no"]
    gaps = Failure(Exit.NO, "no", where="here\n\nsaid\n")
    assert gaps.lines() == ["error: no", "where: here\n       said"]
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 70, 130]


def run_with(line: str, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    """Run the CLI after a line of Python that changes it."""
    code = f"import sys\nfrom patchset import cli, verbs\n{line}\n"
    code += "sys.exit(cli.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env=environment(env),
        capture_output=True,
        text=True,
    )


BUG = "verbs.check.check.run = lambda *arguments: 1 // 0"


def test_a_bug_is_short_and_its_traceback_is_kept(tmp_path):
    done = run_with(BUG, "check", TMPDIR=str(tmp_path))
    assert done.returncode == Exit.BUG and done.stdout == ""
    assert "error: a bug of patchset: ZeroDivisionError: " in done.stderr
    assert "Traceback" not in done.stderr
    (log,) = tmp_path.glob("patchset-bug-*.log")
    assert f"where: {log}" in done.stderr
    assert "Traceback" in log.read_text() and "in main" in log.read_text()


def test_a_bug_with_debugging_or_without_room_is_printed(tmp_path):
    done = run_with(BUG, "check", PATCHSET_DEBUG="1", TMPDIR=str(tmp_path))
    assert done.returncode == Exit.BUG and "Traceback" in done.stderr
    assert list(tmp_path.iterdir()) == []
    gone = 'import tempfile; tempfile.tempdir = "/nowhere"; '
    done = run_with(gone + BUG, "check")
    assert done.returncode == Exit.BUG and "Traceback" in done.stderr


def test_a_reader_that_goes_away_ends_it_quietly(small, tmp_path):
    line = command(
        *("apply", "--patches", small.patches, "--wheel", small.wheel),
        *("--to", tmp_path / "t"),
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(line, env=environment(), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr
    assert gitenv.text(tmp_path / "t", "status", "--porcelain") == ""


def test_a_path_that_the_terminal_cannot_show(small, tmp_path):
    target = tmp_path / "b\u00e4um \u6728"
    done = started(
        *("apply", "--patches", small.patches, "--wheel", small.wheel, "--to", target),
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    assert "b\\xe4um \\u6728" in done.stdout
    assert target.is_dir()


def test_no_git(small, tmp_path):
    done = started(
        *("apply", "--patches", small.patches, "--wheel", small.wheel),
        *("--to", tmp_path / "t"),
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: git was not found on PATH" in done.stderr
    assert "install git 2.32 or newer" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "script, said",
    [
        ("echo git version 2.25.1", "git version 2.25.1 is too old: git 2.32"),
        ("echo nonsense", "nonsense is too old"),
        ("exit 3", "git does not run"),
    ],
)
def test_a_git_that_does_not_do(tmp_path, script, said):
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\n{script}\n")
    git.chmod(0o755)
    done = started("check", env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert done.returncode == Exit.ENVIRONMENT
    assert said in done.stderr and f"where: {git}" in done.stderr


def test_a_python_without_the_packages(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    line = [bare / "bin" / "python", "-P", "-m", "patchset", "check"]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert done.returncode == Exit.ENVIRONMENT
    assert "error: this Python lacks the package git" in done.stderr
    assert "next:  call the scripts" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["2.32.0", "2.39.5", "2.50.GIT", "3.0"])
def test_a_git_that_does(tmp_path, monkeypatch, version):
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\necho git version {version}\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = dict(os.environ)
    gitenv.scrub()
    monkeypatch.undo()
    gitenv.scrub()
    assert before.keys() <= set(os.environ) | {"PATH"}


def test_a_command_in_git_gets_no_directory_of_ours(tmp_path):
    gitenv.run(tmp_path, "init", "--quiet", "--template=")
    with pytest.raises(gitenv.GitCommandError) as caught:
        gitenv.run(tmp_path / "gone", "status")
    assert "cannot change to" in gitenv.message_of(caught.value)


def test_git_sees_our_settings_only(tmp_path):
    # -z: without it git quotes a path that is not ASCII.
    line = ["config", "--list", "--show-scope", "--show-origin", "-z"]
    listing = gitenv.text(tmp_path, *line).split("\0")
    origins = {part for part in listing if part.startswith(("file:", "command"))}
    origins.discard("command")
    assert origins == {"command line:", f"file:{ROOT}/scripts/patchset/gitconfig"}
    # Messages are read, and dates and hashes made, whatever the machine is set to.
    fixed = {"LC_ALL": "C", "TZ": "UTC", "GIT_DEFAULT_HASH": "sha1"}
    fixed |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
    assert fixed.items() <= os.environ.items()


def test_the_clone_keeps_the_way_to_the_network(monkeypatch):
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")
    monkeypatch.setenv("GIT_SSL_CAINFO", "/ca")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'user.name=x'")
    gitenv.scrub()
    assert os.environ["GIT_SSH_COMMAND"] == "ssh -i key"
    assert os.environ["GIT_SSL_CAINFO"] == "/ca"
    assert not {"GIT_DIR", "GIT_CONFIG_PARAMETERS"} & set(os.environ)


def test_every_verb_is_registered_once():
    parser = cli._parser()
    (action,) = [a for a in parser._actions if a.metavar == "VERB"]
    assert {
        "apply",
        "bench",
        "bisect",
        "bundle",
        "check",
        "checkpoint",
        "export",
        "serve",
        "smoke",
    } == set(action.choices)


@pytest.mark.parametrize("how", ["> /dev/full", ">&-", ">&- 2>&-"])
def test_a_closed_or_full_output_is_no_traceback(how, tmp_path):
    words = shlex.join(
        [*command("apply"), "--json", "--to", str(tmp_path / ("t" * 300))]
    )
    done = subprocess.run(
        f"{words} {how}", shell=True, capture_output=True, text=True, env=environment()
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == Exit.ENVIRONMENT


def test_a_full_output_is_told_to_make_room():
    words = shlex.join(command("apply", "--dry-run", "--json"))
    done = subprocess.run(
        f"{words} > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == Exit.ENVIRONMENT
    assert "next:  make room there, or send the output elsewhere" in done.stderr
