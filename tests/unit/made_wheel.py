"""A small pinned release made for a test: a wheel, the pin that its bytes give, and patches over it."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import pytest

from made_series import BASE, EXECUTABLE, STEPS, Files, commit_all, write_files
from patchset import base, cli, export, gitenv
from patchset.errors import Failure
from patchset.pin import load_pin
from patchset.series import Series, load_series

ROOT = Path(__file__).resolve().parents[2]

WHEEL = "sglang-0.5.13-cp312-cp312-manylinux_2_34_x86_64.whl"

# In the wheel, and never in the base.
OUTSIDE = {
    "sglang/srt/grpc/_core.cpython-312-x86_64-linux-gnu.so": b"\x7fELF compiled",
    "tools/get_version_tag.py": b"print()\n",
}


@dataclass(frozen=True)
class Release:
    """A wheel file and a patch directory that is pinned to it."""

    wheel: Path
    patches: Path

    @property
    def series(self) -> Series:
        return load_series(self.patches)


def make_wheel(path: Path, files: Files = BASE, version: str = "0.5.13") -> Path:
    """A wheel with these sources (given as python/sglang/...) and the usual rest."""
    metadata = f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            mode = 0o755 if name == EXECUTABLE else 0o644
            _add(archive, name.removeprefix("python/"), data, mode)
        for name, data in OUTSIDE.items():
            _add(archive, name, data, 0o755)
        info = f"sglang-{version}.dist-info"
        _add(archive, f"{info}/METADATA", metadata.encode(), 0o644)
        _add(archive, f"{info}/WHEEL", b"Wheel-Version: 1.0\n", 0o644)
    return path


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, (2026, 6, 11, 9, 18, 24))
    entry.external_attr = (0o100000 | mode) << 16
    archive.writestr(entry, data)


def message(name: str, *, evidence: str = "none", **trailers: str) -> str:
    """A complete commit message for a patch of this name; keyword arguments change trailers."""
    values = {
        "Patch": name,
        "Upstream-Status": "Inappropriate [made for a test]",
        "Origin": "a test",
        "Env-Flag": "none",
        "Scope": "a test",
        "Depends-On": "none",
        "Tests": "none",
        "Evidence": evidence,
        "Drop-When": "never",
    }
    values |= {key.replace("_", "-"): value for key, value in trailers.items()}
    lines = "".join(f"{key}: {value}\n" for key, value in values.items() if value)
    return f"{name[5:]}: change what it says\n\nWhy it is so.\n\n{lines}"


def messages(steps: list[tuple[str, Files]]) -> dict[str, str]:
    """A message per step: the first is generated from kernels/, the last has evidence."""
    made = {name: message(name) for name, _ in steps}
    first, last = steps[0][0], steps[-1][0]
    sources = "kernels/__init__.py kernels/config.py"
    made[first] = message(first, Generated_From=sources)
    made[last] = message(last, evidence=last)
    return made


def make_release(
    directory: Path,
    files: Files = BASE,
    steps: list[tuple[str, Files]] = STEPS,
    said: dict[str, str] | None = None,
) -> Release:
    """Write a wheel and patches/0.5.13 pinned to it below directory, and kernels/ beside them."""
    gitenv.scrub()
    wheel = make_wheel(directory / WHEEL, files)
    patches = directory / "patches" / "0.5.13"
    patches.mkdir(parents=True)
    repo = directory / "made"
    repo.mkdir()
    commit = pin(repo, wheel, patches)
    gitenv.run(repo, "checkout", "--quiet", "-B", base.BRANCH, commit)
    said = said or messages(steps)
    for name, changes in steps:
        write_files(repo, changes)
        commit_all(repo, said[name])
        data = export.format_commit(repo, "HEAD")
        (patches / f"{name}.patch").write_bytes(data)
    kernels = directory / "kernels"
    kernels.mkdir()
    for path, data in steps[0][1].items():
        (kernels / Path(path).name).write_bytes(data)
    return Release(wheel, patches)


def pin(repo: Path, wheel: Path, patches: Path) -> str:
    """Import the wheel into repo and write the upstream.toml that its bytes and base give."""
    _write_pin(patches, wheel, "0" * 40, "0" * 40)
    base.init_repository(repo)
    try:
        base.import_base(repo, wheel, load_pin(patches))
    except Failure:
        pass  # the pin above is no tree's
    tree = gitenv.text(repo, "rev-parse", f"{base.REF}^{{tree}}")
    commit = gitenv.text(repo, "rev-parse", base.REF)
    _write_pin(patches, wheel, tree, commit)
    return commit


def _write_pin(patches: Path, wheel: Path, tree: str, commit: str) -> None:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (patches / "upstream.toml").write_text(
        f'version = "0.5.13"\ntag = "v0.5.13"\ntree = "{tree}"\ncommit = "{commit}"\n'
        f'git_url = "https://git.invalid/sglang"\n\n[[wheel]]\nname = "{wheel.name}"\n'
        f'sha256 = "{digest}"\nplatform = "manylinux_2_34_x86_64"\npython = "3.12"\n'
    )


def patchset(
    *arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | str = "."
) -> subprocess.CompletedProcess:
    """What `python -m patchset ARGUMENTS` does and prints, in a fork of this process.

    A fork has imported everything already, which is most of what the command itself would cost.
    """
    variables = environment(env)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _be_the_command([*map(str, arguments)], variables, cwd, out, said)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        said.seek(0)
        return subprocess.CompletedProcess(
            command(*arguments), code, out.read().decode(), said.read().decode()
        )


def _be_the_command(
    arguments: list[str], env: dict[str, str], cwd: Path | str, out, said
) -> NoReturn:
    code = 1
    # What the tests hold stays: to look for garbage in it would copy it, page by page.
    gc.freeze()
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        code = cli.main(arguments)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def started(
    *arguments: str | Path, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess:
    """Run `python -m patchset ARGUMENTS` as the scripts do: a process of its own, from the start."""
    return subprocess.run(
        command(*arguments),
        env=environment(env),
        capture_output=True,
        text=True,
        **options,
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "patchset", *map(str, arguments)]


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a child process: our package, compiled once for all of them."""
    found = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    found["PYTHONPYCACHEPREFIX"] = _compiled().name
    return {**found, **(extra or {})}


@lru_cache(maxsize=None)
def _compiled() -> tempfile.TemporaryDirectory:
    """A folder with what our package imports, compiled.

    Python looks nowhere else for compiled modules, its own ones too, and a probe writes none: each would compile
    them again.
    """
    folder = tempfile.TemporaryDirectory(prefix="patchset-compiled-")
    found = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    found["PYTHONPYCACHEPREFIX"] = folder.name
    program = "import argparse, json, runpy, shlex, patchset.cli, patchset.probe.serving_speed"
    subprocess.run([sys.executable, "-P", "-c", program], env=found, check=True)
    return folder


def without_rights(line: list[str]) -> list[str]:
    """Root may write anywhere; without these capabilities it is bound by modes like anybody."""
    if os.geteuid():
        return line
    if not shutil.which("setpriv"):
        pytest.skip("running as root, and setpriv is not installed")
    drop = [
        "setpriv",
        "--inh-caps=-all",
        "--bounding-set=-dac_override,-dac_read_search",
    ]
    return [*drop, *line]
