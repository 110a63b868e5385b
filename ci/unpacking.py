"""The packed smoke model of this repository as a folder, checked before anything is written."""

from __future__ import annotations

import hashlib
import json
import lzma
import shlex
from pathlib import Path

from deepseek_v4.folder import REST
from failures import ROOT, Exit, Failure
from newfolder import new_folder

WEIGHTS = "model.safetensors"
RECORDING = "expected.json"


def unpack(asset: Path, directory: Path) -> None:
    """Write the folder; one that has these very files already is left as it is.

    Raises Failure(ENVIRONMENT) for an asset that is damaged or lacks a file, Failure(USAGE) for a
    folder with something else in it.
    """
    files = _unpacked(asset)
    if directory.is_dir() and any(directory.iterdir()):
        _require_same(directory, files)
        return
    with new_folder(directory):
        for name, data in files.items():
            (directory / name).write_bytes(data)


def _unpacked(asset: Path) -> dict[str, bytes]:
    """Each file of the folder, the weights last."""
    recording = asset / RECORDING
    try:
        wanted = json.loads(_read(recording))["checkpoint"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(recording, "it names no checkpoint") from None
    files = {name: _read(asset / name) for name in REST}
    packed = asset / f"{WEIGHTS}.xz"
    try:
        weights = lzma.decompress(_read(packed))
    except lzma.LZMAError as error:
        raise _damaged(packed, str(error)) from None
    found = hashlib.sha256(weights).hexdigest()
    if found != wanted:
        raise _damaged(packed, f"sha256 of what is in it {found}, recorded {wanted}")
    return {**files, WEIGHTS: weights}


def _require_same(directory: Path, files: dict[str, bytes]) -> None:
    other = [
        name
        for name, data in files.items()
        if not (directory / name).is_file() or (directory / name).read_bytes() != data
    ]
    if other:
        raise Failure(
            Exit.USAGE,
            f"{directory} is not empty, and not the smoke model: {', '.join(other)} "
            f"{'is' if len(other) == 1 else 'are'} missing or another",
            where=str(directory.absolute()),
            state="nothing was written; it is as it was",
            next="name a new folder: python3 ci/smoke_model.py unpack DIR",
        )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from None


def _damaged(file: Path, why: str) -> Failure:
    place = shlex.quote(str(file))
    if file.is_relative_to(ROOT):
        place = shlex.quote(str(file.relative_to(ROOT)))
    return Failure(
        Exit.ENVIRONMENT,
        f"the packed smoke model is damaged: {why}",
        where=str(file),
        state="nothing was unpacked",
        next=f"restore the file: git -C {shlex.quote(str(ROOT))} checkout -- {place}",
    )
