"""`bisect`: the commit that gained or lost a figure."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from .. import gitenv, invocation, optiontypes, own_work, serversettings, wheel
from ..bisect import history, interpreter, probes, session
from ..bisect.plan import GAIN, LOSS, REPO, TREE
from ..errors import EXIT_CODES, Exit, Failure
from ..layout import Layout
from ..pin import load_pin
from ..standing import require_ours

# Options of a server whose word may be a folder without a separator in it.
_FOLDERS = ("--model-path", "--model", "--tokenizer-path")


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser(
        "bisect",
        prog="scripts/bisect.sh",
        epilog="A commit that can't be measured is skipped and named. Figures that other work on the "
        f"GPU may have slowed are measured again; if they then differ, none is named. {EXIT_CODES}",
        help="find the commit that gained or lost a figure",
        description="Find the commit that gained, or lost, a figure: a real `git bisect run` in a "
        "detached work tree; your tree, branch and files stay as they are. Both ends are measured "
        "first. Stopped with Ctrl-C, the same command goes on where it was.",
    )
    parser.add_argument(
        "--probe",
        required=True,
        metavar="NAME",
        help=f"the figure: {', '.join(probes.names())}",
    )
    parser.add_argument(
        "--find", choices=(GAIN, LOSS), default=GAIN, help="default: gain"
    )
    parser.add_argument(
        "--over",
        choices=(TREE, REPO),
        default=TREE,
        help="the commits of a patched tree (default), or of this repository",
    )
    parser.add_argument(
        "--tree",
        dest="patched",
        type=Path,
        metavar="DIR",
        help=f"the patched tree (default: build/sglang-{layout.release})",
    )
    parser.add_argument(
        *("--old", "--good"),
        metavar="COMMIT",
        help="the older end: a patch's number or name, or a commit (default: 0000-stock; "
        "with --over repo there is none, so name one)",
    )
    parser.add_argument(
        *("--new", "--bad"), metavar="COMMIT", help="the newer end (default: HEAD)"
    )
    parser.add_argument(
        "--python",
        metavar="PY",
        default=sys.executable,
        help="the Python that measures; needs torch and triton",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=layout.root / "build" / "bisect",
        metavar="DIR",
        help="where the figures are kept (default: build/bisect)",
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )
    parser.add_argument(
        "--root", type=Path, default=layout.root, metavar="DIR", help=argparse.SUPPRESS
    )
    for command in ("serve", "smoke", "bench"):
        parser.add_argument(
            f"--{command}",
            default="",
            metavar="WORDS",
            help=f"with serving:…: more words for scripts/{command}.sh",
        )
    parser.add_argument(
        "--rounds",
        type=optiontypes.count,
        metavar="N",
        help="runs for each commit (default: what the probe needs: 1 for work:…, 3 for kernel:…, 2 for "
        "serving:…)",
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(parser=parser, run=lambda arguments: _run(layout, arguments))


def _run(layout: Layout, arguments: argparse.Namespace) -> Exit:
    _require_sense(arguments)
    given = {
        name: _from_here(words)
        for name in ("serve", "smoke", "bench")
        if (words := getattr(arguments, name))
    }
    probe = probes.find(arguments.probe, given)
    if arguments.rounds:
        probe = replace(probe, rounds=arguments.rounds)
    over_tree = arguments.over == TREE
    repository = (arguments.patched or layout.target) if over_tree else arguments.root
    if over_tree:
        if arguments.wheel:
            # The commits of a tree need none, but a wrong one must not look accepted.
            wheel.obtain(load_pin(layout.patches), arguments.wheel)
        _require_tree(repository, named=arguments.patched is not None)
    else:
        _require_repository(repository)
    old = arguments.old or "0000-stock"
    question = session.Question(
        over=arguments.over,
        find=arguments.find,
        probe=probe,
        repository=repository.resolve(),
        old=history.resolve(repository, old, over_tree),
        new=history.resolve(repository, arguments.new or "HEAD", over_tree),
        python=interpreter.absolute(arguments.python),
        wheel=arguments.wheel,
    )
    result = session.run(question, layout, arguments.out.resolve())
    if arguments.json:
        print(json.dumps(result.as_json(), indent=1))
    else:
        print("\n".join(result.lines()))
    return result.exit_code


def _require_sense(arguments: argparse.Namespace) -> None:
    if arguments.over == REPO and arguments.patched:
        arguments.parser.error("--tree means nothing with --over repo")
    words = arguments.serve or arguments.smoke or arguments.bench
    if words and not arguments.probe.startswith("serving:"):
        arguments.parser.error("--serve, --smoke and --bench go with serving:… only")
    _require_no_secret(arguments)
    if arguments.over == REPO and not arguments.old:
        arguments.parser.error("--over repo needs the older end: --old COMMIT")


def _from_here(words: str) -> str:
    """Words for a command that is started elsewhere: paths that are there from here are absolute."""
    split = shlex.split(words)
    found = [_absolute(before, word) for before, word in zip(["", *split], split)]
    return words if found == split else shlex.join(found)


def _absolute(before: str, word: str) -> str:
    option, sign, value = word.partition("=") if word[:2] == "--" else ("", "", word)
    is_place = os.sep in value or (option or before) in _FOLDERS
    if not is_place or not os.path.exists(value):
        return word
    return f"{option}{sign}{os.path.abspath(value)}"


def _require_no_secret(arguments: argparse.Namespace) -> None:
    """The words are kept in plan.json, and shown when the search stops."""
    for command in ("serve", "smoke", "bench"):
        try:
            words = shlex.split(getattr(arguments, command))
        except ValueError as error:
            arguments.parser.error(f"--{command} is no list of words: {error}")
        if serversettings.has_secret(words):
            arguments.parser.error(
                f"--{command} has a key, which would be kept in plan.json; the servers of a "
                "bisect listen on this machine alone and need none"
            )


def _require_tree(tree: Path, named: bool) -> None:
    if not tree.exists():
        raise Failure(
            Exit.USAGE if named else Exit.PATCH,
            "there is no patched tree",
            where=str(tree),
            state="nothing was measured",
            next="make it: scripts/apply.sh, or name another with --tree DIR",
        )
    another = invocation.again("--tree", "DIR")
    require_ours(tree, f"name a tree that scripts/apply.sh made: {another}")
    if own_work.edits(tree):
        print("note: changes that are not committed are not measured", file=sys.stderr)


def _require_repository(root: Path) -> None:
    try:
        top = gitenv.text(root, "rev-parse", "--show-toplevel")
    except gitenv.GitCommandError:
        top = None
    if top is None or Path(top).resolve() != root.resolve():
        raise Failure(
            Exit.ENVIRONMENT,
            "this copy of the patches is not a git repository, so it has no commits to search",
            where=str(root),
            state="nothing was measured",
            next="clone it with git, and run the command there",
        )
