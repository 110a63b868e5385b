"""`serve`: the patched server with the settings for DeepSeek-V4 on this machine."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from .. import (
    environment,
    gpus,
    optiontypes,
    serverbuild,
    serverflags,
    serverprocess,
    serversettings,
    servertree,
)
from ..askserver import Server
from ..errors import EXIT_CODES, Exit
from ..invocation import script
from ..layout import Layout
from ..listing import columns
from ..series import Series, load_series

_SAY_EACH = 15.0
_WATCH = 1.0


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "serve",
        prog="scripts/serve.sh",
        epilog=EXIT_CODES,
        # SGLang's own options must not be taken for the beginning of one of these.
        allow_abbrev=False,
        help="start the patched server with the settings for DeepSeek-V4",
        description="Start the patched server, say when it is ready and which path each flag took, "
        "and stop it with Ctrl-C. Every option that is not below goes to sglang.launch_server and "
        "comes before the settings that are chosen here.",
    )
    parser.add_argument(
        "--python",
        metavar="PY",
        help="the interpreter that has SGLang's dependencies (default: of the active virtual "
        "environment, else python3)",
    )
    parser.add_argument(
        "--tree",
        type=Path,
        metavar="DIR",
        help=f"the patched tree to serve (default: build/sglang-{layout.release}, if it is there)",
    )
    parser.add_argument(
        "--installed",
        action="store_true",
        help="serve the sglang that is installed there, whatever tree there is",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="the server's log (default: in build/)"
    )
    parser.add_argument(
        "--ready-timeout",
        type=optiontypes.seconds,
        default=1800.0,
        metavar="S",
        help="seconds until it must be ready (default: 1800)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command; start nothing"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument(
        "--patches", type=Path, default=layout.patches, help=argparse.SUPPRESS
    )
    parser.set_defaults(
        parser=parser,
        needs_git=False,
        passes_on=True,
        passed=[],
        run=lambda arguments: _run(layout, arguments),
    )


def _run(layout: Layout, arguments: argparse.Namespace) -> int:
    if arguments.installed and arguments.tree:
        arguments.parser.error("--installed and --tree name two places")
    python = arguments.python or environment.default_python()
    tree = (
        None if arguments.installed else servertree.find(layout.target, arguments.tree)
    )
    variables = servertree.variables(tree, os.environ)
    environment.interpreter(python)
    serverflags.require_words(variables, load_series(arguments.patches))
    serversettings.require_values(arguments.passed)
    serversettings.require_no_file(arguments.passed)
    if not arguments.dry_run:
        serversettings.require_model(arguments.passed)
    command = [python, "-m", "sglang.launch_server", *_settings(arguments.passed)]
    port = serversettings.port(command)
    if arguments.dry_run:
        print(_shown(command, tree))
        return Exit.DONE
    named = serversettings.options(command)
    host = named["--host"]
    serverprocess.require_free(host, port)
    log = arguments.log or layout.target.parent / f"server-{port}.log"
    _say(f"starting {_shown(command, tree)}\nlog: {log}")
    server = Server(_url(host, port), api_key=named.get("--api-key"))
    try:
        with serverprocess.started(command, variables, log) as process:
            with _Progress() as progress:
                took = process.wait_until_ready(
                    server.healthy, arguments.ready_timeout, progress
                )
            has_key = serversettings.has_key(command)
            _report(layout, arguments, server, took, log, has_key)
            while True:
                process.require_running()
                time.sleep(_WATCH)
    except KeyboardInterrupt as interrupt:
        return _stopped(interrupt, server, log, arguments.json)


def _stopped(
    interrupt: KeyboardInterrupt, server: Server, log: Path, as_json: bool
) -> int:
    """Say that the server was stopped, as a signal is how that is done; the exit code."""
    code = 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    _say(f"stopped: the server at {server.url}, with all of its processes\nlog: {log}")
    if as_json:
        print(json.dumps({"stopped": server.url, "log": str(log), "exit": code}))
    return code


def _settings(given: list[str]) -> list[str]:
    # What was typed is looked at before the machine is.
    without_size = serversettings.complete(given, None)
    serversettings.port(without_size)
    if "--tp-size" in serversettings.options(given):
        return without_size
    found = gpus.visible()
    _say("\n".join(f"GPU {i}: {gpu.line()}" for i, gpu in enumerate(found)))
    return serversettings.complete(given, len(found))


def _shown(command: list[str], tree: Path | None) -> str:
    before = f"PYTHONPATH={shlex.quote(str(tree / 'python'))} " if tree else ""
    return before + shlex.join(serversettings.without_secrets(command))


def _report(
    layout: Layout,
    arguments: argparse.Namespace,
    server: Server,
    took: float,
    log: Path,
    has_key: bool,
) -> None:
    """Say on standard output that it is ready, what it is and which paths were taken."""
    series = load_series(arguments.patches)
    build = serverbuild.build_of(server.get("/server_info"), series, layout.checkpoints)
    if arguments.json:
        facts = {
            "url": server.url,
            "seconds": round(took, 1),
            "log": str(log),
            "build": build.as_json(),
        }
        print(json.dumps(facts), flush=True)
        return
    facts = [
        ("ready", f"{server.url} after {took:.0f} s"),
        ("build", build.line()),
        *(("path", line) for line in build.path_lines()),
        ("next", _smoke(server.url, build, series, has_key)),
        ("stop", "Ctrl-C here"),
    ]
    print("\n".join(columns(facts)), flush=True)


def _smoke(url: str, build: serverbuild.Build, series: Series, has_key: bool) -> str:
    """The smoke test of this server: of its own build, and with a key where it asks for one."""
    words = [script("smoke.sh"), "--url", shlex.quote(url)]
    if build.checkpoint != series.last:
        words += ["--build", build.checkpoint]
    if has_key:
        words += ["--api-key", '"$API_KEY"', "  (with the server's key in API_KEY)"]
    return " ".join(words)


class _Progress:
    """Says the stage on a line that is written over on a terminal, else now and then a new one."""

    def __init__(self):
        self._said = ("", -_SAY_EACH)
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_) -> None:
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, stage: str, seconds: float) -> None:
        if self._on_terminal:
            print(f"\r\x1b[K{stage} ({seconds:.0f} s)", end="", file=sys.stderr)
            return
        before, at = self._said
        if stage != before or seconds - at >= _SAY_EACH:
            self._said = (stage, seconds)
            _say(f"{stage} ({seconds:.0f} s)")


def _url(host: str, port: int) -> str:
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
