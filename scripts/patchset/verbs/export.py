"""`export`: the commits of a patched tree back into patch files."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from .. import base, export
from ..errors import Exit, Failure
from ..layout import Layout
from ..standing import require_ours


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "export",
        help="write the patch files from the commits of a patched tree",
        description="Write patches/ from the commits of a patched tree. With --dry-run nothing "
        "is written; exit 1 says that something would be.",
    )
    parser.add_argument(
        "--from",
        dest="tree",
        type=Path,
        default=layout.target,
        metavar="DIR",
        help=f"the patched tree (default: build/sglang-{layout.release})",
    )
    parser.add_argument("--tip", default="HEAD", help="last commit (default: HEAD)")
    parser.add_argument(
        "--patches",
        type=Path,
        default=layout.patches,
        metavar="DIR",
        help=f"the patch directory (default: patches/{layout.release})",
    )
    parser.add_argument(
        "--prune", action="store_true", help="remove patch files without a commit"
    )
    parser.add_argument("--dry-run", action="store_true", help="compare only")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> Exit:
    tree = Path(os.path.realpath(arguments.tree))
    if not tree.exists():
        raise Failure(
            Exit.PATCH,
            "there is no patched tree to export",
            where=str(tree),
            state="nothing was written",
            next="make it: scripts/apply.sh",
        )
    require_ours(tree)
    files = export.export_tree(tree, base.REF, arguments.tip)
    if arguments.dry_run:
        difference = export.compare(arguments.patches, files)
    else:
        difference = export.write(arguments.patches, files, prune=arguments.prune)
    if arguments.json:
        print(json.dumps(difference.as_json(), indent=1))
    else:
        for line in difference.lines():
            print(line)
        print(f"{len(files)} patches, {len(difference)} different files")
    return Exit.NO if arguments.dry_run and difference else Exit.DONE
