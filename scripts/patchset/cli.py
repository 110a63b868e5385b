"""The command line: one function per verb registers its options, main() runs one."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import NoReturn

from . import gitenv, invocation, signals, verbs
from .errors import EXIT_CODES, Exit, Failure, Interrupted
from .layout import here

_WHOLE = "nothing is half-written: each file and tree is as it was, or complete"
_NO_ROOM = "make room there, or send the output elsewhere"
_NO_RIGHT = "make it readable and writable for this user, or name another place"

DEBUG_VARIABLE = "PATCHSET_DEBUG"


class _Usage(Failure):
    """A command line that a parser does not take."""

    def __init__(self, parser: argparse.ArgumentParser, message: str):
        after = f"{parser.prog} --help"
        super().__init__(Exit.USAGE, message, state="nothing was changed", next=after)
        self.shown = parser.format_usage()
        self.prog = parser.prog


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(self, message)


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code; every error is printed, none is raised.

    An expected failure is four labelled lines on standard error. A bug is one line and a file
    with the traceback (the traceback itself with PATCHSET_DEBUG=1).
    """
    for name in ("stdout", "stderr"):
        # Closed by the caller (>&-): Python has no stream there at all.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):
        # A path that the terminal's encoding lacks must not end the command.
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
    as_json = "--json" in argv
    try:
        signals.unwind()
        arguments = _arguments(argv)
        invocation.remember(arguments.parser, arguments)
        if arguments.needs_git:
            gitenv.scrub()
        return int(arguments.run(arguments))
    except _Usage as usage:
        print(f"{usage.shown}{usage.prog}: error: {usage.what}", file=sys.stderr)
        _print_json(usage, as_json)
        return int(usage.code)
    except Failure as failure:
        return _tell(failure, as_json)
    except KeyboardInterrupt as interrupt:
        _tell(_stopped(interrupt), as_json)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _tell(_meeting(error), as_json)
    except Exception as error:
        return _bug(error, as_json)


def _tell(failure: Failure, as_json: bool) -> int:
    print("\n".join(failure.lines()), file=sys.stderr)
    _print_json(failure, as_json)
    return int(failure.code)


def _print_json(failure: Failure, as_json: bool) -> None:
    if as_json:
        # Where standard output is what failed, the lines on standard error have said all.
        with contextlib.suppress(OSError):
            print(json.dumps(failure.as_json(), indent=1), flush=True)


def _stopped(interrupt: KeyboardInterrupt) -> Failure:
    known = isinstance(interrupt, Interrupted)
    return Failure(
        Exit.INTERRUPTED,
        "interrupted",
        state=interrupt.state if known else _WHOLE,
        next=interrupt.next if known else "run the same command again",
    )


def _meeting(error: OSError) -> Failure:
    """The place and right that an operating system error is about; never a bug of ours."""
    return Failure(
        Exit.ENVIRONMENT,
        f"a file or directory can't be used: {error.strerror or error}",
        where=str(error.filename or "not told by the system"),
        state=_WHOLE,
        next=_NO_ROOM if error.errno == errno.ENOSPC else _NO_RIGHT,
    )


def _arguments(argv: list[str]) -> argparse.Namespace:
    arguments, unknown = _parser().parse_known_args(argv)
    if getattr(arguments, "passes_on", False):
        arguments.passed = unknown
    elif unknown:
        # The usage of the verb, not of the whole, says what could have been meant.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="patchset",
        description="Apply, prove and export the sm_120 patch series over SGLang.",
        epilog=EXIT_CODES,
    )
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    layout = here()
    parser.set_defaults(needs_git=True)
    for register in verbs.ALL:
        register(subparsers, layout)
    return parser


def _bug(error: Exception, as_json: bool) -> int:
    text = traceback.format_exc()
    what = traceback.format_exception_only(error)[0].splitlines()[0]
    shown = os.environ.get(DEBUG_VARIABLE) == "1"
    bug = Failure(
        Exit.BUG,
        f"a bug of patchset: {what}",
        where=None if shown else _kept(text),
        next="please report it, with that file",
    )
    if bug.where is None:
        print(text, file=sys.stderr)
        bug.next = "please report it, with the text above"
    return _tell(bug, as_json)


def _kept(text: str) -> str | None:
    """The name of a new file with the traceback, or None when there is no room for one."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="patchset-bug-", suffix=".log", delete=False
        ) as log:
            log.write(text)
    except OSError:
        return None
    return log.name
