"""`apply --installed` and `--revert`: the series over an installed sglang, in place."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import asdict, dataclass

from . import drift, journal
from .environment import Installation, find_installation, revert_command
from .errors import Exit, Failure
from .listing import columns, counted
from .files_after import files_after
from .series import Patch, Series
from .site_files import UNTOUCHED, SiteFiles


@dataclass(frozen=True)
class InstalledResult:
    """What apply_installed() did.

    Attributes: already: the series was in place before; by_hand: and not through this tool, so
        --revert can't undo it. recovered: an interrupted earlier run was rolled back first.
        files: the number of files of the package that the patches touch. by_default: python was
        not named by the user.
    """

    python: str
    site: str
    version: str
    patches: tuple[Patch, ...]
    files: int
    already: bool = False
    by_hand: bool = False
    recovered: bool = False
    dry_run: bool = False
    by_default: bool = False

    def as_json(self) -> dict:
        """The same facts for a script."""
        facts = {key: value for key, value in vars(self).items() if key != "patches"}
        return {
            "source": "installed",
            **facts,
            "patches": [
                {
                    "number": patch.number,
                    "name": patch.name,
                    "files": len(patch.changes),
                    "added": patch.added,
                    "removed": patch.removed,
                }
                for patch in self.patches
            ],
        }

    def lines(self) -> list[str]:
        """One aligned line per patch, then what was done and what to do next."""
        count = counted(range(self.files), "file")
        if self.by_hand:
            done = "already applied, by other means: --revert can't undo it"
        elif self.already:
            done = "already applied: nothing to do"
        elif self.dry_run:
            done = f"would change {count} and RECORD; a dry run writes nothing"
        else:
            done = f"{count} changed, and RECORD; the originals are kept"
        undoable = not (self.by_hand or self.dry_run)
        facts = [
            ("python", _told(self.python, self.by_default)),
            ("sglang", f"{self.version} in {self.site}"),
            ("recovered", _RECOVERED if self.recovered else ""),
            ("result", done),
            ("next", "" if self.already or self.dry_run else "restart running servers"),
            ("undo", revert_command(self.python) if undoable else ""),
        ]
        patches = [
            (
                patch.name,
                counted(patch.changes, "file"),
                f"+{patch.added}",
                f"-{patch.removed}",
            )
            for patch in self.patches
        ]
        return [*columns(patches), *columns(facts)]


@dataclass(frozen=True)
class RevertResult:
    """What revert_installed() did.

    Attributes:
        files: the paths that were put back, relative to site.
        nothing_to_do: no apply was found. interrupted: what was found was an unfinished one.
        kept_directories: made by the apply, but somebody else's files are in them now.
    """

    python: str
    site: str
    files: tuple[str, ...] = ()
    nothing_to_do: bool = False
    interrupted: bool = False
    kept_directories: tuple[str, ...] = ()
    dry_run: bool = False
    by_default: bool = False

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {"source": "installed", "revert": True, **asdict(self)}

    def lines(self) -> list[str]:
        """What was put back, and what could not be removed."""
        package = [path for path in self.files if not path.endswith(_RECORD)]
        count = f"{counted(package, 'file')} and RECORD"
        if self.nothing_to_do:
            done = "no patches of this tool are in place: nothing to do"
        elif self.dry_run:
            done = f"would put back {count}; a dry run writes nothing"
        else:
            done = f"{count} put back as before"
        kept = ", ".join(self.kept_directories)
        facts = [
            ("python", _told(self.python, self.by_default)),
            ("sglang", self.site),
            ("recovered", _RECOVERED if self.interrupted else ""),
            ("kept", f"{kept} (other files are in it)" if kept else ""),
            ("result", done),
        ]
        return columns(facts)


_RECORD = ".dist-info/RECORD"
_RECOVERED = "an earlier run had been interrupted; it was rolled back"


def apply_installed(
    series: Series,
    python: str | None = None,
    *,
    dry_run: bool = False,
    upto: str | None = None,
) -> InstalledResult:
    """Patches the installed sglang of the environment whose interpreter is `python`.

    Arguments: upto cuts the series right after one patch; dry_run computes every file and
    writes none. An interrupted earlier run is rolled back first. Raises Failure(ENVIRONMENT)
    when the environment has no sglang that can be changed in place, Failure(PATCH) when its
    files are not the pin's or hold something else already.
    """
    wanted = series.upto(upto) if upto else series
    installation = find_installation(python)
    _require_version(installation, series)
    site = SiteFiles(installation)
    common = {
        "python": installation.python,
        "site": str(installation.site),
        "version": installation.version,
        "patches": wanted.patches,
        "files": len(wanted.paths),
        "dry_run": dry_run,
        "by_default": installation.by_default,
    }
    with site.exclusive():
        recovered = _recover(site, dry_run)
        manifest = site.manifest()
        if manifest:
            site.require_same(manifest, wanted)
            return InstalledResult(**common, already=True)
        state = site.state(series)
        in_place = state.kind in ("applied", "partly")
        if in_place and state.applied == len(wanted.patches):
            return InstalledResult(**common, already=True, by_hand=True)
        site.require_pristine(state)
        drift.require(site.read, series, wanted)
        site.require_writable(wanted)
        contents = files_after(wanted, site.read)
        if not dry_run:
            site.write(contents, wanted)
        return InstalledResult(**common, recovered=recovered)


def revert_installed(
    python: str | None = None, *, dry_run: bool = False
) -> RevertResult:
    """Gives the environment of `python` the bytes, modes, RECORD and absence of new files back.

    Raises Failure(PATCH) when a file was changed since by somebody else: all stays as it is then.
    """
    installation = find_installation(python)
    site = SiteFiles(installation)
    common = {
        "python": installation.python,
        "site": str(installation.site),
        "dry_run": dry_run,
        "by_default": installation.by_default,
    }
    with site.exclusive():
        manifest = site.manifest()
        if manifest is None:
            _sweep(site, dry_run)
            return RevertResult(**common, nothing_to_do=True)
        site.require_restorable(manifest)
        kept = [] if dry_run else site.undo(manifest)
        _sweep(site, dry_run)
        return RevertResult(
            **common,
            files=tuple(entry.path for entry in manifest.entries),
            interrupted=manifest.state != journal.APPLIED,
            kept_directories=tuple(kept),
        )


def _told(python: str, by_default: bool) -> str:
    return f"{python} (by default; --python PY names another)" if by_default else python


def _require_version(installation: Installation, series: Series) -> None:
    # A wheel built from a patched tree may carry a local part, such as 0.5.13+sm120.
    if installation.version.partition("+")[0] != series.pin.version:
        raise Failure(
            Exit.PATCH,
            f"this environment has SGLang {installation.version}, "
            f"the series is for {series.pin.version}",
            where=str(installation.dist_info),
            state=UNTOUCHED,
            next=f"{shlex.quote(installation.python)} -m pip install --no-deps "
            f"sglang=={series.pin.version}",
        )


def _recover(site: SiteFiles, dry_run: bool) -> bool:
    """Rolls back what an interrupted run left. True when there was something."""
    manifest = site.manifest()
    interrupted = manifest is not None and manifest.state != journal.APPLIED
    if interrupted:
        if dry_run:
            raise Failure(
                Exit.PATCH,
                "an earlier apply or revert was interrupted here",
                where=str(site.journal.folder),
                state="its originals are kept; a dry run leaves all as it is",
                next="the same command without --dry-run rolls it back first",
            )
        site.require_restorable(manifest)
        site.undo(manifest)
    _sweep(site, dry_run)
    return interrupted


def _sweep(site: SiteFiles, dry_run: bool) -> None:
    if not dry_run:
        with contextlib.suppress(OSError):
            site.journal.sweep()
