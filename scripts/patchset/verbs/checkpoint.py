"""`checkpoint`: the page of checkpoints, and the records behind it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from .. import checkpoints, invocation, scratchrepo
from ..commits import Applied, commit_series
from ..errors import EXIT_CODES, Exit, Failure
from ..layout import Layout
from ..listing import columns
from ..records import compare, history, ladder, rows, schema, shown, sources, stale
from ..records import remeasured, sums, verify
from ..series import Series, load_series
from . import checkpoint_record


def register(subparsers, layout: Layout) -> None:
    """Add the verb and its actions."""
    parser = subparsers.add_parser(
        "checkpoint",
        prog="scripts/checkpoint.sh",
        epilog=EXIT_CODES,
        help="the table of checkpoints and their evidence",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    render = _action(
        actions,
        layout,
        "render",
        "write CHECKPOINTS.md, its chart, and new raw files into SHA256SUMS",
        _render,
    )
    render.add_argument("--dry-run", action="store_true", help="compare only")
    render.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="ID",
        help="take the rows of a record that is gone out of the page; repeatable",
    )
    check = _action(
        actions,
        layout,
        "verify",
        "recompute every figure of the records from their raw files",
        _verify,
    )
    check.add_argument("--json", action="store_true", help="the result as JSON")
    pair = _action(actions, layout, "compare", "two records side by side", _compare)
    for which in ("first", "second"):
        pair.add_argument(which, metavar="ID", help="a record's number or name")
    checkpoint_record.register(actions, layout, add_places)


def add_places(parser: argparse.ArgumentParser, layout: Layout) -> None:
    """The options by which an action finds the series."""
    parser.add_argument(
        "--root", type=Path, default=layout.root, metavar="DIR", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the pinned wheel, if you have it"
    )


def _action(actions, layout: Layout, name: str, summary: str, run):
    parser = actions.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXIT_CODES,
    )
    add_places(parser, layout)
    parser.set_defaults(
        parser=parser,
        run=lambda arguments: run(replace(layout, root=arguments.root), arguments),
    )
    return parser


def _applied(layout: Layout, wheel: Path | None) -> tuple[Series, list[Applied]]:
    series = load_series(layout.patches)
    with scratchrepo.imported(series.pin, wheel) as repo:
        return series, commit_series(repo, series.pin.commit, series)


def _render(layout: Layout, arguments: argparse.Namespace) -> Exit:
    series, applied = _applied(layout, arguments.wheel)
    shown.require(layout.checkpoints, layout.records, _dropped(layout, arguments))
    known = schema.load_all(layout.records)
    raw, recorded = layout.records / "raw", sources.names(known.values())
    sums.require(raw, recorded)
    page = checkpoints.render(series.pin, applied, layout.records, layout.kernels)
    texts = {layout.checkpoints: page}
    texts |= _charts(layout)
    changed = False
    for path, text in texts.items():
        current = checkpoints.is_current(path, text)
        changed |= not current
        if not arguments.dry_run and not current:
            checkpoints.write(path, text)
        print(f"{path}: {'up to date' if current else 'changed'}")
    new = sums.unlisted(raw, recorded)
    if new and not arguments.dry_run:
        sums.put(raw, new)
    for name in new:
        print(f"{raw / name}: new in {sums.NAME}")
    _warn(layout, known.values())
    return Exit.NO if arguments.dry_run and (changed or new) else Exit.DONE


def _dropped(layout: Layout, arguments: argparse.Namespace) -> list[str]:
    gone = shown.gone(layout.checkpoints, layout.records)
    found = []
    for which in arguments.drop:
        id = schema.named(which, gone)
        if id is None:
            there = ", ".join(gone) or "none is gone"
            arguments.parser.error(f"--drop {which}: no record that is gone: {there}")
        found.append(id)
    return found


def _warn(layout: Layout, known: Iterable[dict]) -> None:
    """Of raw files that are not what the records were read from: figures of these are shown."""
    verify_it = f"see {invocation.script('checkpoint.sh')} verify"
    for line in sources.warnings(layout.root, known):
        print(f"warning: {line}; {verify_it}", file=sys.stderr)


def _verify(layout: Layout, arguments: argparse.Namespace) -> Exit:
    series, applied = _applied(layout, arguments.wheel)
    today = stale.now(series.pin, applied, layout.kernels)
    found = verify.run(layout.root, layout.records, today)
    problems = [*found.problems, *_rendered(layout, series, applied, found)]
    if arguments.json:
        told = {
            "ok": not problems,
            "problems": problems,
            "stale": list(found.stale),
            "notes": list(found.notes),
            "measurements": found.figures,
        }
        print(json.dumps(told, indent=1))
    else:
        lines = [("wrong", text) for text in problems]
        lines += [("stale", text) for text in found.stale]
        lines += [("note", text) for text in found.notes]
        result = (
            f"{found.figures} measurements recomputed, {len(problems)} wrong, "
            f"{len(found.stale)} stale"
        )
        print("\n".join(columns([*lines, ("result", result)])))
        if problems:
            print(f"next:  {_way_back(layout, found)}", file=sys.stderr)
    return Exit.NO if problems else Exit.DONE


def _rendered(layout: Layout, series, applied, found: verify.Found) -> list[str]:
    """What of the rendered files is not what the records give; nothing where those are unsound."""
    try:
        page = checkpoints.render(series.pin, applied, layout.records, layout.kernels)
        charts = _charts(layout)
    except Failure:
        assert found.problems
        return []
    problems = []
    if not checkpoints.is_current(layout.checkpoints, page):
        problems.append(f"{layout.checkpoints.name} is not what the records render")
    problems += [
        f"{file.relative_to(layout.root).as_posix()} is not what the records render"
        for file, drawn in charts.items()
        if not checkpoints.is_current(file, drawn)
    ]
    return problems


def _charts(layout: Layout) -> dict[Path, str]:
    """The charts of the records by their files."""
    known = schema.load_all(layout.records)
    drawn = {each.CHART: each.drawn(known) for each in (history, ladder)}
    return {layout.root / file: text for file, text in drawn.items() if text}


def _way_back(layout: Layout, found: verify.Found) -> str:
    script = invocation.script("checkpoint.sh")
    if found.gone:
        files = " ".join(invocation.word(file) for file in found.gone)
        return f"put back what is gone: git checkout -- {files}; then {script} verify"
    render = f"{script} render"
    if not found.problems:
        rendered = (layout.checkpoints, *_charts(layout))
        return f"see what was changed: {_git_diff(*rendered)}; then {render}"
    return (
        f"see what was changed: {_git_diff(layout.records, layout.checkpoints)}; put it back, or, what "
        f"was measured anew: {script} record --again {remeasured.OPTION} FILE (for a raw file of no "
        f"record that is gone: take its line out of {sums.NAME}); then {render}"
    )


def _git_diff(*paths: Path) -> str:
    return f"git diff -- {' '.join(invocation.word(path) for path in paths)}"


def _compare(layout: Layout, arguments: argparse.Namespace) -> Exit:
    records = [_record(layout, which) for which in (arguments.first, arguments.second)]
    first, second = (record["id"] for record in records)
    pairs = compare.compared(*records)
    if not pairs:
        raise Failure(
            Exit.NO,
            f"{first} and {second} have no measurement of the same thing on"
            " the same machine",
            where="\n".join(
                f"{record['id']}: {each['what']}"
                for record in records
                for each in record["measurements"]
            ),
            next="measure both in one run, then record them",
        )
    head = ("what", first, second, "gain of the second")
    table = [
        (
            pair.what,
            rows.figure(pair.first, pair.unit, digits=4),
            rows.figure(pair.second, pair.unit, digits=4),
            rows.times(pair.ratio),
        )
        for pair in pairs
    ]
    print("\n".join(columns([head, *table])))
    _warn(layout, records)
    return Exit.DONE


def _record(layout: Layout, which: str) -> dict:
    """The record of this number or name, as the bisect takes those of patches."""
    known = sorted(file.stem for file in layout.records.glob("*.json"))
    if id := schema.named(which, known):
        return schema.load(layout.records / f"{id}.json")
    raise Failure(
        Exit.USAGE,
        f"no record {which!r}",
        where=str(layout.records),
        next=f"choose one of: {', '.join(known) or 'none is there yet'}",
    )
