"""The command line: one function per verb registers its options, main() runs one."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback

from . import gitenv, invocation, signals, verbs
from .errors import Exit, Failure
from .layout import here

DEBUG_VARIABLE = "PATCHSET_DEBUG"


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code; every error is printed, none is raised.

    An expected failure is four labelled lines on standard error. A bug is one line and a file
    with the traceback (the traceback itself with PATCHSET_DEBUG=1).
    """
    for stream in (sys.stdout, sys.stderr):
        # A path that the terminal's encoding lacks must not end the command.
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        signals.unwind()
        arguments = _arguments(argv)
        invocation.remember(arguments.parser, arguments)
        gitenv.scrub()
        return int(arguments.run(arguments))
    except Failure as failure:
        print("\n".join(failure.lines()), file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt as interrupt:
        stopped = Failure(
            Exit.INTERRUPTED,
            "interrupted",
            state="nothing is half-written: each file and tree is as it was, or complete",
            next="run the same command again",
        )
        print("\n".join(stopped.lines()), file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        return _bug(error)


def _arguments(argv: list[str]) -> argparse.Namespace:
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        # The usage of the verb, not of the whole, says what could have been meant.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="patchset",
        description="Apply, prove and export the sm_120 patch series over SGLang.",
        epilog="exit codes: 0 done, 1 the answer is no, 2 usage, 3 patch or drift, "
        "4 environment, 5 build, 6 server or smoke, 70 a bug of this tool",
    )
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    layout = here()
    for register in verbs.ALL:
        register(subparsers, layout)
    return parser


def _bug(error: Exception) -> int:
    text = traceback.format_exc()
    what = traceback.format_exception_only(error)[0].splitlines()[0]
    print(f"{'error:':<7}a bug of patchset: {what}", file=sys.stderr)
    if os.environ.get(DEBUG_VARIABLE) == "1":
        print(text, file=sys.stderr)
        return int(Exit.BUG)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="patchset-bug-", suffix=".log", delete=False
        ) as log:
            log.write(text)
        print(f"{'where:':<7}{log.name}", file=sys.stderr)
    except OSError:
        print(text, file=sys.stderr)
    print(f"{'next:':<7}please report it, with that file", file=sys.stderr)
    return int(Exit.BUG)
