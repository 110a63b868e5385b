"""The proof of a patch series: one predicate per line, and an exit code."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from . import base, checkpoints, drift, export, generate, invocation, lint, scratchrepo
from .commits import Applied, commit_series
from .errors import Exit, Failure
from .layout import Layout
from .listing import counted
from .records import stale, verify
from .series import Series, load_series


@dataclass(frozen=True)
class Verdict:
    """One predicate's answer: problems is empty when it holds."""

    predicate: str
    problems: tuple[str, ...]
    next: str
    detail: str = ""
    failure: Exit = Exit.PATCH

    @property
    def holds(self) -> bool:
        return not self.problems

    def as_json(self) -> dict:
        return {
            "predicate": self.predicate,
            "ok": self.holds,
            "detail": self.detail,
            "problems": list(self.problems),
            "next": None if self.holds else self.next,
        }

    def text(self) -> str:
        mark = "ok  " if self.holds else "FAIL"
        lines = [f"{mark}  {self.predicate:<15}  {self.detail}".rstrip()]
        for problem in self.problems:
            first, *rest = problem.splitlines()
            lines += [f"      {first}", *(f"        {line}" for line in rest)]
        if not self.holds:
            lines.append(f"      next: {self.next}")
        return "\n".join(lines)


def run(layout: Layout, given_wheel: Path | None = None) -> list[Verdict]:
    """Check the whole series; every predicate is tried, also after another has failed.

    Raises Failure when a patch file cannot be read at all or the pinned source cannot be had.
    """
    series = load_series(layout.patches)
    with scratchrepo.imported(series.pin, given_wheel) as repo:
        return list(_verdicts(layout, series, repo))


def exit_code(verdicts: list[Verdict]) -> Exit:
    """DONE when all hold, PATCH when a patch is wrong, NO when only a rendered file is stale."""
    failures = {verdict.failure for verdict in verdicts if not verdict.holds}
    return max(failures, default=Exit.DONE)


def _verdicts(layout: Layout, series: Series, repo: Path) -> Iterator[Verdict]:
    edit = f"edit that file, then {_reexport()}"
    yield Verdict(
        "lint",
        tuple(lint.lint_series(series)),
        edit,
        counted(series.patches, "patch file"),
    )
    applied: list[Applied] = []
    commit = series.pin.commit
    restore = f"restore it: git checkout -- {shlex.quote(str(layout.patches))}"
    yield _try("strict apply", restore, lambda: _apply(repo, series, applied))
    if applied:
        yield Verdict(
            "whitespace",
            tuple(lint.lint_applied(repo, commit, applied)),
            f"correct it in kernels/ or in a commit of the tree, then {_export()}",
            "no whitespace error, no CRLF file",
        )
        there = {patch.path.name: patch.data for patch in series.patches}
        tip = applied[-1].commit
        yield _try(
            "round trip", _reexport(), lambda: _round_trip(repo, commit, tip, there)
        )
    yield _try("kernels", _export(), lambda: _kernels(layout, series))
    hooks = f"move the patch to the new code, or correct {series.directory / drift.FILE_NAME}"
    yield _try("drift guard", hooks, lambda: _drift(repo, series))
    if applied:
        put_back = (
            f"restore what it names: git checkout -- {shlex.quote(str(layout.records))}"
        )
        records = _try(
            "records", put_back, lambda: _records(layout, series, applied), Exit.NO
        )
        yield _try(
            layout.checkpoints.name,
            # Export refuses records that are not sound, or would render what is wrong in them.
            _export() if records.holds else put_back,
            lambda: _page(layout, series, applied),
            Exit.NO,
        )
        yield records


def _export() -> str:
    return invocation.again(verb="export")


def _reexport() -> str:
    """For patch files that were edited: the tree takes the edit over before it writes them."""
    return f"{invocation.again(verb='apply')} && {_export()}"


def _try(
    predicate: str,
    after: str,
    action: Callable[[], tuple[str, tuple[str, ...]]],
    code: Exit = Exit.PATCH,
) -> Verdict:
    """A predicate whose refusal is raised as a Failure."""
    try:
        detail, problems = action()
        return Verdict(predicate, problems, after, detail, code)
    except Failure as failure:
        told = failure.what + (f"\n{failure.where}" if failure.where else "")
        return Verdict(predicate, (told,), after, failure=code)


def _apply(repo: Path, series: Series, applied: list[Applied]):
    applied += commit_series(repo, series.pin.commit, series)
    return f"tip {applied[-1].commit}", ()


def _round_trip(repo: Path, commit: str, tip: str, there: dict[str, bytes]):
    exported = export.export_tree(repo, commit, tip)
    problems = tuple(export.compare(there, exported).lines())
    return "export gives the patch files byte for byte", problems


def _kernels(layout: Layout, series: Series):
    wanted = generate.regenerate(series.directory, layout.kernels)
    problems = tuple(
        f"{name} differs from kernels/ at {export.first_difference(there, data)}"
        for name, data in wanted.items()
        if (there := (series.directory / name).read_bytes()) != data
    )
    problems += tuple(
        f"{name} is in no patch: name it in the Generated-From of one"
        for name in generate.unclaimed(series.directory, layout.kernels)
    )
    return f"{counted(list(wanted), 'generated patch file')}", problems


def _drift(repo: Path, series: Series):
    return f"{drift.require_in(repo, base.REF, series)} hooked functions", ()


def _page(layout: Layout, series: Series, applied: list[Applied]):
    text = checkpoints.render(series.pin, applied, layout.records, layout.kernels)
    current = checkpoints.is_current(layout.checkpoints, text)
    problems = () if current else ("it is not what the series renders",)
    return "rendered from this series", problems


def _records(layout: Layout, series: Series, applied: list[Applied]):
    today = stale.now(series.pin, applied, layout.kernels)
    found = verify.run(layout.root, layout.records, today)
    return (
        f"{found.figures} measurements recomputed from their raw files",
        found.problems,
    )
