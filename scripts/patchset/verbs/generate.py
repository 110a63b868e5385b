"""`generate`: the generated patches, made again from kernels/."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from .. import export, generate
from ..errors import Exit
from ..layout import Layout


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "generate",
        help="write the generated patch files from kernels/",
        description="Write every patch file that has a Generated-From: trailer again from "
        "kernels/. With --dry-run nothing is written; exit 1 says that something would be.",
    )
    parser.add_argument(
        "--root", type=Path, default=layout.root, metavar="DIR", help=argparse.SUPPRESS
    )
    parser.add_argument("--dry-run", action="store_true", help="compare only")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(
        run=lambda arguments: _run(replace(layout, root=arguments.root), arguments)
    )


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    files = generate.regenerate(layout.patches, layout.kernels)
    stale = [
        name
        for name, data in files.items()
        if (layout.patches / name).read_bytes() != data
    ]
    if not arguments.dry_run:
        export.write_files(layout.patches, {name: files[name] for name in stale})
    if arguments.json:
        print(json.dumps({"generated": list(files), "changed": stale}, indent=1))
    else:
        for name in files:
            print(f"{'changed' if name in stale else 'same   '}  {name}")
    return Exit.NO if arguments.dry_run and stale else Exit.DONE
