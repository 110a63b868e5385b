"""`apply`: the patched tree, from the wheel, from git, in a checkout or in an installation."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .. import base, drift, gitsource, installed, into, target, wheel
from ..errors import EXIT_CODES, Exit
from ..layout import Layout
from ..series import Series, is_release, load_series


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "apply",
        prog="scripts/apply.sh",
        epilog=EXIT_CODES,
        help="make the patched tree, or patch a checkout or an installation",
        description="Make the patched SGLang tree: one commit per patch over the pinned release. "
        "The downloaded wheel is kept in a cache, also by a dry run.",
    )
    parser.add_argument(
        "--patches",
        type=Path,
        default=layout.patches,
        metavar="DIR",
        help=f"the patch directory (default: patches/{layout.release})",
    )
    parser.add_argument(
        "--upto",
        metavar="PATCH",
        help="stop after this patch; 0000: before the first, which is the release",
    )
    parser.add_argument(
        "--source",
        choices=("wheel", "git"),
        help="where the unpatched release comes from (default: wheel)",
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )
    parser.add_argument(
        "--url", metavar="URL", help="with --source git: another repository"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help=f"where to make the tree (default: build/sglang-{layout.release})",
    )
    place.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="a checkout that you have: the patches become a new branch of it",
    )
    place.add_argument(
        "--installed",
        action="store_true",
        help="patch the installed sglang package of a Python environment in place",
    )
    parser.add_argument(
        "--python",
        metavar="PY",
        help="with --installed: the environment's interpreter",
    )
    parser.add_argument(
        "--revert", action="store_true", help="with --installed: take the patches out"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a tree that this tool made"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done; change nothing"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(parser=parser, run=lambda arguments: _run(layout, arguments))


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    _require_sense(arguments)
    if arguments.revert:
        result = installed.revert_installed(arguments.python, dry_run=arguments.dry_run)
    else:
        result = _apply(layout, arguments)
    text = (
        json.dumps(result.as_json(), indent=1)
        if arguments.json
        else "\n".join(result.lines())
    )
    print(text)
    return Exit.DONE


def _apply(layout: Layout, arguments: argparse.Namespace):
    series = load_series(arguments.patches)
    if arguments.installed:
        return installed.apply_installed(
            series, arguments.python, dry_run=arguments.dry_run, upto=arguments.upto
        )
    if arguments.into:
        return into.apply_into(
            series,
            arguments.into,
            dry_run=arguments.dry_run,
            force=arguments.force,
            upto=arguments.upto,
        )
    wanted = series.upto(arguments.upto) if arguments.upto else series
    if arguments.wheel:
        # A tree that is there already needs no wheel, but a wrong one must not look accepted.
        wheel.obtain(series.pin, arguments.wheel)
    return target.apply_to(
        arguments.to or layout.target,
        series,
        wanted,
        _source(series, wanted, arguments),
        force=arguments.force,
        dry_run=arguments.dry_run,
    )


def _source(
    series: Series, wanted: Series, arguments: argparse.Namespace
) -> target.Source:
    def from_wheel(directory: Path) -> str:
        file = wheel.obtain(series.pin, arguments.wheel)
        _say(f"importing SGLang {series.pin.version} from {file}")
        base.init_repository(directory)
        return base.import_base(directory, file, series.pin)

    def from_git(directory: Path) -> str:
        url = arguments.url or series.pin.git_url
        _say(f"fetching SGLang {series.pin.tag} from {url}")
        return gitsource.fetch_at_tag(series, directory, url)

    def guarded(directory: Path) -> str:
        fill = from_git if arguments.source == "git" else from_wheel
        commit = fill(directory)
        drift.require_in(directory, commit, series, wanted)
        number = len(wanted.patches)
        _say(f"applying {number} patch{'' if number == 1 else 'es'}")
        return commit

    return target.Source(arguments.source or "wheel", guarded)


def _require_sense(arguments: argparse.Namespace) -> None:
    """Refuse options that mean nothing together, as argparse refuses unknown ones."""
    parser = arguments.parser
    in_place = arguments.installed or arguments.into
    if arguments.revert and not arguments.installed:
        parser.error("--revert needs --installed")
    if arguments.python and not arguments.installed:
        parser.error("--python needs --installed")
    if arguments.revert and arguments.upto:
        parser.error("--revert takes out all patches: --upto means nothing with it")
    if in_place and arguments.upto and is_release(arguments.upto):
        parser.error("--upto 0000, which is no patch, goes with a tree of its own only")
    if in_place and (arguments.source or arguments.wheel or arguments.url):
        parser.error("--source, --wheel and --url go with a tree of its own only")
    if arguments.installed and arguments.force:
        parser.error("--force means nothing with --installed")
    if arguments.url and arguments.source != "git":
        parser.error("--url needs --source git")
    if arguments.wheel and arguments.source == "git":
        parser.error("--wheel means nothing with --source git")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
