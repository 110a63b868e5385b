"""What `checkpoint record` does with its raw files: measurements made, looked at, and written."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import disk, invocation
from ..errors import Exit, Failure
from ..layout import Layout
from ..records import draft, moved, readers, remeasured, schema, sources, stale, sums


class Recorder:
    """Makes all records first and writes them then, so that a refusal changes none."""

    def __init__(self, layout: Layout, today: stale.Now, titles: dict[str, str]):
        self._layout, self._today, self._titles = layout, today, titles
        self._made: dict[Path, tuple[dict, bool]] = {}
        self._raw: dict[str, str] = {}
        self._moved: dict[Path, list[str]] = {}

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
                made = self._read_again(id, old)
                made["lineage"] = self._lineage(id, made["tree"])
                self._add(id, made, record["title"])

    def _read_again(self, id: str, old: dict) -> dict:
        files = [self._layout.root / run["file"] for run in old["runs"]]
        words = " ".join(map(invocation.word, files))
        put_back = f"put it back: git checkout -- {words}"
        where = "\n".join([*map(str, files), f"{id}, {old['what']}"])
        try:
            return draft.measurement(
                old["reader"],
                [
                    draft.raw_file(self._layout.root, file, run["arm"])
                    for file, run in zip(files, old["runs"])
                ],
                old["select"],
                status=old["status"],
                command=old["command"],
            )
        except readers.Unreadable as error:
            raise Failure(
                Exit.USAGE,
                f"the raw file does not have what was recorded of it: {error}",
                where=where,
                state="no record was changed",
                next=f"{put_back}; or, measured in another way, record it by itself: "
                f"{_one_by_one(id, old, files)}",
            ) from None
        except Failure as failure:
            failure.where, failure.next = where, put_back
            raise

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
        self._require_of(arguments.id, made)
        made["lineage"] = self._lineage(arguments.id, made["tree"])
        self._add(arguments.id, made, arguments.title)

    def write(self, named: Sequence[Path] = (), again: bool = False) -> None:
        """Write what changed, then the raw files' list.

        Arguments: named are raw files that were measured anew, and folders of them; again: every
        measurement was read. Raises Failure where a raw file is another one and is not named.
        """
        records = self._layout.records
        known = schema.load_all(records).values()
        kept = remeasured.Kept(self._layout.root, known, named)
        figures = [
            f"{path.stem}, {line}"
            for path, lines in self._moved.items()
            for line in lines
        ]
        kept.require(self._raw, figures, again)
        with disk.errors(str(records), _PARTLY, _WRITABLE):
            for path, (record, changed) in self._made.items():
                if changed:
                    schema.write(path, record)
            files = {*self._raw, *kept.named}
            sums.put(records / "raw", [f.removeprefix(sources.RAW) for f in files])
        for path, (_, changed) in self._made.items():
            print(f"{path}: {'written' if changed else 'unchanged'}")
            for line in self._moved.get(path, ()):
                print(f"  {line}")
        for file in kept.taken_over(self._raw):
            print(f"taken over as measured anew: {kept.told(file)}", file=sys.stderr)

    def _require_of(self, id: str, made: dict) -> None:
        """Raise Failure where what is selected was measured at another checkpoint of the series."""
        today = self._today
        other = made["select"].get("step") if made["reader"] == "steps" else None
        for known, value in (
            (today.commits, made["commit"]),
            (today.trees, made["tree"]),
        ):
            other = other or next(
                (name for name in known if known[name] == value), None
            )
        if other not in (None, id):
            raise Failure(
                Exit.USAGE,
                f"what is selected is of another commit: {other}",
                where="\n".join(run["file"] for run in made["runs"]),
                state="no record was changed",
                next=f"select what was measured at {id}, or record it there: the same command with "
                f"{other} for {id}",
            )

    def _add(self, id: str, made: dict, title: str | None = None) -> None:
        title = title or self._titles.get(id)
        if title is None:
            raise Failure(
                Exit.USAGE,
                f"no checkpoint {id!r} in the series",
                state="no record was changed",
                next=f"choose one of: {', '.join(self._titles)}; or give a --title",
            )
        if not schema.ID.fullmatch(id):
            raise Failure(
                Exit.USAGE,
                f"{id!r} can't be the id of a record",
                state="no record was changed",
                next="name it by four digits and a word, such as 0007-word",
            )
        self._raw |= {run["file"]: run["sha256"] for run in made["runs"]}
        path = self._layout.records / f"{id}.json"
        if old := draft.replaced(path, made):
            self._moved.setdefault(path, []).extend(
                f"{made['what']}: {line}" for line in moved.lines(old, made)
            )
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


_PARTLY = (
    "each record is either as it was or as it is recorded now, none is half-written"
)
_WRITABLE = "make it writable, then run the same command again"


def _one_by_one(id: str, old: dict, files: list[Path]) -> str:
    """The command that records one measurement of a record again, but for how it is seen again."""
    words = [id, "--reader", old["reader"]]
    for run, file in zip(old["runs"], files):
        words += ["--raw", f"{run['arm']}={file}"]
    for key, value in old["select"].items():
        words += ["--select", f"{key}={value}"]
    script = invocation.script("checkpoint.sh")
    return f"{script} record {shlex.join(words)} --command TEXT"


def _pair(text: str, arguments: argparse.Namespace) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        arguments.parser.error(f"--select {text}: KEY=VALUE is expected")
    return key, value
