"""The command line of apply in a checkout, an installation, from git: codes and streams."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments import Environment, make_venv
from made_series import BASE, after, git, make_repository, make_series, snapshot
from made_wheel import ROOT, patchset
from patchset import gitenv


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return make_series(tmp_path_factory.mktemp("the series"))


class Cli:
    def __init__(self, series, directory):
        self.directory = directory
        scripts = str(Path(gitenv.__file__).parents[1])
        self.env = {**os.environ, "PYTHONPATH": scripts}
        self.command = [sys.executable, "-P", "-m", "patchset", "apply"]
        self.command += ["--patches", str(series.directory)]

    def __call__(self, *args) -> subprocess.CompletedProcess:
        line = self.command[self.command.index("apply") :]
        return patchset(*line, *args, env=self.env, cwd=self.directory)

    def json(self, *args) -> dict:
        done = self(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def cli(series, tmp_path):
    place = tmp_path / "anywhere ü"
    place.mkdir()
    return Cli(series, place)


def assert_refused(done, code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    labels = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert {"error", "where", "state", "next"} <= set(labels)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_installed_and_revert(cli, tmp_path):
    env = Environment(tmp_path / "env ü")
    before = snapshot(env.site)
    done = cli("--installed", "--python", env.python)
    assert done.returncode == 0 and "5 files changed" in done.stdout, done.stderr
    assert env.holds(after())
    assert cli.json("--installed", "--python", env.python)["already"] is True
    assert (
        cli.json("--installed", "--python", env.python, "--revert")["nothing_to_do"]
        is False
    )
    assert snapshot(env.site) == before
    assert (
        cli.json("--installed", "--python", env.python, "--revert")["nothing_to_do"]
        is True
    )


def test_installed_upto_then_all(cli, tmp_path):
    env = Environment(tmp_path / "env")
    assert cli("--installed", "--python", env.python, "--upto", "0020").returncode == 0
    assert env.holds(after(2))
    assert cli("--installed", "--python", env.python, "--upto", "0020").returncode == 0
    assert_refused(
        cli("--installed", "--python", env.python), 3, "2 of 3 patches", "--revert"
    )


def test_the_command_of_a_refusal_can_be_run_as_it_is(cli, tmp_path):
    """Paths with spaces are quoted: here the revert that the refusal names."""
    env = Environment(tmp_path / "my env")
    cli("--installed", "--python", env.python, "--upto", "0020")
    done = cli("--installed", "--python", env.python)
    told = next(line for line in done.stderr.splitlines() if line.startswith("next:"))
    command = told.removeprefix("next:").partition(", then")[0].strip()
    script, *options = shlex.split(command)
    assert script == str(ROOT / "scripts" / "apply.sh")
    command = shlex.join([*cli.command, *options])
    done = subprocess.run(command, shell=True, cwd=cli.directory, env=cli.env)
    assert done.returncode == 0 and env.holds(BASE)


def test_installed_refusals(cli, tmp_path):
    python, _ = make_venv(tmp_path / "empty")
    assert_refused(cli("--installed", "--python", python), 4, "no sglang")
    other = Environment(tmp_path / "other", version="0.5.14")
    assert_refused(cli("--installed", "--python", other.python), 3, "0.5.14", "0.5.13")


def test_installed_stopped_by_a_signal_is_as_before(cli, tmp_path):
    """Signals at some moment of the real command: a revert then gives all back."""
    env = Environment(tmp_path / "env")
    before = snapshot(env.site)
    for number, delay in (
        (signal.SIGINT, 0.25),
        (signal.SIGTERM, 0.35),
        (signal.SIGKILL, 0.45),
    ):
        command = [*cli.command, "--installed", "--python", str(env.python)]
        process = subprocess.Popen(
            command, env=cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(delay)
        process.send_signal(number)
        _, said = process.communicate()
        assert b"Traceback" not in said or process.returncode == -signal.SIGINT
        if process.returncode > 0:
            assert snapshot(env.site) == before
        assert cli("--installed", "--python", env.python, "--revert").returncode == 0
        assert snapshot(env.site) == before


def test_into(cli, tmp_path):
    repo = tmp_path / "my checkout"
    make_repository(repo, BASE)
    result = cli.json("--into", repo, "--dry-run")
    assert (
        result["state"] == "would be made"
        and git(repo, "branch", "--list", "sm120/*") == ""
    )
    done = cli("--into", repo)
    assert done.returncode == 0 and result["tip"] in done.stdout
    assert cli.json("--into", repo)["state"] == "already there"
    next_command = next(
        line for line in done.stdout.splitlines() if line.startswith("next")
    )
    subprocess.run(next_command.removeprefix("next").strip(), shell=True, check=True)
    assert {path: (repo / path).read_bytes() for path in after()} == after()


def test_into_refusals(cli, tmp_path):
    repo = tmp_path / "repo"
    make_repository(repo, BASE)
    assert_refused(cli("--into", tmp_path / "none"), 2, "no such directory")
    assert_refused(cli("--into", cli.directory), 3, "not a git repository")
    assert cli("--into", repo, "--upto", "0010").returncode == 0
    assert_refused(cli("--into", repo), 3, "exists already", "--force")
    assert cli("--into", repo, "--force").returncode == 0
    (repo / "python/sglang/srt/environ.py").write_text("dirty\n")
    assert_refused(cli("--into", repo), 3, "not committed", "environ.py")


def test_source_git(cli, tmp_path):
    repo = tmp_path / "upstream ü"
    make_repository(repo, BASE)
    assert_refused(
        cli("--source", "git", "--url", repo, "--to", "tree"), 4, "no tag v0.5.13"
    )
    git(repo, "tag", "v0.5.13")
    done = cli("--source", "git", "--url", repo, "--to", "tree")
    assert done.returncode == 0, done.stderr
    tree = cli.directory / "tree"
    assert {path: (tree / path).read_bytes() for path in after()} == after()
    values = cli.json("--source", "git", "--url", repo, "--to", "tree")
    assert values["state"] == "already there"
    assert sorted(path.name for path in cli.directory.iterdir()) == ["tree"]


@pytest.mark.parametrize(
    "args",
    [
        ["--revert"],
        ["--python", "python3"],
        ["--into", "a", "--installed"],
        ["--into", "a", "--source", "git"],
        ["--installed", "--force"],
        ["--installed", "--revert", "--upto", "0010"],
        ["--installed", "--upto", "0099"],
    ],
)
def test_options_that_mean_nothing_together(cli, args):
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")


def test_the_python_that_was_taken_by_default_is_named(cli, tmp_path):
    env = Environment(tmp_path / "env")
    cli.env["VIRTUAL_ENV"] = str(tmp_path / "env")
    said = f"python  {env.python} (by default; --python PY names another)"
    for more, count in (
        (["--dry-run"], "would change 5 files and RECORD"),
        ([], "5 files changed, and RECORD"),
        (["--revert"], "5 files and RECORD put back as before"),
    ):
        done = cli("--installed", *more)
        assert said in done.stdout and count in done.stdout, done.stderr
    named = cli("--installed", "--python", env.python, "--dry-run")
    assert f"python  {env.python}\n" in named.stdout


def test_a_failure_as_json(cli, tmp_path):
    for args, code in (
        (["--into", cli.directory, "--json"], 3),
        (["--json", "--revert"], 2),
        (["--json", "--installed", "--python", "/none"], 2),
    ):
        done = cli(*args)
        told = json.loads(done.stdout)
        assert told.keys() == {"error", "where", "state", "next", "exit"}
        assert (done.returncode, told["exit"]) == (code, code)
        assert told["error"] in done.stderr and told["next"]


def test_another_users_checkout_is_left_to_them(cli, tmp_path):
    """Root's objects would lie where the owner's git could no longer add any."""
    if os.geteuid():
        pytest.skip("only root can make a repository of another user")
    repo = tmp_path / "theirs"
    make_repository(repo, BASE)
    for path in [repo, *repo.rglob("*")]:
        os.lchown(path, 65534, 65534)
    before = snapshot(repo)
    assert_refused(cli("--into", repo), 4, "belongs to another user: nobody", "as that")
    assert snapshot(repo) == before
    assert cli("--into", repo, "--dry-run").returncode == 0
