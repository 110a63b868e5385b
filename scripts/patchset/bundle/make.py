"""Writing a bundle: a site folder with the patched tree over the wheels, packed and cut into parts."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import gitenv
from ..errors import Exit, Failure
from . import installer, scratch, wheels
from .streams import Streams
from .target import Target

ARCHIVE = "sglang-sm120.tar.xz"
MANIFEST = "bundle.json"
_PACKAGE = "python/sglang"
# Fixed, so that the same files make the same archive.
_TIME = 1_796_000_000
_TORCH = re.compile(r"^Requires-Dist: *torch *\(?==([^\s;,)]+)", re.MULTILINE)


@dataclass(frozen=True)
class Bundle:
    """What was written: the folder, its parts with their sizes, and what is in it."""

    folder: Path
    checkpoint: str
    commit: str | None
    packages: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "folder": str(self.folder),
            "checkpoint": self.checkpoint,
            "commit": self.commit,
            "packages": list(self.packages),
            "parts": [{"name": name, "bytes": size} for name, size in self.parts],
        }


def site_of(
    packages: Sequence[Path],
    tree: Path,
    commit: str,
    target: Target,
    site: Path,
    flash: bool = True,
) -> None:
    """Unpack the wheels (without FlashAttention 3 and FlashMLA unless `flash`) and put the files of a
    commit of the patched tree over them."""
    for package in packages:
        wheels.unpack(package, site, target, flash)
    archive = gitenv.run(tree, "archive", "--format=tar", commit, _PACKAGE)
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file) as entries:
            for entry in entries:
                name = entry.name.removeprefix("python/")
                left_out = name.startswith("sglang/multimodal_gen/")
                if not entry.isfile() or left_out:
                    continue
                path = site / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(entries.extractfile(entry).read())
                path.chmod(entry.mode & 0o755 | 0o644)


def pack(
    folders: Mapping[str, Path], folder: Path, part_bytes: int, preset: int = 6
) -> list[Path]:
    """Folders, by their names in it, as one archive in parts of at most so many bytes, in order.

    Raises OSError, such as for a full disk.
    """
    output = _Parts(folder, part_bytes)
    with output, Streams(output, preset) as packed:
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, place in folders.items():
                for path in sorted(place.rglob("*")):
                    if path.is_file():
                        _add(tar, path, f"{name}/{path.relative_to(place).as_posix()}")
    return output.paths


def write(
    folder: Path,
    fill: Callable[[Path], Sequence[str]],
    target: Target,
    checkpoint: str,
    commit: str | None,
    part_bytes: int,
    preset: int = 6,
    kernels: Path | None = None,
) -> Bundle:
    """Make a bundle in a new folder; it is complete or not there.

    fill puts the site's files into a folder and gives the names of the packages; kernels is a folder
    of kernels that were compiled before. Raises
    Failure(USAGE) when the folder is there already, and OSError when it can't be written.
    """
    if folder.exists():
        raise Failure(
            Exit.USAGE,
            "the folder is there already",
            where=str(folder),
            state="it was left alone",
            next="name a new one with --out DIR, or remove it",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder(f".{folder.name}-", folder.parent) as beside:
        # Made inside, where it gets the usual permissions and not those of a scratch folder.
        spare = beside / folder.name
        spare.mkdir()
        with scratch.folder("patchset-site-") as site:
            packages = tuple(fill(site))
            torch = _torch_of(site)
            folders = {"site": site} | ({"kernels": kernels} if kernels else {})
            parts = pack(folders, spare, part_bytes, preset)
        manifest = {
            "target": target.as_json(),
            "checkpoint": checkpoint,
            "commit": commit,
            "torch": torch,
            "packages": packages,
            "parts": [{"name": p.name, "sha256": _sha256(p)} for p in parts],
        }
        (spare / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        shutil.copyfile(installer.__file__, spare / "install.py")
        spare.rename(folder)
    sizes = tuple((part.name, (folder / part.name).stat().st_size) for part in parts)
    return Bundle(folder, checkpoint, commit, packages, sizes)


def _torch_of(site: Path) -> str | None:
    """The version of torch that the packed SGLang requires, if it names one."""
    for metadata in site.glob("sglang-*.dist-info/METADATA"):
        text = metadata.read_text(encoding="utf-8", errors="replace")
        if found := _TORCH.search(text):
            return found[1]
    return None


class _Parts:
    """A file to write that goes on in the next part when one is full."""

    def __init__(self, folder: Path, limit: int):
        self._folder = folder
        self._limit = limit
        self._file = None
        self._room = 0
        self.paths: list[Path] = []

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_) -> None:
        if self._file:
            self._file.close()

    def write(self, data: bytes) -> int:
        """All of data, over as many parts as it takes."""
        left = memoryview(data)
        while left:
            if not self._room:
                self._begin()
            written = self._file.write(left[: self._room])
            self._room -= written
            left = left[written:]
        return len(data)

    def _begin(self) -> None:
        if self._file:
            self._file.close()
        path = self._folder / f"{ARCHIVE}.{len(self.paths) + 1:03}"
        self.paths.append(path)
        self._file = open(path, "wb")
        self._room = self._limit


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    entry.mtime = _TIME
    with open(path, "rb") as file:
        tar.addfile(entry, file)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
