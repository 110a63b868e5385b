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
from ..records import draft, readers, schema, stale, sums
from ..series import load_series
from ..standing import require_ours


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
    _require_new(arguments.out)
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


def _require_new(out: Path) -> None:
    """A raw file is evidence: it is not written over."""
    if out.exists():
        other = invocation.again("--out", str(newfile.beside(out)))
        raise Failure(
            Exit.USAGE,
            "--out needs a new file, and this one is there",
            where=str(out),
            state="nothing was measured, and the file is as it was",
            next=f"choose another file (what was measured before is not measured again): {other}",
        )


def _require_writable(out: Path, another: str) -> None:
    """Before the first step: all of them may take hours."""
    following = f"choose another file: {another}"
    with disk.errors(str(out), "nothing was measured", following):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass


def _register_record(actions, layout: Layout, add_places) -> None:
    parser = actions.add_parser(
        "record",
        help="write records from raw files",
        description="Write what raw files say into the records of checkpoints. With --steps: the "
        "figure of each commit that `measure` or a bisect wrote. With --again: every measurement "
        "there is, read as before from its raw files as they are now. Else: one measurement of one "
        f"checkpoint. Readers: {', '.join(readers.READERS)}.",
    )
    add_places(parser, layout)
    parser.add_argument("id", nargs="?", metavar="ID", help="the checkpoint")
    parser.add_argument("--steps", type=Path, metavar="FILE")
    parser.add_argument("--again", action="store_true", help="after raw files changed")
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
    series = load_series(layout.patches)
    with scratchrepo.imported(series.pin, arguments.wheel) as repo:
        applied = commit_series(repo, series.pin.commit, series)
    today = stale.now(series.pin, applied, layout.kernels)
    titles = {stale.STOCK: f"SGLang {series.pin.version} as published"}
    titles |= {each.patch.name: each.patch.subject for each in applied}
    recorder = _Recorder(layout, today, titles)
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
    recorder.write()
    return Exit.DONE


class _Recorder:
    """Makes all records first and writes them then, so that a refusal changes none."""

    def __init__(self, layout: Layout, today: stale.Now, titles: dict[str, str]):
        self._layout, self._today, self._titles = layout, today, titles
        self._made: dict[Path, tuple[dict, bool]] = {}
        self._raw: set[str] = set()

    def steps(self, file: Path) -> None:
        raw = draft.raw_file(self._layout.root, file)
        probe = readers.field(raw.parsed(), "probe")
        steps = {step["name"]: step for step in readers.field(raw.parsed(), "steps")}
        for name, step in steps.items():
            parent = self._parent(name)
            why = self._why_not(step, steps.get(parent), parent)
            if why:
                print(f"{name}: not recorded: {why}", file=sys.stderr)
                continue
            select = {"step": name, **({"against": parent} if parent else {})}
            made = draft.measurement(
                *("steps", [raw], select),
                status="measured",
                command=f"scripts/checkpoint.sh measure --probe {probe} --out FILE",
                lineage=self._lineage(name, step["tree"]),
            )
            self._add(name, made)

    def again(self) -> None:
        """Read every measurement anew."""
        for id, record in schema.load_all(self._layout.records).items():
            for old in record["measurements"]:
                raws = [
                    draft.raw_file(
                        self._layout.root, self._layout.root / run["file"], run["arm"]
                    )
                    for run in old["runs"]
                ]
                try:
                    made = draft.measurement(
                        *(old["reader"], raws, old["select"]),
                        status=old["status"],
                        command=old["command"],
                    )
                except readers.Unreadable as error:
                    raise readers.Unreadable(f"{id}, {old['what']}: {error}") from None
                made["lineage"] = self._lineage(id, made["tree"])
                self._add(id, made, record["title"])

    def one(self, arguments: argparse.Namespace) -> None:
        if not (arguments.reader and arguments.raw and arguments.command):
            arguments.parser.error("--reader, --raw and --command are needed")
        select = dict(_pair(text, arguments) for text in arguments.select)
        raws = []
        for text in arguments.raw:
            arm, _, name = text.rpartition("=")
            raws.append(draft.raw_file(self._layout.root, Path(name), arm or "all"))
        made = draft.measurement(
            *(arguments.reader, raws, select),
            status=arguments.status,
            command=arguments.command,
        )
        made["lineage"] = self._lineage(arguments.id, made["tree"])
        self._add(arguments.id, made, arguments.title)

    def write(self) -> None:
        """Write what changed, then the raw files' list."""
        for path, (record, changed) in self._made.items():
            if changed:
                schema.write(path, record)
            print(f"{path}: {'written' if changed else 'unchanged'}")
        sums.put(self._layout.records / "raw", self._raw_names())

    def _raw_names(self) -> list[str]:
        """The raw files that were recorded, from the directory of raw files."""
        raw = (self._layout.records / "raw").relative_to(self._layout.root)
        return sorted({str(Path(file).relative_to(raw)) for file in self._raw})

    def _add(self, id: str, made: dict, title: str | None = None) -> None:
        title = title or self._titles.get(id)
        if title is None:
            raise Failure(
                Exit.USAGE,
                f"no checkpoint {id!r} in the series",
                state="no record was changed",
                next=f"choose one of: {', '.join(self._titles)}; or give a --title",
            )
        self._raw |= {run["file"] for run in made["runs"]}
        path = self._layout.records / f"{id}.json"
        there = self._made[path][0] if path in self._made else None
        record = draft.merged(path, there, id, title, self._parent(id), made)
        self._made[path] = record

    def _parent(self, id: str) -> str | None:
        names = list(self._titles)
        return names[names.index(id) - 1] if id in names[1:] else None

    def _why_not(
        self, step: dict, below: dict | None, parent: str | None
    ) -> str | None:
        """Why a step makes no record: a figure over another commit than its parent is no gain."""
        if step["name"] not in self._titles:
            return "it is no checkpoint of the series"
        if step["skip"]:
            return step["skip"]
        if parent and (below is None or below["skip"]):
            return f"{parent}, the one below it, was not measured"
        return None

    def _lineage(self, id: str, tree: str | None) -> dict[str, str] | None:
        """The trees up to a checkpoint, where what was measured is what the series makes of it."""
        if tree is None or self._today.trees.get(id) != tree:
            return None
        names = list(self._today.trees)
        return {name: self._today.trees[name] for name in names[: names.index(id) + 1]}


def _pair(text: str, arguments: argparse.Namespace) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        arguments.parser.error(f"--select {text}: KEY=VALUE is expected")
    return key, value
