"""`bench`: running servers measured; `bench serving` is the sweep, arms taking turns."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from .. import atomic, environment, optiontypes, serverfacts, servertree, workload
from ..askserver import Server, same_server
from ..errors import EXIT_CODES, Exit, Failure
from ..layout import Layout
from ..servingbench import (
    Arm,
    Bench,
    as_json,
    parse_arm,
    require_starting,
    summary,
    table,
    unfit,
)
from . import bench_steps, smoke

_ARM = "--arm NAME=URL"


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser("bench", help="measure running servers")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    serving = actions.add_parser(
        "serving",
        prog="scripts/bench.sh serving",
        epilog=EXIT_CODES,
        help="tokens per second of servers that take turns",
        description="Run a workload of ci/workload.toml through sglang.bench_serving against "
        "running servers that take turns. A server that fails the smoke test is not measured.",
    )
    serving.add_argument(
        "--arm",
        action="append",
        type=parse_arm,
        required=True,
        metavar="NAME=URL[@BUILD]",
        help='a server; BUILD is the patch that it must stand at, or "stock" (default: the last '
        "one). Repeatable: the others are compared with the first",
    )
    serving.add_argument(
        "--workload",
        metavar="ID[@C]",
        help="a workload of ci/workload.toml; with @C at one of its concurrencies alone (default: the "
        "first one)",
    )
    serving.add_argument(
        "--workloads",
        type=Path,
        default=layout.root / "ci" / "workload.toml",
        help=argparse.SUPPRESS,
    )
    serving.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a new folder for the raw files (default: in build/bench)",
    )
    serving.add_argument(
        "--python",
        metavar="PY",
        help="the interpreter that has SGLang's dependencies (default: of the active virtual "
        "environment, else python3)",
    )
    serving.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a folder with the tokenizer of the served model, or its name on a hub (default: "
        "where each server says that its own is)",
    )
    serving.add_argument(
        "--run-timeout",
        type=optiontypes.seconds,
        default=1800.0,
        metavar="S",
        help="seconds that one run may take (default: 1800)",
    )
    smoke.add_options(serving, layout)
    serving.add_argument(
        "--reference",
        type=smoke.address,
        metavar="URL",
        help="with --weights random: the server that every other arm must agree with, in place of "
        "the first arm, whose selection may differ from run to run",
    )
    # For a caller that has run the smoke test of this very server just now.
    serving.add_argument("--smoked", action="store_true", help=argparse.SUPPRESS)
    serving.add_argument("--json", action="store_true", help="the result as JSON")
    serving.set_defaults(
        parser=serving,
        needs_git=False,
        run=lambda arguments: _run(layout, arguments),
    )
    bench_steps.register(actions, layout)


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    arms: list[Arm] = arguments.arm
    if why := unfit(arms):
        arguments.parser.error(why)
    if arguments.build:
        arguments.parser.error("each arm has its own: --arm NAME=URL@BUILD")
    if arguments.out and arguments.out.exists():
        arguments.parser.error(
            f"--out needs a new folder, and {arguments.out} is there"
        )
    if arguments.reference and arguments.weights != "random":
        arguments.parser.error("--reference URL goes with --weights random")
    for arm in arms[1:]:
        if arguments.reference and same_server(arm.url, arguments.reference):
            arguments.parser.error(
                f"--reference URL is {arm.name} itself, {arm.url}, which would agree with anything: "
                "name another server"
            )
    work = workload.load(arguments.workloads, arguments.workload)
    python = arguments.python or environment.default_python()
    tree = servertree.find(layout.target, None)
    variables = servertree.variables(tree, os.environ)
    require_starting(python, variables)
    named = time.strftime("%Y%m%d-%H%M%S")
    with _kept(arguments.out or layout.target.parent / "bench" / named) as folder:
        result = _measured(arguments, arms, work, python, variables, folder, layout)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n".join([*table(result["summary"]), f"raw files: {folder}{os.sep}"]))
    return Exit.DONE


@contextmanager
def _kept(folder: Path) -> Iterator[Path]:
    """A new folder for raw files, which goes again when there are none."""
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _measured(
    arguments: argparse.Namespace,
    arms: list[Arm],
    work: workload.Workload,
    python: str,
    variables: dict[str, str],
    folder: Path,
    layout: Layout,
) -> dict:
    """The runs of all arms, once each has passed the smoke test; their result is in the folder too."""
    smoked = [_smoke(layout, arguments, arm, arms[0]) for arm in arms]
    tokenizers = {arm.name: _tokenizer(arguments, arm) for arm in arms}
    bench = Bench(
        python,
        variables,
        work,
        folder,
        arguments.run_timeout,
        {name: place for name, place in tokenizers.items() if place},
        arguments.api_key,
    )
    runs = bench.run_all(arms, _say)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": serverfacts.machine(
            (arm.url for arm in arms), smoked[0]["settings"].get("tp_size")
        ),
        "workload": asdict(work),
        "arms": [
            {
                **asdict(arm),
                "build": facts["build"],
                "weights": arguments.weights,
                "settings": facts["settings"],
                "smoke": facts["checks"],
            }
            for arm, facts in zip(arms, smoked)
        ],
        "runs": as_json(runs),
        "summary": summary(runs, arms),
    }
    atomic.write(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def _smoke(layout: Layout, arguments: argparse.Namespace, arm: Arm, first: Arm) -> dict:
    _say(f"smoke test of {arm.name}{' was done' if arguments.smoked else ''}")
    # Random weights have no right answer: the others must agree with the first arm, or the reference.
    compared = arguments.weights == "random" and arm is not first
    reference = None
    if compared:
        seconds, key = arguments.timeout, arguments.api_key
        url, option = first.url, _ARM
        if arguments.reference:
            url, option = arguments.reference, "--reference URL"
        reference = Server(url, seconds, key, option)
    return smoke.run(
        layout,
        arguments,
        arm.url,
        arm.build,
        reference,
        _ARM,
        answers=not arguments.smoked,
        asked_by=arm.asked_by,
    )


def _tokenizer(arguments: argparse.Namespace, arm: Arm) -> str | None:
    if arguments.tokenizer:
        return arguments.tokenizer
    server = Server(arm.url, arguments.timeout, arguments.api_key, _ARM)
    place = serverfacts.tokenizer(server.get("/server_info"))
    if place and Path(place).is_absolute() and not Path(place).exists():
        raise Failure(
            Exit.ENVIRONMENT,
            f"{arm.name}: the server's tokenizer is not on this machine: {place}",
            where=arm.url,
            state="nothing was measured",
            next="copy it here and name its folder: --tokenizer PATH",
        )
    return place


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
