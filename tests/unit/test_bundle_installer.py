"""The installer of a bundle: what it refuses and warns of, and that it leaves nothing then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from made_bundle import fill, install, made, site_with_torch
from patchset.bundle import make
from test_bundle_wheels import TARGET


def test_a_damaged_part_and_a_missing_one(made, tmp_path, site_with_torch):
    part = made.folder / made.parts[1][0]
    data = part.read_bytes()
    part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = install(made, tmp_path / "place", site_with_torch)
    assert done.returncode == 4 and f"{part.name} is damaged" in done.stderr
    part.unlink()
    done = install(made, tmp_path / "place", site_with_torch)
    assert done.returncode == 4 and f"{part.name} is missing" in done.stderr
    assert not list(tmp_path.glob("place*"))


def test_a_folder_that_is_there(made, tmp_path, site_with_torch):
    done = install(made, tmp_path, site_with_torch)
    assert done.returncode == 4 and "is there already" in done.stderr


def test_a_python_without_torch(made, tmp_path):
    env = {**os.environ, "PYTHONPATH": ""}
    done = install(made, tmp_path / "place", env, "-S")
    assert done.returncode == 4 and "has no torch" in done.stderr


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("python", "3.7", "is for Python 3.7"),
        ("machine", "riscv64", "is for riscv64"),
    ],
)
def test_another_machine(made, tmp_path, site_with_torch, key, value, said):
    file = made.folder / make.MANIFEST
    manifest = json.loads(file.read_text())
    manifest["target"][key] = value
    file.write_text(json.dumps(manifest))
    done = install(made, tmp_path / "place", site_with_torch)
    assert done.returncode == 4 and said in done.stderr
    assert not (tmp_path / "place").exists()


def test_a_manifest_that_is_none(made, tmp_path, site_with_torch):
    manifest = made.folder / make.MANIFEST
    for data in ("", "{", "[]", '{"parts": []}', '{"parts": [1]}', None):
        manifest.write_text(data) if data is not None else manifest.unlink()
        done = install(made, tmp_path / "place", site_with_torch)
        assert done.returncode == 4
        what, where, state, after = done.stderr.splitlines()
        missing = data is None
        assert what.endswith("missing beside install.py" if missing else "is damaged")
        assert where == f"where: {manifest}" and state == "state: nothing was installed"
        assert after == f"next:  copy it {'too' if missing else 'again'}"


def test_a_place_that_is_none(made, tmp_path, site_with_torch):
    (tmp_path / "file").touch()
    done = install(made, tmp_path / "file" / "place", site_with_torch)
    assert done.returncode == 4
    what, where, state, after = done.stderr.splitlines()[-4:]
    assert what.startswith("error: a file or folder can't be used: ")
    assert where == f"where: {tmp_path / 'file'}" and "name another folder" in after


@pytest.mark.parametrize(
    "version, code, said",
    [
        ("__version__ = '2.11.0+cu130'", 0, ""),
        ("__version__ = '2.11.0a0+nv'", 0, "this Python has torch 2.11.0a0+nv"),
        ("__version__ = '2.9.1'", 4, "error: this Python has torch 2.9.1"),
        (None, 0, "tells no version, and may be a stand-in"),
    ],
)
def test_another_torch(tmp_path, site_with_torch, version, code, said):
    def with_metadata(site: Path) -> list[str]:
        (site / "sglang-0.5.13.dist-info").mkdir()
        text = (
            "Name: sglang\nRequires-Dist: torchao==0.9\nRequires-Dist: torch==2.11.0\n"
        )
        (site / "sglang-0.5.13.dist-info" / "METADATA").write_text(text)
        return fill(site)

    torch = tmp_path / "torch" / "torch"
    if version is None:
        (torch / "__init__.py").unlink()
    else:
        (torch / "version.py").write_text(f"from typing import Any\n{version}\n")
    made = make.write(tmp_path / "b", with_metadata, TARGET, "x", None, 1 << 20, 0)
    # An empty folder comes after a torch that is installed.
    done = install(made, tmp_path / "place", site_with_torch, "-S")
    assert done.returncode == code and said in done.stderr, done.stderr
    assert ("are built for torch 2.11.0" in done.stderr) == bool(said)
    assert (str(torch) in done.stderr) == bool(said)
    assert (tmp_path / "place").exists() == (code == 0)


def test_help_and_wrong_usage_of_the_installer(made):
    for words, code in ((["--help"], 0), (["-h"], 0), ([], 2), (["a", "b"], 2)):
        command = [sys.executable, str(made.folder / "install.py"), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code
        assert "python3 install.py DIR" in (done.stderr if code else done.stdout)


def test_an_interrupted_installation_leaves_nothing(made, tmp_path, site_with_torch):
    # It waits for a part that is a pipe without a writer.
    part = made.folder / made.parts[1][0]
    part.unlink()
    os.mkfifo(part)
    text = (made.folder / "install.py").read_text()
    (made.folder / "install.py").write_text(
        text.replace("check(part[", "print(part[", 1)
    )
    command = [sys.executable, made.folder / "install.py", tmp_path / "place"]
    running = subprocess.Popen(
        command, env=site_with_torch, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob(".place-*")) and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 143 and said.startswith("error: interrupted"), said
    assert not list(tmp_path.glob("*place*"))
