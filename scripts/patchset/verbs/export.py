"""`export`: patch files from kernels/ and from the commits of a tree, and the page of checkpoints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from .. import agree, disk, invocation
from ..agree import Outcome
from ..errors import EXIT_CODES, Exit, Failure
from ..layout import Layout
from ..listing import columns, counted
from ..standing import require_ours


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "export",
        prog="scripts/export.sh",
        epilog=EXIT_CODES,
        help="write patches/ and CHECKPOINTS.md from kernels/ and the commits of a tree",
        description="Make everything agree: the generated patches are written from kernels/, the "
        "others from the commits of the patched tree (if there is one), then CHECKPOINTS.md. With "
        "--dry-run nothing is written; exit 1 says that something would be.",
    )
    parser.add_argument(
        "--from",
        dest="tree",
        type=Path,
        metavar="DIR",
        help=f"the patched tree (default: build/sglang-{layout.release}, if it is there)",
    )
    parser.add_argument("--tip", default="HEAD", help="last commit (default: HEAD)")
    parser.add_argument(
        "--patches",
        type=Path,
        default=layout.patches,
        metavar="DIR",
        help=f"the patch directory (default: patches/{layout.release}); the kernels/ and "
        "CHECKPOINTS.md of another one are those two levels up",
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )
    parser.add_argument(
        "--prune", action="store_true", help="remove patch files without a commit"
    )
    parser.add_argument("--dry-run", action="store_true", help="compare only")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(parser=parser, run=lambda arguments: _run(layout, arguments))


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    another = f"choose another tree: {invocation.again('--from', 'DIR')}"
    with disk.errors(str(arguments.tree or layout.target), agree.NOTHING, another):
        tree = _tree(layout, arguments.tree, another)
    places = agree.places(layout, arguments.patches, tree)
    agreement = agree.Agreement(places, arguments.tip, arguments.prune)
    outcome = agreement.work_out(arguments.wheel)
    if not arguments.dry_run:
        agreement.write(outcome)
    for warning in outcome.warnings:
        print(
            f"warning: {warning.replace(chr(10), chr(10) + '         ')}",
            file=sys.stderr,
        )
    if arguments.json:
        print(json.dumps(_as_json(outcome, tree), indent=1))
    else:
        lines = _planned(outcome) if arguments.dry_run else _done(outcome)
        print("\n".join(lines))
    return Exit.NO if arguments.dry_run and outcome else Exit.DONE


def _tree(layout: Layout, named: Path | None, another: str) -> Path | None:
    """The tree to export, or None when none was named and none is there."""
    tree = Path(os.path.realpath(named or layout.target))
    if not tree.exists():
        if named:
            raise Failure(
                Exit.USAGE,
                "there is no patched tree to export",
                where=str(tree),
                state=agree.NOTHING,
                next=f"make it: {invocation.again('--to', str(named), verb='apply')}",
            )
        print(f"no tree in {tree}: its patches stay as they are", file=sys.stderr)
        return None
    require_ours(tree, another)
    return tree


def _planned(outcome: Outcome) -> list[str]:
    lines = outcome.difference.lines()
    if not outcome.page_is_current:
        lines.append("CHECKPOINTS.md is not what the series renders")
    return [*lines, _count(outcome)]


def _done(outcome: Outcome) -> list[str]:
    difference = outcome.difference
    changed = {*difference.changed, *difference.missing}
    rows = [
        ("written" if name in changed else "unchanged", name)
        for name in sorted(outcome.files)
    ]
    rows += [("removed", name) for name in difference.extra]
    if outcome.page is not None:
        current = outcome.page_is_current
        rows.append(("unchanged" if current else "written", "CHECKPOINTS.md"))
    check = f"{invocation.script('check.sh')}   (proves that all of it agrees)"
    return columns([*rows, ("result", _count(outcome)), ("next", check)])


def _count(outcome: Outcome) -> str:
    patches = f"{len(outcome.files)} patch{'' if len(outcome.files) == 1 else 'es'}"
    different = len(outcome.difference) + (not outcome.page_is_current)
    return f"{patches}, {counted(range(different), 'different file')}"


def _as_json(outcome: Outcome, tree: Path | None) -> dict:
    return {
        "tree": str(tree) if tree else None,
        **outcome.difference.as_json(),
        "patches": sorted(outcome.files),
        "checkpoints_changed": not outcome.page_is_current,
        "warnings": list(outcome.warnings),
    }
