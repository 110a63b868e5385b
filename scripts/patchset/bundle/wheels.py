"""The wheels of a bundle: what pip would install for a target, without what its torch brings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .. import processes, signals
from ..errors import Exit, Failure
from ..listing import listed
from . import scratch
from .target import Target

_STATE = "no bundle was written"
# Seconds for pip to end when it is asked to, then again when it is killed.
_PATIENCE = 5.0
# Where the files of a wheel's .data folder go, by their kind.
_FOLDERS = {"purelib": "", "platlib": "", "scripts": "bin"}


@dataclass(frozen=True)
class Wheel:
    """One distribution of the closure, as pip's report names it."""

    name: str
    version: str
    sha256: str
    requires: tuple[str, ...]

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"


def closure(requirements: Sequence[str], target: Target) -> list[Wheel]:
    """What pip would install for these requirements, by its own report.

    Raises Failure(ENVIRONMENT) when pip can't resolve them.
    """
    with scratch.folder("patchset-closure-") as place:
        report = place / "report.json"
        _pip(
            [
                *("install", "--dry-run", "--ignore-installed", "--quiet"),
                *("--target", str(place), "--report", str(report)),
                *target.pip_options(),
                *requirements,
            ],
            "the packages for the target can't be resolved",
        )
        return [_wheel(item) for item in json.loads(report.read_text())["install"]]


def asked_for(requirements: Iterable[str]) -> list[tuple[str, str | None]]:
    """Each requirement's name, alone and with each of its extras, as PEP 503 compares them.

    Raises Failure(USAGE) for a requirement that begins with no name.
    """
    found = []
    for requirement in requirements:
        if not _REQUIREMENT.match(requirement):
            raise Failure(
                Exit.USAGE,
                f"{requirement!r} is no name of a package",
                state=_STATE,
                next="name it as pip has it, such as NAME==VERSION",
            )
        name, extras, _ = _parsed(requirement)
        found += [(name, extra) for extra in (None, *extras)]
    return found


def without(
    wheels: Iterable[Wheel],
    roots: Iterable[str],
    wanted: Iterable[tuple[str, str | None]] = (("sglang", None),),
) -> list[Wheel]:
    """The wheels that are neither one of the roots nor needed by them alone.

    wanted: the names that were asked for, as asked_for gives them.

    What a root needs stays where something else needs it too: the target's torch may have another
    version of it, and the bundle's comes first.
    """
    known = {canonical(wheel.name): wheel for wheel in wheels}
    roots = {canonical(root) for root in roots}
    kept = _reached(known, wanted, roots)
    # Who asked for a root may have asked for any of its extras.
    whole = [(name, extra) for name in roots for extra in _extras(known, name)]
    needed_by_roots = _reached(known, whole, set())
    other = known.keys() - needed_by_roots - roots
    return [known[name] for name in sorted((kept | other) - roots)]


def download(wheels: Sequence[Wheel], target: Target, folder: Path) -> list[Path]:
    """Fetch the wheels; their bytes are those of the report. Raises Failure(ENVIRONMENT)."""
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "requirements.txt"
    listing.write_text(
        "".join(f"{w.pinned} --hash=sha256:{w.sha256}\n" for w in wheels)
    )
    _pip(
        [
            *("download", "--no-deps", "--quiet", "--require-hashes"),
            *("--dest", str(folder), *target.pip_options()),
            *("-r", str(listing)),
        ],
        "the packages for the target can't be downloaded",
    )
    return sorted(folder.glob("*.whl"))


def require_known(wheels: Iterable[Wheel], names: Iterable[str]) -> None:
    """Raise Failure(USAGE) for a name that is none of the wheels."""
    known = {canonical(wheel.name) for wheel in wheels}
    for name in names:
        if canonical(name) not in known:
            raise Failure(
                Exit.USAGE,
                f"--without {name}: SGLang needs no such package",
                where=listed(sorted(known), limit=len(known)),
                state=_STATE,
                next="choose one of those above, or leave it out of the command",
            )


def require_not_asked_for(
    wanted: Iterable[tuple[str, str | None]], names: Iterable[str]
) -> None:
    """Raise Failure(USAGE) for a name that is asked for, as asked_for gives them."""
    asked = {name for name, _ in wanted}
    for name in names:
        if canonical(name) in asked:
            raise Failure(
                Exit.USAGE,
                f"--without {name}: this package is asked for",
                where=listed(sorted(asked), limit=len(asked)),
                state=_STATE,
                next=f"leave --without {name} out of the command, or what asks for it",
            )


