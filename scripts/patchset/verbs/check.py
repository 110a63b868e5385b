"""`check`: prove the series."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from .. import check
from ..errors import EXIT_CODES, Exit
from ..layout import Layout


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "check",
        prog="scripts/check.sh",
        epilog=EXIT_CODES,
        help="prove the series: lint, strict apply, round trip, kernels, drift",
        description="Prove the series; one line per predicate. Exit 3 when a patch is wrong, "
        "1 when only CHECKPOINTS.md is stale.",
    )
    parser.add_argument(
        "--root", type=Path, default=layout.root, metavar="DIR", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(
        parser=parser,
        run=lambda arguments: _run(replace(layout, root=arguments.root), arguments),
    )


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    verdicts = check.run(layout, arguments.wheel)
    if arguments.json:
        print(json.dumps([verdict.as_json() for verdict in verdicts], indent=1))
    else:
        print("\n".join(verdict.text() for verdict in verdicts))
    return check.exit_code(verdicts)
