"""The scripts themselves: their environment, made once, and what keeps it from being made."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from made_series import snapshot
from made_wheel import ROOT, environment, without_rights
from patchset.errors import Exit

# No index, and a locale in which a path beyond ASCII is not even text.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
NARROW = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The scripts and patches alone, in a path with a space and a letter beyond ASCII."""
    top = tmp_path_factory.mktemp("a clone \u00e9")
    shutil.copytree(
        ROOT / "scripts", top / "scripts", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "patches", top / "patches")
    return top


@pytest.fixture(scope="module")
def pip_failed(clone) -> tuple[int, str, str]:
    """What the first script says when pip finds nothing; its environment stays half-made."""
    line = ("--wheel", "a wheel", "--json")
    return ended(script(clone, "apply.sh", *line, **OFFLINE, **NARROW))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A folder with the wheels that requirements.txt names, as `pip download` fills it."""
    folder = tmp_path_factory.mktemp("wheels")
    for line in (ROOT / "scripts" / "requirements.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            put_wheel(folder, metadata.distribution(name), name, version)
    return folder


def put_wheel(folder: Path, installed, name: str, version: str) -> None:
    assert installed.version == version, "install tests/requirements.txt"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file in installed.files:
            if file.suffix != ".pyc" and file.name != "INSTALLER":
                wheel.write(file.locate(), str(file))


@pytest.fixture(scope="module")
def ready(clone, pip_failed, wheels) -> Path:
    """The clone with its environment made again, by four scripts at once, without an index."""
    assert (clone / ".venv" / ".patchset-venv").read_bytes() == b""
    env = {**OFFLINE, **NARROW, "PIP_FIND_LINKS": str(wheels)}
    four = [script(clone, "apply.sh", "--help", **env) for _ in "1234"]
    ran = [ended(each) for each in four]
    for code, out, said in ran:
        assert code == 0, said
        assert "usage: scripts/apply.sh" in out
    assert sum("setting up" in said for _, _, said in ran) == 1
    assert not (clone / ".venv.lock").exists()
    return clone


def script(clone: Path, name: str, *line, cwd="/", **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [str(clone / "scripts" / name), *map(str, line)],
        cwd=cwd,
        env={**os.environ, "PATCHSET_PYTHON": sys.executable, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, said = process.communicate(timeout=180)
    return process.returncode, out.decode(), said.decode()


def test_the_scripts_work_from_any_directory_and_through_a_link(ready, small, tmp_path):
    (tmp_path / "git.py").write_text("raise SystemExit('imported from the directory')")
    line = ("--patches", small.patches, "--wheel", small.wheel, "--to", "t")
    code, out, said = ended(script(ready, "apply.sh", *line, cwd=tmp_path))
    assert code == 0, said
    assert "setting up" not in said
    assert (tmp_path / "t" / "python").is_dir()
    (tmp_path / "link.sh").symlink_to(ready / "scripts" / "export.sh")
    linked = subprocess.run(
        [tmp_path / "link.sh", "--from", "t", "--patches", small.patches, "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert linked.returncode == 0, linked.stderr
    root = small.wheel.parent
    line = ("--root", root, "--wheel", small.wheel)
    code, out, said = ended(script(ready, "check.sh", *line, CDPATH="/tmp"))
    assert code == Exit.NO and "FAIL  CHECKPOINTS.md" in out


def test_pip_that_fails(pip_failed, clone):
    code, _, said = pip_failed
    assert code == Exit.ENVIRONMENT
    assert "error: pip could not install requirements.txt" in said
    assert "No matching distribution found for gitpython" in said
    assert "state: it is unfinished, and the next run makes it again" in said
    requirements = shlex.quote(str(clone / "scripts" / "requirements.txt"))
    assert f"python3 -m pip download -r {requirements} -d DIR" in said
    offline = said.strip().splitlines()[-1].strip()
    assert offline.startswith("PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR ")
    command = shlex.split(offline)[2:]
    assert command[1:] == ["--wheel", "a wheel", "--json"]
    assert Path(command[0]) == clone / "scripts" / "apply.sh"


@pytest.mark.parametrize("outdated", [False, True])
def test_an_environment_that_this_user_may_not_write(tmp_path, outdated):
    """A clone of another user: with nothing there yet, or an environment from older days."""
    place = tmp_path / "clone"
    venv = place / "venv"
    venv.mkdir(parents=True)
    if outdated:
        (venv / ".patchset-venv").write_text("older")
        venv.chmod(0o555)
    else:
        place.chmod(0o555)
    before = snapshot(place)
    requirements = ROOT / "scripts" / "requirements.txt"
    line = ["-m", "patchset.make_venv", venv, requirements, "./x.sh", "a b"]
    done = subprocess.run(
        without_rights([sys.executable, "-P", *map(str, line)]),
        env=environment(),
        capture_output=True,
        text=True,
    )
    place.chmod(0o755)
    assert done.returncode == Exit.ENVIRONMENT, done.stderr
    said = f"this user may not write the environment: {place.owner()} owns {place}"
    assert said in done.stderr and "state: nothing was changed" in done.stderr
    assert "PATCHSET_VENV=DIR ./x.sh 'a b'" in done.stderr
    assert snapshot(place) == before


def test_an_environment_that_somebody_else_made(clone, tmp_path):
    theirs = tmp_path / "venv"
    theirs.mkdir()
    (theirs / "mine").touch()
    code, _, said = ended(script(clone, "apply.sh", PATCHSET_VENV=str(theirs)))
    assert code == Exit.ENVIRONMENT
    assert "error: there is an environment that this tool did not make" in said
    assert list(theirs.iterdir()) == [theirs / "mine"]


def test_no_fit_python(clone, tmp_path):
    for name, text in {
        "python3": "exit 1",
        "python3.13": 'echo "older than 3.11"',
        "python3.12": 'echo "has no venv module: install python3-venv"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for tool in ("bash", "dirname", "readlink", "cmp", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    env = {"PATCHSET_VENV": str(tmp_path / "v"), "PATH": str(tmp_path)}
    process = script(clone, "apply.sh", PATCHSET_PYTHON="", **env)
    code, _, said = ended(process)
    assert code == Exit.ENVIRONMENT
    assert "error: no Python 3.11 or newer" in said
    assert "python3: not found; python3.13: older than 3.11; python3.12: has no" in said
    assert "python3.11: not found" in said
    chosen = script(clone, "apply.sh", PATCHSET_PYTHON=str(tmp_path / "none"), **env)
    code, _, said = ended(chosen)
    assert code == Exit.ENVIRONMENT and "python3.13" not in said
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    "name, tier, variable",
    [("bench.sh", "kernel", "PYTHON"), ("test.sh", "unit", "PATCHSET_TEST_PYTHON")],
)
@pytest.mark.parametrize("kind", ["none", "a directory", "no python"])
def test_a_chosen_python_that_does_not_run(clone, tmp_path, name, tier, variable, kind):
    python = tmp_path / "a python"
    if kind == "a directory":
        python.mkdir()
    elif kind == "no python":
        python.write_text("#!/bin/sh\nexit 0\n")
        python.chmod(0o755)
    before = snapshot(clone)
    process = script(clone, name, tier, **{variable: str(python)})
    code, out, said = ended(process)
    assert code == Exit.ENVIRONMENT and out == ""
    error, where, state, after = said.splitlines()
    assert error.startswith("error: this Python does not run") and ".sh" not in error
    assert where == f"where: {python}" and state.startswith("state: nothing was")
    assert f"{variable}=/path/to/python " in after
    assert after.strip().endswith(f"{name}' {tier}") and snapshot(clone) == before
