"""Everything that a change has to reach: generated patches, hook patches, the page of checkpoints."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import base, checkpoints, export, generate, gitenv, invocation, mail, operation
from . import origin, own_work, scratchrepo
from .commits import commit_series
from .errors import Exit, Failure
from .export import Difference
from .layout import Layout
from .origin import Origin
from .pin import Pin
from .records import shown
from .series import digest, read_files, series_of

NOTHING = "nothing was written"


@dataclass(frozen=True)
class Places:
    """Where the things are that have to agree; None for one that is left alone.

    Attributes:
        patches: the directory of the patch files. kernels: the modules of the generated ones.
        page: CHECKPOINTS.md. records: the measured records that it names.
        tree: the patched tree.
    """

    patches: Path
    kernels: Path | None
    page: Path | None
    records: Path
    tree: Path | None


def places(layout: Layout, patches: Path, tree: Path | None) -> Places:
    """The places that belong to a patch directory: of this repository, or of another one.

    Beside another directory only what is there already counts.
    """
    if patches.absolute() == layout.patches:
        page = layout.checkpoints
        return Places(patches, layout.kernels, page, layout.records, tree)
    other = Layout(patches.absolute().parents[1], layout.release)
    return Places(
        patches,
        other.kernels if other.kernels.is_dir() else None,
        other.checkpoints if other.checkpoints.is_file() else None,
        other.records,
        tree,
    )


@dataclass(frozen=True)
class Outcome:
    """What has to be in the patch directory, and how that differs from what is.

    Attributes:
        files: every patch file, name to content.
        difference: against the files that were there.
        page: the text of CHECKPOINTS.md, or None where it is left alone.
        page_is_current: it has that text already.
        warnings: what of the user's work is not exported, a sentence and its files each.
        whole: every commit of the tree is in the files.
    """

    files: dict[str, bytes]
    difference: Difference
    page: str | None
    page_is_current: bool
    warnings: tuple[str, ...]
    whole: bool

    def __bool__(self) -> bool:
        """True when something has to be written."""
        return bool(self.difference) or not self.page_is_current


class Agreement:
    """Patch files, kernels/, the commits of a patched tree up to `tip`, and the page.

    prune: hook patches without a commit in the tree are removed.
    """

    def __init__(self, places: Places, tip: str = "HEAD", prune: bool = False):
        self.places = places
        self.tip = tip
        self.prune = prune

    def work_out(self, given_wheel: Path | None = None) -> Outcome:
        """What has to be written; nothing is yet.

        Generated patches come from kernels/, never from the tree; hook patches from the tree's
        commits. Raises Failure when that can't be had, would undo newer changes of the patch
        files, or gives a series that does not apply.
        """
        there = read_files(self.places.patches)
        generated = self._generated(there)
        if self.places.tree:
            made = self._exported()
            hooks = self._hooks(made, there)
            skipped = self._skipped(made, generated)
        else:
            hooks, skipped = _only(there, generated=False), []
        files = {**hooks, **generated}
        difference = export.compare(there, files)
        if difference.extra and not self.prune:
            raise self._extra(difference)
        page = self._page(files, given_wheel)
        return Outcome(
            files=files,
            difference=difference,
            page=page,
            page_is_current=page is None
            or checkpoints.is_current(self.places.page, page),
            warnings=tuple(self._warnings(skipped)),
            whole=not skipped,
        )

    def write(self, outcome: Outcome) -> None:
        """Write what differs, each file as a whole. Raises Failure(ENVIRONMENT)."""
        difference = outcome.difference
        changed = [*difference.changed, *difference.missing]
        export.write_files(
            self.places.patches,
            {name: outcome.files[name] for name in changed},
            remove=difference.extra,
        )
        if not outcome.page_is_current:
            checkpoints.write(self.places.page, outcome.page)
        if self.places.tree:
            # Without the record the next command refuses where it could have gone on.
            with contextlib.suppress(gitenv.GitCommandError):
                self._record(outcome)

    def _generated(self, there: dict[str, bytes]) -> dict[str, bytes]:
        if self.places.kernels is None:
            return _only(there, generated=True)
        return generate.regenerate(self.places.patches, self.places.kernels)

    def _exported(self) -> dict[str, bytes]:
        """The patch files of the tree's commits."""
        tree = self.places.tree
        found = operation.in_progress(tree / ".git")
        if found:
            raise Failure(
                Exit.PATCH,
                f"{found.name} is in progress in the tree",
                where=str(tree),
                state=NOTHING,
                next=f"finish it, or end it: {self._git} {found.way_out}",
            )
        return export.export_tree(tree, base.REF, self.tip)

    def _hooks(
        self, made: dict[str, bytes], there: dict[str, bytes]
    ) -> dict[str, bytes]:
        """The hook patches of the tree, once they are known to undo nothing."""
        before, hooks = _only(there, generated=False), _only(made, generated=False)
        difference = export.compare(before, hooks)
        if difference:
            made_from = origin.read(self.places.tree)
            if made_from.hooks != digest(before):
                raise self._would_undo(made_from, difference)
        return hooks

    def _would_undo(self, made_from: Origin, difference: Difference) -> Failure:
        tree = str(self.places.tree)
        force = invocation.again("--to", tree, "--force", verb="apply")
        return Failure(
            Exit.PATCH,
            "exporting would undo changes made to the patches since this tree was made",
            where="\n".join([tree, *difference.lines()]),
            state=NOTHING,
            next="if it holds commits of yours, save them: "
            f"{self._git} format-patch -o DIR {made_from.tip or base.REF}..HEAD\n"
            f"then replace the tree: {force}\n"
            f"and put them back: {self._git} am --3way DIR/*.patch",
        )

    def _skipped(
        self, made: dict[str, bytes], generated: dict[str, bytes]
    ) -> list[str]:
        """Generated patches whose commits the user changed, and that kernels/ has otherwise."""
        tree, tip = self.places.tree, origin.read(self.places.tree).tip
        known = tip and gitenv.has_commit(tree, tip)
        before = export.export_tree(tree, base.REF, tip) if known else {}
        return [
            name
            for name, data in _only(made, generated=True).items()
            if data not in (before.get(name), generated.get(name))
        ]

    def _warnings(self, skipped: list[str]) -> Iterator[str]:
        edits = own_work.edits(self.places.tree) if self.places.tree else ()
        if edits:
            yield "\n".join(["not exported, because it is not committed:", *edits])
        if skipped:
            what = "not exported, because it comes from kernels/ (change it there):"
            yield "\n".join([what, *skipped])

    def _page(self, files: dict[str, bytes], given_wheel: Path | None) -> str | None:
        if self.places.page is None:
            return None
        shown.require(self.places.page, self.places.records)
        series = series_of(self.places.patches, files)
        with self._base(series.pin, given_wheel) as repo:
            applied = commit_series(repo, series.pin.commit, series)
        return checkpoints.render(
            series.pin, applied, self.places.records, self.places.kernels
        )

    @contextlib.contextmanager
    def _base(self, pin: Pin, given_wheel: Path | None) -> Iterator[Path]:
        """A repository with the pin's base: the tree's own objects where it has them."""
        tree = self.places.tree
        if tree and gitenv.has_commit(tree, pin.commit):
            with scratchrepo.borrowing(tree) as repo:
                yield repo
        else:
            with scratchrepo.imported(pin, given_wheel) as repo:
                yield repo

    def _extra(self, difference: Difference) -> Failure:
        return Failure(
            Exit.PATCH,
            "these patch files have no commit in the tree: "
            + ", ".join(difference.extra),
            where=str(self.places.patches),
            state=NOTHING,
            next="export from the complete tree, or drop them: "
            + invocation.again("--prune", verb="export"),
        )

    def _record(self, outcome: Outcome) -> None:
        """Tell the tree that its commits are in the patch files now."""
        tree = self.places.tree
        origin.write(tree, hooks=digest(_only(outcome.files, generated=False)))
        head = gitenv.text(tree, "rev-parse", "HEAD")
        if outcome.whole and gitenv.text(tree, "rev-parse", self.tip) == head:
            origin.write(tree, exported=head)

    @property
    def _git(self) -> str:
        return f"git -C {shlex.quote(str(self.places.tree))}"


def _only(files: dict[str, bytes], *, generated: bool) -> dict[str, bytes]:
    return {
        name: data for name, data in files.items() if _is_generated(data) == generated
    }


def _is_generated(data: bytes) -> bool:
    try:
        return bool(generate.sources_of(mail.parse_head(data).trailers))
    except mail.MalformedPatch:
        return False
