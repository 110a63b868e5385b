"""`checkpoint measure` and `checkpoint record`: figures of the series, and what is kept of them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from .. import atomic, disk, invocation, newfile, scratchrepo
from ..bisect import history, interpreter, probes, session
from ..bisect.plan import GAIN, TREE
from ..commits import commit_series
from ..errors import Exit, Failure
from ..layout import Layout
from ..records import readers, remeasured, schema, shown, stale, sums
from ..series import load_series
from ..standing import require_ours
from .recorder import Recorder


def register(actions, layout: Layout, add_places) -> None:
    """Add both actions; add_places gives a parser the options by which the series is found."""
    _register_measure(actions, layout)
    _register_record(actions, layout, add_places)


def _register_measure(actions, layout: Layout) -> None:
    parser = actions.add_parser(
        "measure",
        help="measure every commit of a patched tree into a raw file",
        description="Measure the release and every commit over it in a patched tree, with one of "
        "the bisect's probes, into a raw file for `record --steps`. Stopped, the same command goes on.",
    )
    parser.add_argument("--probe", required=True, metavar="NAME", help=_PROBES)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a new file"
    )
    parser.add_argument(
        "--tree",
        dest="patched",
        type=Path,
        default=layout.target,
        metavar="DIR",
        help=f"the patched tree (default: build/sglang-{layout.release})",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PY",
        help="the Python that measures (torch and triton)",
    )
    parser.set_defaults(
        parser=parser, run=lambda arguments: _measure(layout, arguments)
    )


_PROBES = f"what to measure: {', '.join(probes.names())}"


def _measure(layout: Layout, arguments: argparse.Namespace) -> Exit:
    probe = probes.find(arguments.probe)
    another = invocation.again("--out", "FILE")
    other = invocation.again("--out", str(newfile.beside(arguments.out)))
    newfile.require(
        arguments.out,
        f"choose another file (what was measured before is not measured again): {other}",
    )
    _require_writable(arguments.out, another)
    require_ours(
        arguments.patched, "name a tree that scripts/apply.sh made, with --tree DIR"
    )
    series = history.series_of(arguments.patched)
    question = session.Question(
        over=TREE,
        find=GAIN,
        probe=probe,
        repository=arguments.patched.resolve(),
        old=series[0].id,
        new=series[-1].id,
        python=interpreter.absolute(arguments.python),
    )
    elsewhere = f"make it writable, then go on: {invocation.again()}"
    raw, kept = session.measure(question, layout, _kept(layout), elsewhere)
    state = f"every figure is kept in {kept}"
    goes_on = f"nothing is measured again with another place: {another}"
    with disk.errors(str(arguments.out), state, goes_on):
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(arguments.out, (json.dumps(raw, indent=1) + "\n").encode())
    for step in raw["steps"]:
        value = step["skip"] or probe.shown(step["values"][0])
        print(f"{step['commit'][:12]}  {step['name']}  {value}")
    return Exit.DONE


def _kept(layout: Layout) -> Path:
    """Where the figures are, for the same command to go on with."""
    return layout.root / "build" / "measure"


def _require_writable(out: Path, another: str) -> None:
    """Before the first step: all of them may take hours."""
    following = f"choose another file: {another}"
    with disk.errors(str(out), "nothing was measured", following):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass


_ANEW = f"what {remeasured.OPTION} names"


def _register_record(actions, layout: Layout, add_places) -> None:
    parser = actions.add_parser(
        "record",
        help="write records from raw files",
        description="Write what raw files say into the records of checkpoints. With --steps: the "
        "figure of each commit that `measure` or a bisect wrote. With --again: every measurement "
        "there is, read as before from its raw files as they are now. Else: one measurement of one "
        f"checkpoint. A raw file that is not the one that was recorded is refused, but for {_ANEW}. "
        f"Figures that moved are told. Readers: {', '.join(readers.READERS)}.",
    )
    add_places(parser, layout)
    parser.add_argument("id", nargs="?", metavar="ID", help="the checkpoint")
    parser.add_argument("--steps", type=Path, metavar="FILE")
    parser.add_argument("--again", action="store_true", help="read all of them anew")
    parser.add_argument(
        remeasured.OPTION,
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="PATH",
        help="raw files, or folders of them, that were measured anew since they were recorded: they are "
        f"taken over, and put in {sums.NAME} as they are now, also those of no record",
    )
    parser.add_argument("--reader", choices=readers.READERS)
    parser.add_argument(
        "--raw",
        action="append",
        default=[],
        metavar="[ARM=]FILE",
        help="a raw file; repeatable, with the arm that each holds",
    )
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what to read of it, e.g. case=NAME arm=ours against=stock",
    )
    parser.add_argument("--command", metavar="TEXT", help="how to see it again")
    parser.add_argument("--status", choices=schema.STATUSES, default="measured")
    parser.add_argument("--title", help="for a record of no patch")
    parser.set_defaults(
        parser=parser,
        run=lambda arguments: _record(replace(layout, root=arguments.root), arguments),
    )


def _record(layout: Layout, arguments: argparse.Namespace) -> Exit:
    if [bool(arguments.steps), bool(arguments.id), arguments.again].count(True) != 1:
        arguments.parser.error("name a checkpoint, or a file with --steps, or --again")
    shown.require(layout.checkpoints, layout.records)
    series = load_series(layout.patches)
    with scratchrepo.imported(series.pin, arguments.wheel) as repo:
        applied = commit_series(repo, series.pin.commit, series)
    today = stale.now(series.pin, applied, layout.kernels)
    titles = {stale.STOCK: f"SGLang {series.pin.version} as published"}
    titles |= {each.patch.name: each.patch.subject for each in applied}
    recorder = Recorder(layout, today, titles)
    if arguments.id:
        others = sorted(path.stem for path in layout.records.glob("*.json"))
        arguments.id = schema.named(arguments.id, [*titles, *others]) or arguments.id
    try:
        if arguments.again:
            recorder.again()
        elif arguments.steps:
            recorder.steps(arguments.steps)
        else:
            recorder.one(arguments)
    except readers.Unreadable as error:
        raise Failure(
            Exit.USAGE,
            f"the raw file does not have what is asked for: {error}",
            state="no record was changed",
            next="name what it has with --select KEY=VALUE, and how it is read with --reader",
        ) from None
    recorder.write(arguments.remeasured, arguments.again)
    print(f"next:  {invocation.script('checkpoint.sh')} render", file=sys.stderr)
    return Exit.DONE
