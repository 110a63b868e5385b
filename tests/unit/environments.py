"""Python environments with an sglang in them, made for a test."""

from __future__ import annotations

import base64
import hashlib
import json
import venv
from collections.abc import Mapping
from pathlib import Path

from made_series import BASE, EXECUTABLE, write_files
from patchset.environment import Installation

INFO = "sglang-0.5.13.dist-info"


def make_venv(directory: Path) -> tuple[Path, Path]:
    """A virtual environment without pip: its interpreter and its site-packages."""
    venv.EnvBuilder(symlinks=True).create(directory)
    return directory / "bin" / "python", next(
        directory.glob("lib/python*/site-packages")
    )


def put_sglang(
    site: Path,
    files: Mapping[str, bytes] = BASE,
    *,
    version: str = "0.5.13",
    direct_url: dict | None = None,
    end: str = "\n",
) -> Path:
    """Lays `files` and metadata into `site` as an installer does; returns the dist-info."""
    write_files(site, files, strip="python/")
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
    )
    (info / "INSTALLER").write_text("pip\n")
    if direct_url:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    rows = [row_of(site, path) for path in sorted(site.rglob("*")) if path.is_file()]
    rows.append(f"{info.name}/RECORD,,")
    (info / "RECORD").write_bytes(("".join(row + end for row in rows)).encode())
    return info


def row_of(site: Path, path: Path) -> str:
    data = path.read_bytes()
    digest = (
        base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    )
    return f"{path.relative_to(site).as_posix()},sha256={digest},{len(data)}"


class Environment:
    """A virtual environment with the synthetic sglang in it."""

    def __init__(self, directory: Path, **options):
        self.python, self.site = make_venv(directory)
        self.info = put_sglang(self.site, **options)

    @property
    def installation(self) -> Installation:
        return Installation(str(self.python), self.site, self.info, "0.5.13")

    def package(self, path: str) -> Path:
        return self.site / path.removeprefix("python/")

    def holds(self, files: Mapping[str, bytes]) -> bool:
        return all(
            self.package(path).read_bytes() == data
            and bool(self.package(path).stat().st_mode & 0o100) == (path == EXECUTABLE)
            for path, data in files.items()
        )
