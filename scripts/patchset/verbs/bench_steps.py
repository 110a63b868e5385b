"""`bench steps`: the time of decode steps of running servers, arms taking turns."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

from .. import (
    agreement,
    atomic,
    disk,
    environment,
    newfile,
    optiontypes,
    serverbuild,
    serverfacts,
    servertree,
    stepbench,
    stepprofile,
    stepsummary,
)
from ..askserver import Server
from ..errors import EXIT_CODES, Exit, Failure, Interrupted
from ..layout import Layout
from ..listing import columns
from ..series import load_series
from ..servingbench import Arm, parse_arm, unfit

_ARM = "--arm NAME=URL"
_ROWS = {1: 65, 16: 65, 64: 33}
_POLL = 1.0


def register(actions, layout: Layout) -> None:
    """Add the action."""
    parser = actions.add_parser(
        "steps",
        prog="scripts/bench.sh steps",
        epilog=EXIT_CODES,
        help="time of a decode step of servers that take turns",
        description="Time decode steps of running servers, which may be on one GPU together: lists of "
        "prompts are streamed, the arms taking turns. The answers of an arm must be like those of the "
        f"arm that it is compared with: {agreement.SHARE:.0%} of the log-probabilities within "
        f"{agreement.NEAR:g} for each number of rows, at the places that both reach with the same "
        "text. That is the rule for random weights, which may part without an error; the smoke model "
        "(scripts/smoke.sh) is the test of right answers. FILE is written after each list; Ctrl-C "
        "keeps what it has.",
    )
    parser.add_argument(
        "--arm",
        action="append",
        type=parse_arm,
        required=True,
        metavar="NAME=URL[@BUILD]",
        help='a server; BUILD is the patch that it must stand at, or "stock" (default: the last '
        "one). Repeatable",
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME=OTHER",
        help="the arm that one is compared with, - for none (default: the arm named before it)",
    )
    parser.add_argument(
        "--tree",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="the tree that a server was started from: it is read where the server itself does not "
        f"tell which patches it runs, which is before {serverbuild.TELLS_FROM}. Repeatable",
    )
    parser.add_argument(
        "--rows",
        action="append",
        type=_rows,
        metavar="N[:TOKENS]",
        help="prompts of a list, and tokens that are decoded after each; repeatable (default: "
        f"{' '.join(f'{rows}:{tokens}' for rows, tokens in _ROWS.items())})",
    )
    parser.add_argument(
        "--input-tokens",
        type=optiontypes.count,
        default=32,
        metavar="N",
        help="tokens of a prompt (default: 32)",
    )
    parser.add_argument(
        "--reps",
        type=optiontypes.count,
        default=5,
        metavar="N",
        help="lists of each arm and number of rows that count; one before them warms up (default: 5)",
    )
    parser.add_argument(
        "--profile",
        nargs="*",
        metavar="NAME[:TURNS]",
        help="profile these arms too (without names: every one): the GPU's own time of a step, by "
        "kernel. Their servers must be on this machine",
    )
    parser.add_argument(
        "--profile-turns",
        type=optiontypes.count,
        default=3,
        metavar="N",
        help="profiles of each arm and number of rows where --profile says no other number, the arms "
        "taking turns (default: 3)",
    )
    parser.add_argument(
        "--profile-steps",
        type=_steps,
        default=14,
        metavar="N",
        help="steps that the profiler is asked for: it records one less, and a whole one ends "
        "after another, so two less are figures (default: 14; at most "
        f"{stepprofile.MOST_STEPS}, which lie within the list)",
    )
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="TEXT",
        help="what to keep with the figures, such as what stood in for what; repeatable",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--python",
        metavar="PY",
        help="the interpreter that serves, whose versions of torch and triton are kept (default: of "
        "the active virtual environment, else python3)",
    )
    parser.add_argument(
        "--wait",
        type=optiontypes.seconds,
        metavar="S",
        help="wait so many seconds for servers that are still starting (default: none must be)",
    )
    parser.add_argument(
        "--timeout",
        type=optiontypes.seconds,
        default=120.0,
        metavar="S",
        help="seconds that one list may take (default: 120)",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="of the servers, if they have one"
    )
    parser.add_argument(
        "--patches", type=Path, default=layout.patches, help=argparse.SUPPRESS
    )
    parser.set_defaults(
        parser=parser,
        needs_git=False,
        run=lambda arguments: _run(layout, arguments),
    )


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    arms: list[Arm] = arguments.arm
    names = [arm.name for arm in arms]
    if why := unfit(arms):
        arguments.parser.error(why)
    if arguments.out.exists():
        arguments.parser.error(f"--out needs a new file, and {arguments.out} is there")
    against = _against(arguments, names)
    trees = _trees(arguments, names)
    load = _load(arguments, names)
    python = environment.interpreter(arguments.python or environment.default_python())
    series = load_series(arguments.patches)
    for arm in arms:
        # A server that is waited for would be refused then.
        if arm.build not in (None, serverbuild.STOCK):
            series.find(arm.build, also=(serverbuild.STOCK,))
    servers = {
        arm.name: Server(arm.url, arguments.timeout, arguments.api_key, _ARM)
        for arm in arms
    }

    def told(name: str) -> dict:
        (arm,) = (arm for arm in arms if arm.name == name)
        try:
            return stepbench.told(
                servers[name], arm, series, layout.checkpoints, trees.get(name)
            )
        except Failure as failure:
            failure.what = f"{name}: {failure.what}"
            raise

    if arguments.wait:
        _wait(servers, arguments.wait)
    found = {name: told(name) for name in names}
    tp_size = found[names[0]]["settings"].get("tp_size")
    machine = serverfacts.machine((arm.url for arm in arms), tp_size)
    if load.profiled and machine is None:
        _say("note: no GPU of this machine is seen; a profile must lie on its disk")
    result = {
        "what": "decode steps of running servers that take turns",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine and machine | serverfacts.software(python),
        "notes": arguments.note,
        "arms": [
            {"name": name, "against": against[name], **facts}
            for name, facts in found.items()
        ],
    }
    bench = stepbench.StepBench(servers, load, result, _keeper(arguments.out), _say)
    try:
        bench.run(told)
    except KeyboardInterrupt as interrupt:
        if not arguments.out.exists():
            raise
        state = f"{arguments.out} keeps what was measured"
        raise Interrupted(interrupt, state, _elsewhere(arguments.out)) from None
    finally:
        if arguments.out.exists():
            _report(bench.result, arguments.out)
    return Exit.NO if _wrong(bench.result) else Exit.DONE


def _wait(servers: dict[str, Server], seconds: float) -> None:
    """Until every server answers, or the time is over: then asking it says why."""
    end = time.monotonic() + seconds
    for name, server in servers.items():
        if not server.healthy():
            _say(f"waiting for {name} at {server.url}")
        while not server.healthy() and time.monotonic() < end:
            time.sleep(_POLL)


def _report(result: dict, file: Path) -> None:
    """The table of what was measured, whole or not, and how far tokens agree."""
    print("\n".join(columns(stepsummary.lines(stepsummary.summary(result)))))
    for arm in result["arms"]:
        if found := _compared(result, arm):
            pair = f"{arm['name']} against {arm['against']}"
            for told in agreement.wrong(found):
                print(f"WRONG  {pair}: {told}")
            if not agreement.wrong(found):
                print(f"alike  {pair}: {agreement.line(found)}")
    print(f"raw file: {file}")


def _wrong(result: dict) -> bool:
    return any(agreement.wrong(_compared(result, arm)) for arm in result["arms"])


def _compared(result: dict, arm: dict) -> dict[str, agreement.Alike]:
    against = arm["against"]
    return stepsummary.compared(result, arm["name"], against) if against else {}


def _keeper(file: Path):
    def keep(result: dict) -> None:
        state, another = "nothing was measured", "name another place: --out FILE"
        if kept := file.exists():
            state, another = "what was measured before is in it", _elsewhere(file)
        try:
            with disk.errors(str(file), state, another):
                file.parent.mkdir(parents=True, exist_ok=True)
                atomic.write(file, (json.dumps(result) + "\n").encode())
        except Failure as failure:
            # A full disk's: the same command would meet its own file.
            if kept and failure.next != another:
                failure.next = f"free some space, then {another}"
            raise

    return keep


def _elsewhere(file: Path) -> str:
    """The next command where this file is there: it is not written over."""
    other = shlex.quote(str(newfile.beside(file)))
    return f"run the same command with another file: --out {other}"


def _against(arguments: argparse.Namespace, names: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = dict(zip(names, [None, *names]))
    for text in arguments.against:
        name, sign, other = text.partition("=")
        if not sign or name not in names or other not in (*names, "-") or name == other:
            arguments.parser.error(
                f"--against {text}: NAME=OTHER is expected, of {', '.join(names)}"
            )
        found[name] = None if other == "-" else other
    return found


def _trees(arguments: argparse.Namespace, names: list[str]) -> dict[str, Path]:
    found = {}
    for text in arguments.tree:
        name, sign, place = text.partition("=")
        if not sign or name not in names:
            arguments.parser.error(
                f"--tree {text}: NAME=DIR is expected, of {', '.join(names)}"
            )
        found[name] = servertree.find(Path(place), Path(place))
    return found


def _load(arguments: argparse.Namespace, names: list[str]) -> stepbench.Load:
    return stepbench.Load(
        rows=dict(arguments.rows or _ROWS),
        input_tokens=arguments.input_tokens,
        reps=arguments.reps,
        profiled=_profiled(arguments, names),
        steps=arguments.profile_steps,
    )


def _profiled(arguments: argparse.Namespace, names: list[str]) -> dict[str, int]:
    if arguments.profile is None:
        return {}
    found = {}
    for text in arguments.profile or names:
        name, _, turns = text.partition(":")
        if name not in names:
            arguments.parser.error(f"--profile {text}: choose of {', '.join(names)}")
        try:
            found[name] = optiontypes.count(turns) if turns else arguments.profile_turns
        except argparse.ArgumentTypeError as error:
            arguments.parser.error(f"--profile {text}: {error}")
    return found


def _rows(text: str) -> tuple[int, int]:
    rows, colon, tokens = text.partition(":")
    count = optiontypes.count(rows)
    made = optiontypes.count(tokens) if colon else _ROWS.get(count, 65)
    if made < 2:
        raise argparse.ArgumentTypeError("a step lies between two tokens")
    return count, made


def _steps(text: str) -> int:
    value = optiontypes.count(text)
    if value < 3:
        raise argparse.ArgumentTypeError("two of them are no figures")
    if value > stepprofile.MOST_STEPS:
        raise argparse.ArgumentTypeError(
            f"must be at most {stepprofile.MOST_STEPS}: no more of them lie whole within a profiled list, "
            "which is short because of the pools of small servers"
        )
    return value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
