"""How the figures of a measurement are read from its raw files, so that they can be read again.

A reader gets the parsed raw files by arm, and what to select in them, and returns the fields that follow
from them (schema.DERIVED); those that the files do not tell are null. A figure is an arm's median, least
and most over n runs; `gain` is above 1 where the checkpoint is better than what it is compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .schema import DERIVED

Raws = Mapping[str, Any]
Select = Mapping[str, str]


class Unreadable(ValueError):
    """The raw files do not have what is selected."""


def field(raw: object, name: str) -> Any:
    """A field of a raw file. Raises Unreadable where it has no such."""
    if not isinstance(raw, Mapping) or name not in raw:
        raise Unreadable(f"it has no {name!r}")
    return raw[name]


def read(reader: str, raws: Raws, select: Select) -> dict[str, Any]:
    """The derived fields. Raises Unreadable."""
    function = READERS.get(reader)
    if function is None:
        raise Unreadable(f"no reader {reader!r}: one of {', '.join(READERS)}")
    try:
        found = function(raws, select)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(
            f"{reader} finds no {error} ({type(error).__name__}) in the raw files"
        ) from None
    return {name: found.get(name) for name in DERIVED}


def _steps(raws: Raws, select: Select) -> dict[str, Any]:
    """One figure for each commit of a tree, as `checkpoint measure` and a bisect write it."""
    (raw,) = raws.values()
    step = _one(raw["steps"], "name", select["step"])
    against = select.get("against")
    parent = _one(raw["steps"], "name", against) if against else None
    wrong = [
        f"{each['name']}: {each['wrong'] or each['skip']}"
        for each in (step, parent)
        if each and (each["wrong"] or each["skip"])
    ]
    if not step["values"]:
        raise Unreadable(f"{step['name']} has no figure: {step['skip']}")
    return {
        "what": raw["what"],
        "date": raw["date"],
        "commit": step["commit"],
        "tree": step["tree"],
        "machine": step["machine"],
        "workload": {"id": raw["probe"], "sha256": raw["harness_sha256"]},
        "result": _result(
            raw["unit"],
            raw["better"],
            _arm(step["values"]),
            _arm(parent["values"]) if parent and parent["values"] else None,
        ),
        "correctness": {
            "ok": not wrong,
            "how": "compared with the release's own function in the same run",
            "why": "; ".join(wrong) or None,
        },
    }


def _kernel_bench(raws: Raws, select: Select) -> dict[str, Any]:
    """Two arms of one case of `scripts/bench.sh kernel --out`."""
    (raw,) = raws.values()
    group = select.get("group")
    cases = [case for case in raw["cases"] if group in (None, case.get("group"))]
    case = _one(cases, "case", select["case"])
    timings = case["timings"]
    machine = dict(raw["machine"])
    hashes = machine.pop("kernels_sha256")
    names = select["sources"].split()
    return {
        "what": f"kernel, {case['case']}: {select['arm']} against {select['against']}",
        "date": machine.pop("date"),
        "sources": {f"kernels/{name}": hashes[name] for name in names},
        "machine": machine,
        "workload": {"id": case["case"], "sha256": None},
        "result": _result(
            "us",
            "lower",
            _timed(timings[select["arm"]]),
            _timed(timings[select["against"]]),
        ),
        "correctness": {
            "ok": case["correct"],
            "how": _GATES[case["kernel"]],
            "why": case.get("why"),
            "error": case.get("error", case.get("facts", {}).get("error")),
        },
    }


# What the gate of each kernel's benchmark compares, before any timing.
_GATES = {
    "indexer": "rows compared with float64 before timing",
    "attention": "rows compared with float64 before timing, shared out and not",
    "topk": "set and order of rows compared with a stable sort before timing",
    "metadata": "compared with upstream's kernel before timing, entries as far as lengths reach",
    "hc_pre": "rows compared with float64 before timing, with both kinds of weights",
    "hc_sum": "compared with upstream's sum before timing, bit for bit",
}


def _local_heads(raws: Raws, select: Select) -> dict[str, Any]:
    """An attention layer on each rank: all heads padded against the rank's own."""
    (raw,) = raws.values()
    ratio = int(select["compress_ratio"])
    layers = [
        _one(
            [each for each in rank["pair"] if each["compress_ratio"] == ratio],
            *("kernel", select["kernel"]),
        )
        for rank in raw["ranks"]
    ]
    first = layers[0]
    padded, local = first["heads_seen"]
    error = max(
        layer["attention_largest_difference"] / layer["largest_value"]
        for layer in layers
    )
    blobs = {
        f"kernels/{name.rpartition('/')[2]}": blob
        for name, blob in raw["files"].items()
        if "/sm120/" in name
    }
    return {
        "what": f"attention layer on {len(layers)} ranks, {first['rows']} rows, c{ratio}, kernel"
        f" {select['kernel']!r}: {local} heads against {padded}",
        "sources": blobs,
        "machine": {"count": len(layers)}
        | {name: raw[name] for name in ("gpu", "torch", "cuda", "nccl")},
        "workload": {"id": f"layer c{ratio}, {first['rows']} rows", "sha256": None},
        "result": _result(
            *("us", "lower"),
            _arm([layer["layer_us"][1] for layer in layers]),
            _arm([layer["layer_us"][0] for layer in layers]),
        ),
        "correctness": {
            "ok": all(
                layer["finite"] and all(layer["graph_equals_eager"]) for layer in layers
            )
            and error <= 1 / 128,
            "how": "local heads against padded ones, a unit or two of bf16 apart at most",
            "why": None,
            "error": _rounded(error),
        },
        "notes": "n counts the ranks of one run",
    }


