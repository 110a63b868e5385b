"""`apply --installed` with the shipped series, on the pinned SGLang itself."""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from environments import make_venv, row_of
from made_series import snapshot
from made_wheel import ROOT
from patchset.commits import commit_series
from patchset import gitenv
from patchset.installed import apply_installed, revert_installed
from patchset.series import load_series

INFO = "sglang-0.5.13.dist-info"


@pytest.fixture(scope="module")
def series():
    return load_series(ROOT / "patches" / "0.5.13")


@pytest.fixture(scope="module")
def expected(series, real_base):
    """Each touched file, as the whole tree has it after the series."""
    tip = commit_series(real_base, series.pin.commit, series)[-1].commit
    return {
        path.removeprefix("python/"): gitenv.run(
            real_base, "cat-file", "blob", f"{tip}:{path}"
        )
        for path in series.paths
    }


def assert_record_is_true(site: Path) -> None:
    text = (site / INFO / "RECORD").read_text()
    rows = list(csv.reader(text.splitlines()))
    assert len({path for path, _, _ in rows}) == len(rows)
    bare = (f"{INFO}/RECORD", f"{INFO}/sm120-patchset/manifest.json")
    for path, digest, size in rows:
        if path not in bare and not path.startswith("../"):
            assert row_of(site, site / path) == f"{path},{digest},{size}"


def test_the_wheel_laid_into_site_packages(real_wheel, series, expected, tmp_path):
    python, site = make_venv(tmp_path / "env ü")
    with zipfile.ZipFile(real_wheel) as archive:
        archive.extractall(site)
    before = snapshot(site)
    result = apply_installed(series, str(python))
    assert result.files == len(expected)
    assert {path: (site / path).read_bytes() for path in expected} == expected
    touched = {
        path for path, content in snapshot(site).items() if before.get(path) != content
    }
    assert {p for p in touched if (site / p).is_file() and INFO not in p} == set(
        expected
    )
    assert_record_is_true(site)
    assert apply_installed(series, str(python)).already
    revert_installed(str(python))
    assert snapshot(site) == before


def test_what_pip_installed_is_patched_reverted_and_uninstalled_whole(
    real_wheel, series, expected, tmp_path
):
    environment = tmp_path / "env"
    python, site = make_venv(environment)
    empty = set(environment.rglob("*"))
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    pip += ["--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-compile", "--ignore-requires-python"]
    wheel = compatible(real_wheel, tmp_path)
    subprocess.run([*pip, "install", *offline, str(wheel)], check=True)
    before = snapshot(site)
    apply_installed(series, str(python))
    assert {path: (site / path).read_bytes() for path in expected} == expected
    assert_record_is_true(site)
    revert_installed(str(python))
    assert snapshot(site) == before

    apply_installed(series, str(python))
    compile_new = [
        str(python),
        "-m",
        "compileall",
        "-q",
        str(site / "sglang/srt/layers/sm120"),
    ]
    subprocess.run(compile_new, check=True)
    subprocess.run([*pip, "uninstall", "--yes", "sglang"], check=True)
    assert set(environment.rglob("*")) == empty


def compatible(wheel: Path, directory: Path) -> Path:
    """The wheel under a name that any Python accepts: its sources are the same for all."""
    link = directory / "sglang-0.5.13-py3-none-any.whl"
    link.symlink_to(wheel)
    return link
