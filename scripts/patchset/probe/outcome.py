"""How a measuring program ends: one JSON file with its figures, or with why the tree has none.

Exit 0 and a file, or anything else, which whoever started it must take for a failure of the probe.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Callable

from . import faults


class Unmeasurable(Exception):
    """The tree runs, and does not do what is to be measured."""


def main(measure: Callable[[argparse.Namespace], dict]) -> None:
    """Run one measurement of the tree at $PATCHSET_TREE and write what came out.

    measure returns value, correct and why, and more figures as it likes. A fault of the tree is
    written as `skip`, with the reason; any other exception is left to end the process.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", type=Path, help="files of the release itself")
    parser.add_argument("--case", help="what to measure, where there is a choice")
    for command in ("serve", "smoke", "bench"):
        parser.add_argument(f"--{command}", default="", help="words for that command")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        found = {"machine": machine(), **measure(arguments)}
    except Unmeasurable as error:
        found = {"skip": str(error)}
    except Exception as error:
        reason = faults.of_tree(error, Path(os.environ["PATCHSET_TREE"]))
        if reason is None:
            raise
        found = {"skip": reason}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict:
    """What a figure of the CPU depends on. A program that only starts others may lack torch and triton."""
    found = {"cpu": platform.machine(), "python": platform.python_version()}
    for name in ("torch", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
