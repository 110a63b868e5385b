"""The ladder: tokens per second of real servers, each patch on top of the last, as the records have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import chart, rows, server_steps
from .stale import Now, since

CHART = "ci/checkpoints/ladder.svg"
CONTEXT = 131_072
_READER = "server-steps"
_LOADS = tuple(f"C={count}" for count in server_steps.ROWS)

_HEADER = """## A ladder of real servers

Decode tok/s of servers that took turns on one {gpu}: layers of Flash with narrow experts, random weights, {tokens} tokens of text. Not figures of an
sm_120 card: read the gains over the step below, in brackets. Each raw file names what stood in for what. Where a step waits for the host, as
few layers do from 0060 on, its time says little of a patch: `GPU` is the GPU's own time of a step, in us, from the server's profiler. Tokens
are compared as `scripts/bench.sh steps` does it: random weights have no right answer.

The commands above are for sm_12x cards, which take the paths of a checkpoint by themselves; they need a model first, once:

```sh
{slices}
```

{forced}"""
_FORCED = """The card of these rows takes none of them by itself. There each flag that a checkpoint has was set before its server was started
(but 0095's two, with every other one `off`), and SGLang was made to take the card for one of sm_120 (`notes` of a record):

```sh
export {flags}
```

"""
_IMAGE = f"![tok/s over the checkpoints]({CHART})\n\n"


def of(known: Mapping[str, Mapping]) -> list[tuple[str, Mapping]]:
    """The measurements of servers' steps with the ids of their records, in order, few layers first."""
    found = [
        (id, each)
        for id, record in known.items()
        for each in record["measurements"]
        if each["reader"] == _READER
    ]
    return sorted(found, key=lambda pair: _place(pair[1]["result"]))


def section(known: Mapping[str, Mapping], today: Now) -> str:
    """The part of CHECKPOINTS.md; empty where there are no such records."""
    measured = of(known)
    if not measured:
        return ""
    head = _HEADER.format(
        gpu=_all([(each["machine"] or {}).get("gpu", "GPU") for _, each in measured]),
        slices="\n".join(_slices(each for _, each in measured)),
        tokens=_all([each["result"]["input_tokens"] for _, each in measured]),
        forced=_forced(each for _, each in measured),
    )
    if drawn(known):
        head += _IMAGE
    table = [("record", "what", *_LOADS, *(f"{load}, GPU" for load in _LOADS), "n")]
    for id, each in measured:
        by_rows = each["result"]["rows"]
        what = each["result"]["compared"]
        if why := since(id, each, today):
            what += f"; **{why}**"
        cells = [_cell(by_rows[load]) for load in _LOADS]
        cells += [_cell(each["result"]["gpu"][load]) for load in _LOADS]
        least = min(by_rows[load]["candidate"]["n"] for load in _LOADS)
        table.append((f"[{id}](ci/checkpoints/{id}.json)", what, *cells, str(least)))
    return head + rows.table(table)


def _forced(measured: Iterable[Mapping]) -> str:
    """The flags that were set to `on`, as the servers' paths tell; nothing where none was."""
    flags = {
        flag
        for each in measured
        for flag, taken in each["flags"].items()
        if taken and f"({flag}=on," in taken["path"]
    }
    words = " ".join(f"{flag}=on" for flag in sorted(flags))
    return _FORCED.format(flags=words) if words else ""


def _slices(measured: Iterable[Mapping]) -> list[str]:
    """The commands that make the models of these measurements."""
    models = {each["result"]["layers"]: each["model"] for each in measured}
    first, *others = [
        f"python3 ci/slice_model.py flash {layers} build/slice-{layers} --expert-width {model['expert_width']}"
        for layers, model in models.items()
    ]
    return [f"{first}    # needs the package tokenizers", *others]


def drawn(known: Mapping[str, Mapping]) -> str | None:
    """The SVG of the ladder at 128K; None where there is none."""
    steps = [
        (id, each)
        for id, each in of(known)
        if each["result"]["context"] == CONTEXT and each["result"]["is_step"]
    ]
    if not steps:
        return None
    lines = {
        load: [each["result"]["rows"][load]["candidate"]["median"] for _, each in steps]
        for load in _LOADS
    }
    names = [id.replace("-", " ") for id, _ in steps]
    return chart.draw(
        "tok/s over the checkpoints, context 128K (log scale)", names, lines
    )


def _place(result: Mapping) -> tuple:
    """Few layers before many, steps before comparisons of contexts, the chart's context first."""
    near = result["context"] != CONTEXT
    return result["layers"], not result["is_step"], near, result["context"]


def _all(values: list) -> str:
    """What the measurements have, each kind once."""
    return " or ".join(map(str, dict.fromkeys(values)))


def _cell(result: Mapping | None) -> str:
    if result is None:
        return "none"
    value = f"{result['candidate']['median']:,.0f}"
    return (
        value if result["gain"] is None else f"{value} ({rows.times(result['gain'])})"
    )
