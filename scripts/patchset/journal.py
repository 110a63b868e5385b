"""All-or-nothing change of files in place, with the originals kept for an exact way back.

A journal is a folder: `originals/` (hard links to the files as they were, copies where a file
system has no links), and `manifest.json`, whose state says what is going on. It appears by one
rename before the first file changes, so whatever stops the process, `kill -9` and a lost disk
included, the next run reads what has to be put back. Putting a file back is one rename of its
original: it needs no free space, and gives mode, owner, times and hard links back too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FORMAT = 1
MANIFEST = "manifest.json"
ORIGINALS = "originals"
APPLYING, APPLIED, REVERTING = "applying", "applied", "reverting"

_SPARE = ".sm120-patchset-new"
_UNFINISHED = ".unfinished-"


class Busy(Exception):
    """Another process holds the lock."""


class Unreadable(ValueError):
    """A manifest that this version can't read; the text says why."""


@dataclass(frozen=True)
class Entry:
    """One file: its path under the root, its sha256 and mode before and after (None: absent)."""

    path: str
    sha256_before: str | None
    sha256_after: str | None
    mode_before: int | None
    mode_after: int | None


@dataclass(frozen=True)
class Manifest:
    """What was, or is being, changed.

    Attributes:
        state: APPLYING, APPLIED or REVERTING.
        label: the caller's own description, stored as it is.
        entries: the files, in the order in which they are written.
        directories: the directories that were made, parents first.
    """

    state: str
    label: dict
    entries: tuple[Entry, ...]
    directories: tuple[str, ...]


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds an exclusive lock on `directory` itself: no lock file is left, even by `kill -9`.

    Raises:
        Busy: another process holds it.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Busy(str(directory)) from None
            raise
        yield
    finally:
        os.close(handle)