def unpack(wheel: Path, site: Path, target: Target, flash: bool = True) -> None:
    """Install a wheel's files into a folder, as pip does; programs that it brings go into bin/.

    Left out: commands that are entry points, headers, SGLang's image and video generation, kernels
    compiled for other GPUs, and, unless `flash`, FlashAttention 3 and FlashMLA.
    """
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            place = _place(entry.filename)
            if place is None or entry.is_dir() or _other_gpu(place, target, flash):
                continue
            path = site / place
            path.parent.mkdir(parents=True, exist_ok=True)
            data = archive.read(entry)
            program = _is_program(entry)
            path.write_bytes(_for_any_python(data) if program else data)
            if program or entry.external_attr >> 16 & 0o111:
                path.chmod(0o755)


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def _place(name: str) -> PurePosixPath | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Failure(
            Exit.ENVIRONMENT,
            f"a wheel has a file outside of its folder: {name}",
            state=_STATE,
            next="report it to the package's authors",
        )
    if path.parts[0].endswith(".data"):
        folder = _FOLDERS.get(path.parts[1]) if len(path.parts) > 2 else None
        return None if folder is None else PurePosixPath(folder, *path.parts[2:])
    return path


def _is_program(entry: zipfile.ZipInfo) -> bool:
    data, _, rest = entry.filename.partition("/")
    return data.endswith(".data") and rest.startswith("scripts/")


def _for_any_python(script: bytes) -> bytes:
    """A script whose first line leaves its Python to the installer; another file as it is."""
    first, found, rest = script.partition(b"\n")
    if first.rstrip() not in (b"#!python", b"#!pythonw"):
        return script
    return b"#!/usr/bin/env python3" + found + rest


def _other_gpu(place: PurePosixPath, target: Target, flash: bool) -> bool:
    parts = place.parts
    if parts[:2] == ("sglang", "multimodal_gen"):
        return True
    if parts[0] == "flashinfer_cubin" and place.suffix == ".cubin":
        named = _NAMED_GPU.search(place.name)
        return bool(named) and named[1] != target.generation
    if parts[0] != "sgl_kernel" or not place.suffix == ".so":
        return False
    if parts[1] in ("sm90", "sm100"):
        return parts[1] != target.kernel_folder
    # FlashAttention 3 and FlashMLA: a gigabyte of sm_80 to sm_100 code that sm_120 never loads.
    return parts[1].startswith("flash") and not (flash and target.loads_flash)


def _wheel(item: dict) -> Wheel:
    metadata = item["metadata"]
    return Wheel(
        name=metadata["name"],
        version=metadata["version"],
        sha256=item["download_info"]["archive_info"]["hashes"]["sha256"],
        requires=tuple(metadata.get("requires_dist", ())),
    )


def _reached(
    known: dict[str, Wheel],
    start: Iterable[tuple[str, str | None]],
    barred: set[str],
) -> set[str]:
    """The names that requirements lead to from names with an extra or none, not through barred ones.

    A requirement of an extra leads on where the extra was asked for.
    """
    found: set[tuple[str, str | None]] = set()
    waiting = [(name, extra) for name, extra in start if name in known]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found or name in barred:
            continue
        found.add((name, extra))
        for requirement in known[name].requires:
            needed, asked, only_for = _parsed(requirement)
            if needed in known and (not only_for or extra in only_for):
                waiting += [(needed, each) for each in (None, *asked)]
    return {name for name, _ in found}


def _extras(known: dict[str, Wheel], name: str) -> set[str | None]:
    """The extras that a wheel tells of, and none."""
    requires = known[name].requires if name in known else ()
    return {None, *(extra for each in requires for extra in _parsed(each)[2])}


# FlashInfer's compiled kernels have theirs in their names, such as Sm100f: a generation and one digit.
_NAMED_GPU = re.compile(r"[Ss]m_?(\d+)\d[a-z]?(?![0-9a-z])")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+) *(?:\[([^]]*)\])?")
_EXTRA = re.compile(r"""extra *== *["']([^"']+)["']""")


def _parsed(requirement: str) -> tuple[str, list[str], list[str]]:
    """The name, the extras asked for, and the extras that it is a requirement of."""
    found = _REQUIREMENT.match(requirement)
    asked = [canonical(extra.strip()) for extra in (found[2] or "").split(",") if extra]
    only_for = [canonical(extra) for extra in _EXTRA.findall(requirement)]
    return canonical(found[1]), asked, only_for


def _pip(arguments: Sequence[str], what: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # A pip that is stopped leaves its own scratch folders, of gigabytes.
    with scratch.folder("patchset-pip-") as place:
        code, said = _run([*command, *arguments], os.environ | {"TMPDIR": str(place)})
    if code:
        lines = [line for line in said.splitlines() if "WARNING" not in line]
        raise Failure(
            Exit.ENVIRONMENT,
            what,
            where="\n".join(lines[-10:]) or f"pip exited {code}",
            state=_STATE,
            next="check the network, or point pip at a mirror that has them (PIP_FIND_LINKS)",
        )


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of a program and its standard error; it and its children are ended with us."""
    process = None
    try:
        with signals.deferred():
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Ctrl-C is for us: pip would go on with its end while we take its folder away.
                process_group=0,
            )
        _, said = process.communicate()
        return process.returncode, said
    finally:
        if process:
            processes.end_group(process, _PATIENCE)
