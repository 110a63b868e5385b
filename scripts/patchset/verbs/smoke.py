"""`smoke`: is this server alive, ours, and right?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from .. import (
    agreement,
    optiontypes,
    questions,
    references,
    serverbuild,
    serverfacts,
    serverflags,
)
from .. import smoke
from ..askserver import Server, same_server, web_address
from ..chat import Chat
from ..errors import EXIT_CODES, Exit
from ..layout import Layout
from ..listing import columns, counted
from ..series import Series, load_series
from ..smoke import Check

URL = "http://127.0.0.1:30000"


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "smoke",
        prog="scripts/smoke.sh",
        epilog=EXIT_CODES,
        help="check that a running server is alive, patched and right",
        description="Ask a running server: is it alive, which patches does it run (it says so "
        "itself), does it answer. Any doubt is exit 6.",
    )
    add_options(parser, layout)
    parser.add_argument(
        "--url",
        type=address,
        default=URL,
        metavar="URL",
        help=f"the server (default: {URL})",
    )
    parser.add_argument(
        "--reference",
        type=address,
        metavar="URL",
        help="with --weights random: another server to agree with, best one of the stock path; "
        "the result says which build it is",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(
        parser=parser,
        needs_git=False,
        run=lambda arguments: _run(layout, arguments),
    )


def add_options(parser: argparse.ArgumentParser, layout: Layout) -> None:
    """The options that say what a smoke test expects; `bench serving` has them too."""
    parser.add_argument(
        "--build",
        metavar="PATCH",
        help='the patch that the server must stand at, or "stock" (default: the last one)',
    )
    parser.add_argument(
        "--active",
        nargs="*",
        metavar="FLAG",
        help="these flags must have taken the path of this series (without names: every flag that "
        "a step asked for)",
    )
    parser.add_argument(
        "--weights",
        choices=("real", "smoke-model", "random"),
        default="real",
        help="what is served: the real model; the trained test model, whose recorded answers are "
        "compared; or random weights, of whose log-probabilities "
        f"{references.SHARE:.0%}% must be within {agreement.NEAR:g} of those of --reference, for each "
        "length of prompts: coarse, as no answer is right there (default: real)",
    )
    parser.add_argument(
        "--expected",
        type=Path,
        default=layout.root / "ci" / "smoke-model" / "expected.json",
        metavar="FILE",
        help="the recorded answers (default: ci/smoke-model/expected.json)",
    )
    parser.add_argument("--model", metavar="NAME", help="the served model's name")
    parser.add_argument(
        "--timeout",
        type=optiontypes.seconds,
        default=300.0,
        metavar="S",
        help="seconds that each check may take (default: 300)",
    )
    parser.add_argument("--api-key", metavar="KEY", help="of the server, if it has one")
    parser.add_argument(
        "--patches", type=Path, default=layout.patches, help=argparse.SUPPRESS
    )


def run(
    layout: Layout,
    arguments: argparse.Namespace,
    url: str,
    build: str | None,
    reference: Server | None,
    option: str = "--url URL",
    answers: bool = True,
    asked_by: str = "--build ",
) -> dict:
    """All checks of one server; the facts for a report. Raises Failure(SERVER) unless all pass,
    and Failure(USAGE), before anything is asked, for a flag or patch that there is not.

    Random weights without a reference are asked nothing, and none are without answers. option is what
    names url on the command line, asked_by what stands before a build.
    """
    series = load_series(arguments.patches)
    serverflags.require_routes(arguments.active or [], series)
    server = Server(url, arguments.timeout, arguments.api_key, option)
    wanted = _wanted(series, build)
    checkpoints = layout.checkpoints

    def told(other: Server) -> str:
        info = other.get("/server_info")
        return _told(serverbuild.build_of(info, series, checkpoints))

    checks = [
        Check("alive", lambda: smoke.alive(server), essential=True),
        Check(
            "build",
            lambda: _require_build(server, series, wanted, checkpoints, asked_by),
            essential=True,
        ),
        Check(
            "model",
            lambda: smoke.served_model(server, arguments.model),
            essential=True,
        ),
        *(_answers(server, arguments, reference, told) if answers else []),
    ]
    if wanted != serverbuild.STOCK:
        checks.append(
            Check(
                "paths",
                lambda: _require_paths(server, series, checkpoints, arguments.active),
            )
        )
    outcomes = smoke.run(
        checks, lambda line: print(line, file=sys.stderr), server.begin_phase
    )
    smoke.require_all(checks, outcomes)
    server.begin_phase()
    info = server.get("/server_info")
    found = serverbuild.build_of(info, series, checkpoints)
    return {
        "url": url,
        "build": found.as_json(),
        "settings": serverfacts.settings(info),
        "weights": arguments.weights,
        "checks": [outcome.as_json() for outcome in outcomes],
        "lines": [("server", url), ("build", found.line())]
        + [("path", line) for line in found.path_lines()],
    }


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    random = arguments.weights == "random"
    if random != bool(arguments.reference):
        arguments.parser.error("--weights random and --reference URL go together")
    if arguments.build == serverbuild.STOCK and arguments.active is not None:
        arguments.parser.error(
            "a stock server has no path of this series: leave out --active, or --build stock"
        )
    if random and same_server(arguments.url, arguments.reference):
        arguments.parser.error(
            f"--reference URL is the server itself, {arguments.url}, which would agree with "
            "anything: name another server"
        )
    reference = None
    if arguments.reference:
        seconds, key = arguments.timeout, arguments.api_key
        reference = Server(arguments.reference, seconds, key, "--reference URL")
    facts = run(layout, arguments, arguments.url, arguments.build, reference)
    lines = facts.pop("lines")
    if arguments.json:
        print(json.dumps(facts, indent=1))
    else:
        passed = f"passed, {len(facts['checks'])} checks"
        print("\n".join(columns([*lines, ("smoke", passed)])))
    return Exit.DONE


def _answers(
    server: Server,
    arguments: argparse.Namespace,
    reference: Server | None,
    told: Callable[[Server], str],
) -> list[Check]:
    """The checks of what the model says, by the kind of its weights.

    told(reference) is the build that random weights are compared with, in words.
    """
    if arguments.weights == "random":
        if reference is None:
            return []

        def agrees() -> str:
            with_what = f"with {reference.url}, which is {told(reference)}"
            return f"{with_what}: {agreement.compare(server, reference)}"

        return [Check("agreement", agrees)]

    def asked(ask):
        return lambda: ask(Chat(server, smoke.served_model(server, arguments.model)))

    answers = [
        Check("answer", asked(questions.answers)),
        Check("streamed", asked(questions.answers_streamed)),
    ]
    of_chat = {
        "reasoning": Check("reasoning", asked(questions.reasons)),
        "tool call": Check("tool call", asked(questions.calls_a_tool)),
    }
    if arguments.weights == "smoke-model":
        recording = references.load(arguments.expected)
        at_once = questions.AT_ONCE
        return [
            *answers,
            *(check for name, check in of_chat.items() if name in recording.chat),
            *(
                Check(
                    group,
                    lambda group=group: references.compare(server, recording, group),
                )
                for group in recording.groups
            ),
            Check(
                "at once",
                lambda: references.compare_at_once(server, recording, at_once),
            ),
        ]
    return [
        *answers,
        *of_chat.values(),
        Check("long prompt", asked(questions.finds_in_a_long_prompt)),
        Check("at once", asked(questions.answers_many_at_once)),
    ]


def _told(build: serverbuild.Build) -> str:
    """A build in words, with the number of flags by which it is not upstream's path."""
    if build.state is None or not build.ours:
        return build.line().strip()
    return f"{build.line().strip()}, {counted(build.ours, 'flag')} of it active"


def _wanted(series: Series, build: str | None) -> str:
    if build == serverbuild.STOCK:
        return build
    if not build:
        return series.patches[-1].name
    return series.find(build, also=(serverbuild.STOCK,)).name


def _require_build(
    server: Server, series: Series, wanted: str, checkpoints: Path, asked_by: str
) -> str:
    build = serverbuild.build_of(server.get("/server_info"), series, checkpoints)
    serverbuild.require(build, wanted, series, asked_by)
    return build.line()


def _require_paths(
    server: Server, series: Series, checkpoints: Path, active: list[str] | None
) -> str:
    build = serverbuild.build_of(server.get("/server_info"), series, checkpoints)
    if active is not None:
        serverbuild.require_ours_active(build, active)
    return f"{len(build.ours)} of {len(build.paths)} flags took the path of this series"


def address(text: str) -> str:
    """An option's value that is the URL of a server."""
    try:
        return web_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
