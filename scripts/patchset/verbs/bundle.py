"""`bundle`: a patched SGLang for a GPU host without network."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from pathlib import Path

from .. import gitenv, invocation
from ..bundle import make, scratch, wheels
from ..bundle.target import MACHINES, Target
from ..errors import EXIT_CODES, Exit, Failure
from ..layout import Layout
from ..listing import columns, counted
from ..series import load_series

TORCH = ("torch", "torchvision", "torchaudio", "torchcodec", "torchao", "triton")
FLASH = "flash-kernels"
# Smaller parts would be files by the thousand.
_LEAST_PART = 1 << 20


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "bundle",
        prog="scripts/bundle.sh",
        epilog=EXIT_CODES,
        help="pack the patched tree and its packages for a host without network",
        description="Pack the patched tree with every package that SGLang needs beside torch, for "
        "one kind of machine, in parts that can be carried, with an installer that needs the "
        "target's Python and torch alone.",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a new folder"
    )
    parser.add_argument(
        "--target-python",
        type=_python,
        default="3.12",
        metavar="X.Y",
        help="the target's Python (default: 3.12)",
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        default=platform.machine() if platform.machine() in MACHINES else MACHINES[0],
        help="the target's processor (default: this one's)",
    )
    parser.add_argument(
        "--arch",
        choices=("sm_90", "sm_100", "sm_120", "sm_121"),
        default="sm_120",
        help="the target's GPU: kernels compiled for others are left out (default: sm_120)",
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help="one more package, or another version; repeatable",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a package that this server does not load, and what it alone needs; "
        f"{FLASH}: FlashAttention 3 and FlashMLA, a gigabyte that no sm_12x loads; repeatable",
    )
    parser.add_argument(
        "--kernels",
        type=Path,
        metavar="DIR",
        help="kernels that SGLang has compiled, so that the target compiles none: the folder "
        "~/.cache/tvm-ffi of a machine with the same GPU on which this bundle was installed to the "
        "same DIR, as their names hold it",
    )
    parser.add_argument(
        "--part-size",
        type=_bytes,
        default=_bytes("1G"),
        metavar="SIZE",
        help="the most that a part may have, such as 60M (default: 1G; 1M or more)",
    )
    parser.add_argument(
        "--tree",
        type=Path,
        metavar="DIR",
        help=f"the patched tree (default: build/sglang-{layout.release})",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument(
        "--patches", type=Path, default=layout.patches, help=argparse.SUPPRESS
    )
    parser.set_defaults(parser=parser, run=lambda arguments: _run(layout, arguments))


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    target = Target(arguments.target_python, arguments.machine, arguments.arch)
    series = load_series(arguments.patches)
    tree = arguments.tree or layout.target
    commit, checkpoint = _head(tree, named=arguments.tree is not None)
    requirements = [f"sglang=={series.pin.version}", *arguments.add]
    wanted = wheels.asked_for(requirements)
    left_out = [name for name in arguments.without if name != FLASH]
    wheels.require_not_asked_for(wanted, left_out)
    _require_kernels(arguments.kernels)
    flash = FLASH not in arguments.without

    def fill(site: Path) -> list[str]:
        _say(
            f"resolving {' '.join(requirements)} for Python {target.python}, {target.machine}"
        )
        closure = wheels.closure(requirements, target)
        wheels.require_known(closure, left_out)
        chosen = wheels.without(closure, [*TORCH, *left_out], wanted)
        _say(f"fetching {counted(chosen, 'package')}")
        with scratch.folder("patchset-wheels-") as folder:
            files = wheels.download(chosen, target, folder)
            make.site_of(files, tree, commit, target, site, flash)
        _say("packing")
        return [wheel.pinned for wheel in chosen]

    made = make.write(
        *(arguments.out, fill, target, checkpoint, commit, arguments.part_size),
        kernels=arguments.kernels,
    )
    if arguments.json:
        print(json.dumps(made.as_json(), indent=1))
    else:
        print("\n".join(_lines(made, target)))
    return Exit.DONE


def _require_kernels(folder: Path | None) -> None:
    if folder and not (folder.is_dir() and any(folder.iterdir())):
        raise Failure(
            Exit.USAGE,
            "--kernels needs a folder with compiled kernels in it",
            where=str(folder),
            state="no bundle was written",
            next="serve once on a machine with the target's GPU, and name its ~/.cache/tvm-ffi",
        )


def _head(tree: Path, named: bool) -> tuple[str, str]:
    """The commit of the tree and the patch that it is.

    Raises Failure(PATCH), or Failure(USAGE) when a tree that was named is not there.
    """
    if not (tree / ".git").exists():
        raise Failure(
            Exit.USAGE if named and not tree.exists() else Exit.PATCH,
            "there is no patched tree",
            where=str(tree),
            state="no bundle was written",
            next=f"make one: {invocation.script('apply.sh')}",
        )
    if gitenv.run(tree, "status", "--porcelain").strip():
        raise Failure(
            Exit.PATCH,
            "the tree has changes that are in no commit, which a bundle would leave out",
            where=str(tree),
            state="no bundle was written",
            next=f"git -C {tree} status",
        )
    commit = gitenv.text(tree, "rev-parse", "HEAD")
    message = gitenv.text(tree, "log", "-1", "--format=%B")
    found = re.search(r"^Patch: *(\S+)", message, re.MULTILINE)
    return commit, found[1] if found else "no patch of this series"


def _lines(made: make.Bundle, target: Target) -> list[str]:
    size = sum(bytes for _, bytes in made.parts)
    facts = [
        ("bundle", str(made.folder)),
        ("patches", f"{made.checkpoint} {(made.commit or '')[:12]}"),
        ("target", f"Python {target.python}, {target.machine}, {target.arch}"),
        ("size", f"{size / 2**20:.1f} MiB in {counted(made.parts, 'part')}"),
        ("next", "copy the folder to the target, then there: python3 install.py DIR"),
    ]
    return columns(facts)


def _python(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not X.Y, such as 3.12")
    return text


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d*)([KMG]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 60M or 1G")
    size = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]
    if size < _LEAST_PART:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1M")
    return size


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
