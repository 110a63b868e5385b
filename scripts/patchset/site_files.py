"""The files of one installed sglang: what they hold, and their change together with RECORD."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from . import journal, record
from .environment import Installation
from .errors import Exit, Failure
from .journal import Journal, Manifest
from .listing import counted, listed
from .series import Series
from .state import State, blob_id, read_state

FOLDER = "sm120-patchset"
PREFIX = "python/"
UNTOUCHED = "nothing was changed"


class SiteFiles:
    """The files of `installation`, named by the paths of the series (`python/sglang/...`)."""

    def __init__(self, installation: Installation):
        self.installation = installation
        self.site = installation.site
        self.journal = Journal(self.site, installation.dist_info / FOLDER)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps every other apply and revert out meanwhile. Raises Failure(ENVIRONMENT)."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(journal.locked(self.installation.dist_info))
            except journal.Busy:
                raise Failure(
                    Exit.ENVIRONMENT,
                    "another apply or revert is at work on this installation",
                    where=str(self.installation.dist_info),
                    state=UNTOUCHED,
                    next="wait until it is done, then run the same command again",
                ) from None
            except OSError as error:
                why = f"no lock on it: {error.strerror}"
                raise self._unwritable(self.installation.dist_info, why) from None
            yield

    def manifest(self) -> Manifest | None:
        """What an earlier apply left, or None. Raises Failure(PATCH) when it can't be read."""
        try:
            return self.journal.read()
        except journal.Unreadable as error:
            raise Failure(
                Exit.PATCH,
                f"the record of an earlier apply can't be read: {error}",
                where=str(self.journal.folder / journal.MANIFEST),
                state=UNTOUCHED,
                next=self.installation.reinstall_command(),
            ) from None

    def require_restorable(self, manifest: Manifest) -> None:
        """Raises Failure(PATCH) listing the files that undo() could not give back exactly."""
        changed = self.journal.unlike(manifest)
        lost = [] if changed else self.journal.lost(manifest)
        if changed or lost:
            why = "changed by somebody else" if changed else "without a kept original"
            raise Failure(
                Exit.PATCH,
                f"{counted(changed or lost, 'file')} {why}: an exact revert is not possible",
                where=listed([str(self.site / path) for path in changed or lost]),
                state="all is as it was",
                next=self._reinstall(),
            )

    def undo(self, manifest: Manifest) -> list[str]:
        """Puts all back; returns the directories that stay. Raises Failure(ENVIRONMENT)."""
        with self._write_errors():
            return self.journal.undo(manifest)

    def read(self, path: str) -> bytes | None:
        """The bytes at a path, or None. Raises Failure(ENVIRONMENT) when it is no plain file."""
        inside = path.removeprefix(PREFIX)
        target = self.site / inside
        real = os.path.realpath(target)
        try:
            plain = stat.S_ISREG(target.stat().st_mode)
            if not plain or real != os.path.join(os.path.realpath(self.site), inside):
                raise Failure(
                    Exit.ENVIRONMENT,
                    "a path that the series changes is a link to elsewhere, or no file",
                    where=f"{target} -> {real}",
                    state=UNTOUCHED,
                    next="install with copied files (uv: UV_LINK_MODE=copy), "
                    "then run the same command again",
                )
            return target.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Failure(
                Exit.ENVIRONMENT,
                f"a file of the installed sglang can't be read: {error.strerror}",
                where=str(target),
                state=UNTOUCHED,
                next=f"run the same command as the owner of {self.site}",
            ) from None

    def state(self, series: Series) -> State:
        """How much of `series` the files hold."""
        return read_state(lambda path: blob_id(self.read(path)), series)

    def require_pristine(self, state: State) -> None:
        """Raises Failure(PATCH) unless every file that the series touches is the pin's."""
        where = str(self.site / "sglang")
        if state.kind == "pristine":
            return
        if state.kind == "foreign":
            what = f"{counted(state.foreign, 'file')} that the series changes differ from the pin's"
            where = listed(
                [str(self.site / path.removeprefix(PREFIX)) for path in state.foreign]
            )
        elif state.kind == "half-applied":
            what = "the series is half applied here"
            where = listed([f"{path}: {holds}" for path, holds in state.partial])
        else:
            what = (
                f"{state.applied} of {state.total} patches are already in these files, "
                "put there by other means"
            )
        raise Failure(
            Exit.PATCH, what, where=where, state=UNTOUCHED, next=self._reinstall()
        )

    def require_same(self, manifest: Manifest, wanted: Series) -> None:
        """Raises Failure(PATCH) unless exactly `wanted` is in place, and unchanged."""
        there, asked = manifest.label["patches"], _identity(wanted)
        if there != asked:
            raise Failure(
                Exit.PATCH,
                _difference(there, asked),
                where=str(self.site / "sglang"),
                state=UNTOUCHED,
                next=f"{self.installation.revert_command()}, then run the same command again",
            )
        changed = self.journal.unlike(manifest)
        if changed:
            raise Failure(
                Exit.PATCH,
                f"the series is in place, but {counted(changed, 'file')} changed since",
                where=listed([str(self.site / path) for path in changed]),
                state=UNTOUCHED,
                next=self._reinstall(),
            )

    def require_writable(self, series: Series) -> None:
        """Raises Failure(ENVIRONMENT) naming the first directory that can't be written."""
        folders = {self.installation.dist_info}
        for path in series.paths:
            folder = (self.site / path.removeprefix(PREFIX)).parent
            while not folder.is_dir():
                folder = folder.parent
            folders.add(folder)
        for folder in sorted(folders):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise self._unwritable(folder, "not writable for this user")

    def write(self, contents: dict[str, bytes | None], series: Series) -> None:
        """Writes `contents` (by path of the series, None: remove) and RECORD, all or nothing.

        Raises Failure(ENVIRONMENT) when the disk is full or a file can't be written; all is put
        back then.
        """
        inside = {path.removeprefix(PREFIX): data for path, data in contents.items()}
        info = self.installation.dist_info.name
        mode = stat.S_IMODE((self.site / "sglang" / "__init__.py").stat().st_mode)
        label = {"version": series.pin.version, "patches": _identity(series)}
        with self._write_errors():
            inside[f"{info}/RECORD"] = self._new_record(inside)
            self.journal.apply(inside, mode & 0o666, label)

    def _new_record(self, contents: dict[str, bytes | None]) -> bytes:
        """RECORD with the files and the journal in it, so that uninstalling leaves nothing."""
        info = self.installation.dist_info.name
        kept = f"{info}/{FOLDER}"
        before = (self.installation.dist_info / "RECORD").read_bytes()
        originals = {f"{info}/RECORD": before}
        for path in contents:
            if (self.site / path).exists():
                originals[path] = (self.site / path).read_bytes()
        rows = [
            record.hashed_row(path, data)
            for path, data in contents.items()
            if data is not None
        ]
        rows.append(record.unhashed_row(f"{kept}/{journal.MANIFEST}"))
        rows += [
            record.hashed_row(f"{kept}/{journal.ORIGINALS}/{path}", data)
            for path, data in originals.items()
        ]
        removed = [path for path, data in contents.items() if data is None]
        return record.updated(before, rows, removed)

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                failure = Failure(
                    Exit.ENVIRONMENT,
                    "the disk is full",
                    where=str(self.site),
                    next="free some space, then run the same command again",
                )
            else:
                where = Path(error.filename or self.site)
                failure = self._unwritable(where, error.strerror or str(error))
            failure.state = "every file is as it was"
            if self.journal.folder.is_dir():
                failure.state = (
                    "not every file could be put back; the originals are kept, "
                    "and the next apply or revert finishes it"
                )
            raise failure from None

    def _unwritable(self, where: Path, why: str) -> Failure:
        return Failure(
            Exit.ENVIRONMENT,
            f"can't write into this environment: {why}",
            where=str(where),
            state=UNTOUCHED,
            next=f"run the same command as the owner of {self.site}",
        )

    def _reinstall(self) -> str:
        return f"keep the changes if you need them, then: {self.installation.reinstall_command()}"


def _identity(series: Series) -> list[dict[str, str]]:
    return [
        {"name": patch.name, "sha256": hashlib.sha256(patch.diff).hexdigest()}
        for patch in series.patches
    ]


def _difference(there: list[dict[str, str]], asked: list[dict[str, str]]) -> str:
    if there == asked[: len(there)]:
        return f"{len(there)} of {len(asked)} patches are in place"
    if asked == there[: len(asked)]:
        more = len(there) - len(asked)
        return f"{len(there)} patches are in place, {more} more than asked for"
    names = ", ".join(patch["name"] for patch in there)
    return f"another series is in place: {names}"
