"""The ordered patch series of one pinned revision, read from its directory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import invocation, mail
from .errors import Exit, Failure
from .mail import FileChange, Head
from .pin import Pin, load_pin

# What stands before the first patch, named as if it were one.
RELEASE = "0000-stock"
FILE_NAME = re.compile(r"(\d{4})-[a-z0-9][a-z0-9.-]*\.patch")


@dataclass(frozen=True)
class Patch:
    """One patch file: its message as git will record it, and the files it changes."""

    path: Path
    number: str
    name: str
    head: Head
    changes: tuple[FileChange, ...]
    diff: bytes
    data: bytes = field(repr=False)

    @property
    def subject(self) -> str:
        return self.head.subject

    @property
    def body(self) -> str:
        return self.head.body

    @property
    def trailers(self) -> dict[str, str]:
        return self.head.trailers

    @property
    def generated(self) -> bool:
        """True for a patch whose content comes from kernels/."""
        return "Generated-From" in self.trailers

    @property
    def evidence(self) -> str | None:
        """The id of the measured record, or None."""
        value = self.trailers.get("Evidence", "none")
        return None if value == "none" else value

    @property
    def added(self) -> int:
        return sum(change.added for change in self.changes)

    @property
    def removed(self) -> int:
        return sum(change.removed for change in self.changes)


@dataclass(frozen=True)
class Series:
    """All patches over one pin, in the order in which they apply."""

    pin: Pin
    patches: tuple[Patch, ...]
    directory: Path

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that any patch touches, sorted."""
        return tuple(sorted({c.path for p in self.patches for c in p.changes}))

    @property
    def digest(self) -> str:
        """The digest of all patch files."""
        return digest({patch.path.name: patch.data for patch in self.patches})

    @property
    def hook_digest(self) -> str:
        """The digest of the patch files that are not made from kernels/."""
        hooks = [patch for patch in self.patches if not patch.generated]
        return digest({patch.path.name: patch.data for patch in hooks})

    def find(self, which: str, also: Sequence[str] = ()) -> Patch:
        """The patch with this number, name or file name. Raises Failure(USAGE), which offers the
        patches, and before them what the caller takes also."""
        # 20 is taken as 0020.
        wanted = which.removesuffix(".patch").zfill(4)
        for patch in self.patches:
            if wanted in (patch.number, patch.name):
                return patch
        raise Failure(
            Exit.USAGE,
            f"no patch {which!r} in the series",
            where=str(self.directory),
            state="nothing was changed",
            next="choose one of: "
            + ", ".join([*also, *(patch.name for patch in self.patches)]),
        )

    @property
    def last(self) -> str:
        """The name of the last patch; of the release where there is none."""
        return self.patches[-1].name if self.patches else RELEASE

    def upto(self, which: str) -> Series:
        """The series cut right after one patch, given by number or name, or without any: 0000.

        Raises Failure(USAGE).
        """
        if is_release(which):
            return replace(self, patches=())
        last = self.patches.index(self.find(which))
        return replace(self, patches=self.patches[: last + 1])


def is_release(which: str) -> bool:
    """Whether this is how the release is named, as if it were a patch: its number or name."""
    return which == RELEASE or which.zfill(4) == RELEASE[:4]


def load_series(directory: Path) -> Series:
    """Read the pin and every patch of a directory.

    Raises Failure(PATCH) for a file that is not a well-formed patch, a bad name, a number used
    twice, or an empty series; Failure(USAGE) where there is no such directory.
    """
    return series_of(directory, read_files(Path(directory)))


def series_of(directory: Path, files: Mapping[str, bytes]) -> Series:
    """The series of these patch files (name to content) over the pin of a directory.

    Raises what load_series() raises.
    """
    directory = Path(directory)
    pin = load_pin(directory)
    if not files:
        raise Failure(
            Exit.PATCH,
            "the series has no patch",
            where=str(directory),
            state="nothing was changed",
            next="name a directory with NNNN-slug.patch files: --patches DIR",
        )
    patches = tuple(
        parse_patch(directory / name, data) for name, data in sorted(files.items())
    )
    for before, after in zip(patches, patches[1:]):
        if before.number == after.number:
            raise _bad(after.path, f"number {after.number} is used twice")
    return Series(pin=pin, patches=patches, directory=directory)


def read_files(directory: Path) -> dict[str, bytes]:
    """The patch files of a directory in order, name to content. Raises Failure."""
    if not directory.is_dir():
        raise Failure(
            Exit.USAGE,
            "no such patch directory",
            where=str(directory),
            state="nothing was changed",
            next="name a directory with upstream.toml and NNNN-slug.patch files, as patches/0.5.13",
        )
    return {path.name: _read(path) for path in sorted(directory.glob("*.patch"))}


def digest(files: Mapping[str, bytes]) -> str:
    """The sha256 over the bytes of patch files, in the order of their names."""
    return hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()


def load_patch(path: Path) -> Patch:
    """Read one patch file. Raises Failure(PATCH) naming the file and the line."""
    return parse_patch(path, _read(path))


def parse_patch(path: Path, data: bytes) -> Patch:
    """The patch that a file of this path and content is. Raises Failure(PATCH)."""
    found = FILE_NAME.fullmatch(path.name)
    if not found:
        raise _bad(path, "the file name is not NNNN-lower-case-slug.patch")
    try:
        head, changes, diff = mail.parse(data)
    except mail.MalformedPatch as error:
        raise _bad(path, str(error)) from None
    return Patch(
        path=path,
        number=found.group(1),
        name=path.stem,
        head=head,
        changes=changes,
        diff=diff,
        data=data,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"{path.name}: cannot be read: {error.strerror}",
            where=str(path),
            state="nothing was changed",
            next="make the file readable, then run the same command again",
        ) from None


def _bad(path: Path, what: str) -> Failure:
    return Failure(
        Exit.PATCH,
        f"{path.name}: {what}",
        where=str(path),
        state="nothing was changed",
        next="restore the file, or make it again: "
        f"{invocation.again(verb='export')}",
    )
