"""`checkpoint render`: CHECKPOINTS.md from the series."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from .. import checkpoints, scratchrepo
from ..commits import commit_series
from ..errors import Exit
from ..layout import Layout
from ..series import load_series


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser(
        "checkpoint", help="the table of checkpoints and their evidence"
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    render = actions.add_parser(
        "render",
        help="write CHECKPOINTS.md",
        description="Write CHECKPOINTS.md from the series. With --dry-run nothing is written; "
        "exit 1 says that it would change.",
    )
    render.add_argument(
        "--root", type=Path, default=layout.root, metavar="DIR", help=argparse.SUPPRESS
    )
    render.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )
    render.add_argument("--dry-run", action="store_true", help="compare only")
    render.set_defaults(
        parser=render,
        run=lambda arguments: _render(replace(layout, root=arguments.root), arguments),
    )


def _render(layout: Layout, arguments: argparse.Namespace) -> Exit:
    series = load_series(layout.patches)
    with scratchrepo.imported(series.pin, arguments.wheel) as repo:
        applied = commit_series(repo, series.pin.commit, series)
    text = checkpoints.render(series.pin, applied, layout.records)
    current = checkpoints.is_current(layout.checkpoints, text)
    if not arguments.dry_run and not current:
        checkpoints.write(layout.checkpoints, text)
    print(f"{layout.checkpoints}: {'up to date' if current else 'changed'}")
    return Exit.NO if arguments.dry_run and not current else Exit.DONE