def _server_answers(raws: Raws, select: Select) -> dict[str, Any]:
    """Whether two servers gave the same token ids and the right answers; no speed."""
    ours, theirs = raws[select["arm"]], raws[select["against"]]
    groups = ("table_one", "table_list", "needles", "needles_list")
    pairs = [
        (mine["ids"] == other["ids"])
        for group in groups
        for mine, other in zip(ours[group], theirs[group], strict=True)
    ]
    right = [
        item["text"] == wanted
        for group, wants in (("table_one", "want"), ("needles", "codes"))
        for item, wanted in zip(ours[group], ours[wants], strict=True)
    ]
    return {
        "what": f"a real server's answers: flags {select['arm']} against {select['against']}",
        "flags": {"all": select["arm"]},
        "model": {"id": "a 22 MB trained test model", "weights": "trained"},
        "result": {
            "unit": "answers",
            "better": "higher",
            "equal_ids": sum(pairs),
            "compared": len(pairs),
            "right": sum(right),
            "asked": len(right),
        },
        "correctness": {
            "ok": all(pairs) and all(right),
            "how": "token ids of both servers, and texts against the known answers",
            "why": None,
        },
    }


def _serving(raws: Raws, select: Select) -> dict[str, Any]:
    """Two arms of one concurrency of `scripts/bench.sh serving --out`, its result.json."""
    (raw,) = raws.values()
    work = raw["workload"]
    concurrency = int(select["concurrency"])
    arm = _one(raw["arms"], "name", select["arm"])
    return {
        "what": f"a real server, {work['id']}, C={concurrency}: {select['arm']} against"
        f" {select['against']}",
        "date": raw.get("date"),
        "commit": arm["build"]["commit"],
        "flags": arm["build"]["paths"],
        "machine": raw.get("machine"),
        "model": {"id": raw.get("model"), "weights": arm["weights"]},
        "server_args": raw.get("server_args"),
        "workload": {
            "id": f"serving:{work['id']}@{concurrency}",
            "sha256": work["digest"],
        },
        "result": _result(
            "tok/s",
            "higher",
            _arm(_throughputs(raw, select["arm"], concurrency)),
            _arm(_throughputs(raw, select["against"], concurrency)),
        ),
        "correctness": {
            "ok": True,
            "how": "smoke test of each server before it was measured",
            "why": None,
        },
    }


def _throughputs(raw: Mapping, arm: str, concurrency: int) -> list[float]:
    """Of the counted rounds: round 0 warms up."""
    return [
        run["figures"]["output_throughput"]
        for run in raw["runs"]
        if run["arm"] == arm and run["concurrency"] == concurrency and run["round"]
    ]


def _campaign(raws: Raws, select: Select) -> dict[str, Any]:
    """Figures that others reported, with the conditions that they stated."""
    (raw,) = raws.values()
    row = _one(raw["checkpoints"], "id", select["checkpoint"])
    return {
        "what": row["what"],
        "date": None,
        "commit": row["commit"],
        "machine": {"gpu": raw["gpu"], "count": raw["count"]},
        "model": {"id": raw["model"], "weights": "real"},
        "workload": {"id": row["conditions"], "sha256": None},
        "result": {
            "unit": row["unit"],
            "better": "higher",
            "figures": row["figures"],
            "derived": row["derived"],
            "context": row["context"],
        },
        "notes": raw["source"],
    }


READERS: dict[str, Callable[[Raws, Select], dict[str, Any]]] = {
    "serving": _serving,
    "steps": _steps,
    "kernel-bench": _kernel_bench,
    "local-heads": _local_heads,
    "server-answers": _server_answers,
    "campaign": _campaign,
}


def _one(rows: Sequence[Mapping], key: str, value: str) -> Mapping:
    found = [row for row in rows if row[key] == value]
    if len(found) != 1:
        raise Unreadable(f"{len(found)} entries with {key} {value!r} in the raw file")
    return found[0]


def _arm(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": _rounded(statistics.median(values)),
        "min": _rounded(min(values)),
        "max": _rounded(max(values)),
        "n": len(values),
    }


def _timed(timing: Mapping) -> dict[str, float]:
    return {
        "median": _rounded(timing["median"]),
        "min": _rounded(timing["low"]),
        "max": _rounded(timing["high"]),
        "n": timing["samples"],
    }


def _result(unit: str, better: str, candidate: dict, parent: dict | None) -> dict:
    gain = least = most = None
    if parent:
        ratios = [
            parent[one] / candidate[other]
            for one, other in (("median", "median"), ("min", "max"), ("max", "min"))
        ]
        if better == "higher":
            ratios = [
                candidate[one] / parent[other]
                for one, other in (("median", "median"), ("min", "max"), ("max", "min"))
            ]
        gain, least, most = map(_rounded, ratios)
    return {
        "unit": unit,
        "better": better,
        "candidate": candidate,
        "parent": parent,
        "gain": gain,
        "gain_min": least,
        "gain_max": most,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