def digest(path: Path) -> str | None:
    """The sha256 of the file at `path`, or None when there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Journal:
    """The journal in `folder` for files under `root`. Hold `locked()` around every use."""

    def __init__(self, root: Path, folder: Path):
        self.root = root
        self.folder = folder

    def read(self) -> Manifest | None:
        """The manifest, or None when no journal is there. Raises Unreadable."""
        try:
            text = (self.folder / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise Unreadable(f"its format is {values['format']}, not {FORMAT}")
            return Manifest(
                state=values["state"],
                label=values["label"],
                entries=tuple(Entry(**entry) for entry in values["entries"]),
                directories=tuple(values["directories"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(str(error)) from None

    def sweep(self) -> None:
        """Removes what a killed process left of a journal that was not begun, or already over."""
        _drop(_spare(self.folder / MANIFEST))
        pattern = f"{self.folder.name}{_UNFINISHED}*"
        for left in self.folder.parent.glob(pattern):
            shutil.rmtree(left)

    def apply(
        self, contents: Mapping[str, bytes | None], mode_of_new: int, label: dict
    ) -> Manifest:
        """Writes `contents` (path -> new bytes, None: remove) under the root, all or nothing.

        Any error, Ctrl-C included, puts every file back before it is raised again.
        """
        manifest = self._plan(contents, mode_of_new, label)
        try:
            self._begin(manifest)
            self._write(manifest, contents)
            manifest = replace(manifest, state=APPLIED)
            self._save(self.folder, manifest)
        except BaseException:
            self.undo(manifest)
            raise
        return manifest

    def undo(self, manifest: Manifest) -> list[str]:
        """Puts every file back as before apply() and removes the journal; can be done again.

        Returns the directories that apply() made but that hold somebody else's files by now.
        """
        on_disk = self.read()
        if on_disk and on_disk.state == APPLIED:
            # Told first: a stop half-way must not read as "changed by somebody else".
            self._save(self.folder, replace(manifest, state=REVERTING))
        for entry in reversed(manifest.entries):
            target = self.root / entry.path
            _drop(_spare(target))
            if entry.sha256_before is None:
                _drop(target)
            elif digest(target) != entry.sha256_before:
                os.replace(self.folder / ORIGINALS / entry.path, target)
            _drop_bytecode(target)
        kept = self._remove_directories(manifest)
        _sync(self._parents(manifest))
        self._end()
        return kept

    def unlike(self, manifest: Manifest) -> list[str]:
        """The files that are neither as before nor as after: somebody else changed them.

        Once applied, "before" is a change by somebody else as well.
        """
        return [
            entry.path
            for entry in manifest.entries
            if digest(self.root / entry.path) not in _expected(manifest.state, entry)
        ]

    def lost(self, manifest: Manifest) -> list[str]:
        """The files whose original is gone from the journal, or has other bytes there."""
        return [
            entry.path
            for entry in manifest.entries
            if entry.sha256_before not in (None, digest(self.root / entry.path))
            and digest(self.folder / ORIGINALS / entry.path) != entry.sha256_before
        ]

    def _plan(
        self, contents: Mapping[str, bytes | None], mode_of_new: int, label: dict
    ) -> Manifest:
        entries = []
        directories: dict[str, None] = {}
        for path, data in contents.items():
            target = self.root / path
            before = digest(target)
            mode = stat.S_IMODE(target.stat().st_mode) if before else None
            entries.append(
                Entry(
                    path=path,
                    sha256_before=before,
                    sha256_after=(
                        None if data is None else hashlib.sha256(data).hexdigest()
                    ),
                    mode_before=mode,
                    mode_after=None if data is None else mode or mode_of_new,
                )
            )
            for parent in reversed(Path(path).parents):
                if not (self.root / parent).is_dir():
                    directories[parent.as_posix()] = None
        return Manifest(APPLYING, label, tuple(entries), tuple(directories))

    def _begin(self, manifest: Manifest) -> None:
        made = Path(
            tempfile.mkdtemp(
                prefix=f"{self.folder.name}{_UNFINISHED}", dir=self.folder.parent
            )
        )
        try:
            _make_like(made, self.folder.parent)
            for entry in manifest.entries:
                if entry.sha256_before is not None:
                    _keep(self.root / entry.path, made / ORIGINALS / entry.path)
            self._save(made, manifest)
            for directory in (path for path in made.rglob("*") if path.is_dir()):
                _make_like(directory, self.folder.parent)
                _sync([directory])
            os.rename(made, self.folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        _sync([self.folder.parent])

    def _write(self, manifest: Manifest, contents: Mapping[str, bytes | None]) -> None:
        for directory in manifest.directories:
            made = self.root / directory
            made.mkdir()
            _make_like(made, made.parent)
        # Every byte is on the disk before the first file changes: a full disk is met here.
        for entry in manifest.entries:
            data = contents[entry.path]
            if data is not None:
                _write_spare(self.root / entry.path, data, entry.mode_after)
        for entry in manifest.entries:
            target = self.root / entry.path
            if entry.sha256_after is None:
                target.unlink()
            else:
                os.replace(_spare(target), target)
            _drop_bytecode(target)
        _sync(self._parents(manifest))

    def _save(self, folder: Path, manifest: Manifest) -> None:
        text = json.dumps(
            {"format": FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False
        )
        target = folder / MANIFEST
        _write_spare(target, text.encode() + b"\n", 0o644)
        os.replace(_spare(target), target)
        _sync([folder])

    def _remove_directories(self, manifest: Manifest) -> list[str]:
        kept = []
        for directory in reversed(manifest.directories):
            made = self.root / directory
            _remove_if_empty(made / "__pycache__")
            if not _remove_if_empty(made):
                kept.append(directory)
        return kept

    def _end(self) -> None:
        if not self.folder.is_dir():
            return
        over = Path(
            tempfile.mkdtemp(
                prefix=f"{self.folder.name}{_UNFINISHED}", dir=self.folder.parent
            )
        )
        os.rename(self.folder, over)
        _sync([self.folder.parent])
        shutil.rmtree(over)

    def _parents(self, manifest: Manifest) -> list[Path]:
        parents = {(self.root / entry.path).parent for entry in manifest.entries}
        return [parent for parent in parents if parent.is_dir()]


def _expected(state: str, entry: Entry) -> tuple[str | None, ...]:
    if state == APPLIED:
        return (entry.sha256_after,)
    return entry.sha256_before, entry.sha256_after


def _spare(target: Path) -> Path:
    return target.with_name(f".{target.name}{_SPARE}")


def _make_like(made: Path, like: Path) -> None:
    """Gives a new directory the mode and owner of another: that owner has to uninstall it."""
    status = like.stat()
    made.chmod(stat.S_IMODE(status.st_mode))
    with contextlib.suppress(PermissionError):
        os.chown(made, status.st_uid, status.st_gid)


def _write_spare(target: Path, data: bytes, mode: int) -> None:
    spare = _spare(target)
    _drop(spare)
    handle = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fchmod(out.fileno(), mode)
        like = target if target.exists() else target.parent
        owner = like.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
        os.fsync(out.fileno())


def _keep(source: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, kept)
    except OSError:
        # No hard links on this file system, or not for a file of another owner.
        shutil.copy2(source, kept)
        owner = source.stat()
        with contextlib.suppress(PermissionError):
            os.chown(kept, owner.st_uid, owner.st_gid)
        with open(kept, "rb") as copied:
            os.fsync(copied.fileno())


def _drop(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def _remove_if_empty(directory: Path) -> bool:
    """True when `directory` is gone."""
    try:
        directory.rmdir()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _drop_bytecode(source: Path) -> None:
    """Removes compiled forms of a module: unchecked ones would win over the new source."""
    if source.suffix != ".py":
        return
    cache = source.parent / "__pycache__"
    if cache.is_dir():
        for compiled in cache.iterdir():
            stem, dot, rest = compiled.name.partition(".")
            if stem == source.stem and rest.endswith("pyc"):
                _drop(compiled)


def _sync(directories) -> None:
    for directory in directories:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
