"""Raw files that are not what was recorded: taken over only where they are named as measured anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .. import gitenv, invocation
from ..errors import Exit, Failure
from ..listing import counted, listed
from . import sources, sums

OPTION = "--remeasured"


class Kept:
    """What the list of raw files and the records have of each raw file.

    Arguments: root is the top of the repository, known the records as they are before anything is
    recorded, named the files and folders of raw files that the user says were measured anew (the
    attribute: their files, from the top).
    Raises Failure(USAGE) where one of these is no raw file, Failure(PATCH) where the list is not sound.
    """

    def __init__(self, root: Path, known: Collection[Mapping], named: Sequence[Path]):
        self._root = root
        self._raw = root / sources.RAW
        sums.require(self._raw, sources.names(known))
        self._digests = sources.digests(known)
        for name, digest in sums.entries(self._raw).items():
            self._digests.setdefault(sources.RAW + name, set()).add(digest)
        self.named = self._below(named)

    def others(self, files: Mapping[str, str]) -> list[str]:
        """Those of the files (with the sha256 that each has now) that are kept as other ones."""
        return sorted(
            file
            for file, digest in files.items()
            if self._digests.get(file, {digest}) != {digest}
        )

    def require(self, files: Mapping[str, str], moved: list[str], again: bool) -> None:
        """Raise Failure(USAGE) where a file is another one and was not named.

        Arguments: moved are lines of the figures that would move; again: every measurement is read.
        """
        lost = [file for file in self.others(files) if file not in self.named]
        if not lost:
            return
        words = [invocation.word(self._root / file) for file in lost]
        named = f"{OPTION} {' '.join(words)}"
        anew = f"add {named} to the same command"
        if again:
            anew = f"{invocation.again('--again')} {named}"
        raise Failure(
            Exit.USAGE,
            f"{counted(lost, 'raw file')} not as recorded",
            where="\n".join([*map(self.told, lost), *listed(moved).splitlines()]),
            state="no record was changed",
            next=f"put back what was not measured anew: git checkout -- {' '.join(words)}; for what was: "
            f"{anew}",
        )

    def taken_over(self, files: Mapping[str, str]) -> list[str]:
        """The files that are other ones than before and are put in the list now: those given, and
        those named, which may be of no record."""
        here = {file: sums.sha256(self._root / file) for file in self.named}
        return self.others({**here, **files})

    def told(self, file: str) -> str:
        """A file that is another one than was kept, and whether git has another one too."""
        return f"{file}: its sha256 is not that of {sums.NAME} or of a record{self._in_git(file)}"

    def _in_git(self, file: str) -> str:
        try:
            there = gitenv.run(self._root, "cat-file", "blob", f"HEAD:./{file}")
        except gitenv.GitCommandError:
            return ""
        same = there == (self._root / file).read_bytes()
        return "" if same else "; git has another version of it"

    def _below(self, named: Sequence[Path]) -> set[str]:
        top, found = self._raw.resolve(), set()
        for path in named:
            place = path.resolve()
            files = [place] if place.is_file() else sorted(place.rglob("*"))
            if not place.is_relative_to(top) or not any(map(Path.is_file, files)):
                raise Failure(
                    Exit.USAGE,
                    f"{OPTION} needs raw files, or a folder of them",
                    where=str(path),
                    state="no record was changed",
                    next=f"name what is in {invocation.word(self._raw)}",
                )
            found |= {each.relative_to(top).as_posix() for each in files}
        return {sources.RAW + name for name in found & sums.names(self._raw)}
