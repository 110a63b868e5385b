"""What the unit tier shares: a small release, its patched tree, and the pinned SGLang itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from made_bisect import FAKE, Repository, Tree
from made_records import Made, record
from made_wheel import ROOT, Release, make_release
from patchset import base, gitenv, target, wheel
from patchset.bisect import probes, session
from patchset.series import load_series

gitenv.scrub()
# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: the tests of
# interrupted commands would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Release:
    """A release of five files and three patches; read it only."""
    return make_release(tmp_path_factory.mktemp("small release"))


@pytest.fixture(scope="session")
def small_tree(small, tmp_path_factory) -> Path:
    """The patched tree of `small`; copy it before changing it."""
    series = small.series

    def fill(directory: Path) -> str:
        base.init_repository(directory)
        return base.import_base(directory, small.wheel, series.pin)

    place = tmp_path_factory.mktemp("small tree") / "sglang"
    target.apply_to(place, series, series, target.Source("wheel", fill))
    return place


@pytest.fixture
def own(small, tmp_path) -> Release:
    """A copy of `small` that a test may change."""
    shutil.copytree(small.wheel.parent, tmp_path / "own", dirs_exist_ok=True)
    copied = tmp_path / "own"
    return Release(copied / small.wheel.name, copied / "patches" / "0.5.13")


@pytest.fixture
def own_tree(small_tree, tmp_path) -> Path:
    """A copy of `small_tree` that a test may change."""
    return Path(shutil.copytree(small_tree, tmp_path / "own tree", symlinks=True))


@pytest.fixture(scope="session")
def real_wheel() -> Path:
    """The pinned wheel itself, from the cache or the network."""
    return wheel.obtain(load_series(ROOT / "patches" / "0.5.13").pin)


@pytest.fixture(scope="session")
def real_base(real_wheel, tmp_path_factory) -> Path:
    """A repository with the pinned base commit; add no refs to it."""
    repo = tmp_path_factory.mktemp("real base")
    base.init_repository(repo)
    base.import_base(repo, real_wheel, load_series(ROOT / "patches" / "0.5.13").pin)
    return repo


@pytest.fixture
def path_with_a_gpu(tmp_path) -> str:
    """A PATH with an nvidia-smi that lists one H200."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 9.0'\n")
    smi.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own with little room, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user can't mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def probe(monkeypatch):
    """Makes `--probe fake:speed` known; call it with what differs."""

    def known(**different) -> None:
        fake = replace(FAKE, **different)
        monkeypatch.setattr(probes, "find", lambda *_: fake)

    known()
    return known


@pytest.fixture
def tree(tmp_path, probe):
    return lambda *speeds: Tree(tmp_path, list(speeds))


@pytest.fixture
def repository(tmp_path, probe, monkeypatch):
    """Makes a repository; the pin that the verb reads is that of the made release."""

    def made(*speeds) -> Repository:
        repo = Repository(tmp_path, list(speeds))
        pin = repo.tree.release.series.pin
        monkeypatch.setattr(session, "load_pin", lambda directory: pin)
        return repo

    return made


@pytest.fixture
def recorded(own) -> Made:
    """A small release with a record and its page."""
    record(own.wheel.parent, "0030-indexer")
    found = Made(own)
    assert found.run("render").returncode == 0
    return found


@pytest.fixture
def committed(recorded):
    """`recorded` in a repository of its own, as a user has it."""
    for line in (
        ("init", "-q"),
        ("add", "ci", "CHECKPOINTS.md"),
        ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "all"),
    ):
        gitenv.run(recorded.root, *line)
    return recorded
