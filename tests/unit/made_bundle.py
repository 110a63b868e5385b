"""A small bundle made for a test, and its installer run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchset.bundle import make
from test_bundle_wheels import TARGET


def fill(site: Path) -> list[str]:
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").write_text("answer = 42\n")
    # Bytes that do not pack: the parts are many.
    (site / "sglang" / "data.bin").write_bytes(os.urandom(10_000))
    return ["sglang==0.5.13"]


@pytest.fixture
def made(tmp_path) -> make.Bundle:
    folder = tmp_path / "bundle"
    return make.write(folder, fill, TARGET, "0050-x", "c" * 40, 3_000, preset=0)


@pytest.fixture
def site_with_torch(tmp_path) -> dict[str, str]:
    (tmp_path / "torch" / "torch").mkdir(parents=True)
    (tmp_path / "torch" / "torch" / "__init__.py").touch()
    return {**os.environ, "PYTHONPATH": str(tmp_path / "torch")}


def install(made: make.Bundle, place: Path, env: dict[str, str], *options: str):
    command = [sys.executable, *options, str(made.folder / "install.py"), str(place)]
    return subprocess.run(command, env=env, capture_output=True, text=True)
