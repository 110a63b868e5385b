"""`scripts/bench.sh kernel` and `roofline`: the command line of the benchmarks of kernels.

A program of its own, because a GPU host's Python has torch and triton and nothing else of ours.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Optional

from . import benchnames, newfile, optiontypes, signals
from .errors import Exit, Failure

_HERE = ("kernel", "roofline")
_SERVERS = ("serving", "steps")


def main(argv: list[str]) -> int:
    """Run one benchmark and return the exit code; an expected failure is printed, not raised."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench.sh",
        description="Time the kernels against the stock functions on this machine's GPU. "
        "PYTHON names the interpreter that has torch and triton (default: python3).",
        epilog=f"cases: {benchnames.listing()}. "
        "scripts/bench.sh serving and steps measure running servers: see their --help",
    )
    parser.add_argument(
        "what",
        type=_what,
        metavar=f"{{{','.join((*_HERE, *_SERVERS))}}}",
        help="kernel: time them here; roofline: render docs/roofline.md (no GPU needed); serving, steps: running servers",
    )
    parser.add_argument(
        "--case",
        action="append",
        metavar="GROUP",
        help="a group of shapes (text512) or a kernel (topk), which is all of its groups; repeatable (default: all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the raw figures there as JSON"
    )
    parser.add_argument(
        "--samples",
        type=optiontypes.count,
        default=benchnames.SAMPLES,
        help=f"measurements per arm (default {benchnames.SAMPLES})",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=benchnames.PEERS,
        help="a peer that is not timed, though it can be imported; repeatable",
    )
    parser.add_argument(
        "--peer-seconds",
        type=optiontypes.seconds,
        default=120,
        metavar="N",
        help="a peer that compiles longer than this before the first measurement is left out (default 120)",
    )
    arguments = parser.parse_args(argv)
    if arguments.what == "roofline":
        _refuse_options(parser, arguments)
    signals.unwind()
    try:
        return _run(arguments)
    except Failure as failure:
        print("\n".join(failure.lines()), file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt as interrupt:
        print("\n".join(_interrupted(arguments.out).lines()), file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def _interrupted(out: Optional[Path]) -> Failure:
    if out and out.exists():
        return Failure(
            Exit.INTERRUPTED,
            "interrupted",
            where=str(out),
            state='it keeps the groups that were measured; "left" in it names the others',
            next="measure those with --case GROUP, into another --out",
        )
    return Failure(
        Exit.INTERRUPTED,
        "interrupted",
        state="nothing is kept",
        next="run the same command again",
    )


def _require_place(out: Path) -> None:
    """Before the first measurement: all of them take minutes."""
    newfile.require(out, f"choose another file: --out {newfile.beside(out)}")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise Failure(
            Exit.USAGE if isinstance(error, FileNotFoundError) else Exit.ENVIRONMENT,
            "--out can't be written",
            where=f"{out}: {error.strerror}",
            state="nothing was measured",
            next="name a file in a folder that is there and can be written",
        ) from None


def _what(text: str) -> str:
    if text in _SERVERS:
        # bench.sh hands them over where they are its first word.
        raise argparse.ArgumentTypeError(
            f"name {text} before its options: scripts/bench.sh {text} ..."
        )
    if text not in _HERE:
        raise argparse.ArgumentTypeError(
            f"{text!r} can't be measured: choose of {', '.join((*_HERE, *_SERVERS))}"
        )
    return text


def _refuse_options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> None:
    """End with a usage error if any option is given: the page has one place, and nothing is timed for it."""
    for name, value in vars(arguments).items():
        if name != "what" and value != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            parser.error(f"roofline takes no {option}: it writes docs/roofline.md")


def _run(arguments: argparse.Namespace) -> int:
    benchnames.require_known(arguments.case or [], benchnames.GROUPS)
    if arguments.out and arguments.what == "kernel":
        _require_place(arguments.out)
    try:
        from . import kernelbench, roofline
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "triton"):
            raise
        raise Failure(
            Exit.ENVIRONMENT,
            f"this Python has no {missing.name}",
            where=sys.executable,
            state="nothing was measured",
            next=f"PYTHON=/path/to/python scripts/bench.sh {arguments.what}, with one that serves SGLang",
        ) from None
    if arguments.what == "roofline":
        roofline.write()
        return int(Exit.DONE)
    return kernelbench.run(
        arguments.case,
        arguments.out,
        arguments.samples,
        arguments.without,
        arguments.peer_seconds,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
