"""How the figures of a measurement are read from its raw files, so that they can be read again.

A reader gets the parsed raw files by arm, and what to select in them, and returns the fields that follow
from them (schema.DERIVED); those that the files do not tell are null. A figure is an arm's median, least
and most over n runs; `gain` is above 1 where the checkpoint is better than what it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from . import figures, server_steps
from .figures import Unreadable
from .schema import DERIVED

Raws = Mapping[str, Any]
Select = Mapping[str, str]


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
    step = figures.one(raw["steps"], "name", select["step"])
    against = select.get("against")
    parent = figures.one(raw["steps"], "name", against) if against else None
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
        "result": figures.result(
            raw["unit"],
            raw["better"],
            figures.arm(step["values"]),
            figures.arm(parent["values"]) if parent and parent["values"] else None,
        ),
        "correctness": {
            "ok": not wrong,
            "how": (
                "its server passed the smoke test first"
                if raw["probe"].startswith("serving:")
                else "compared with the release's own function in the same run"
            ),
            "why": "; ".join(wrong) or None,
        },
    }


def _kernel_bench(raws: Raws, select: Select) -> dict[str, Any]:
    """Two arms of one case of `scripts/bench.sh kernel --out`."""
    (raw,) = raws.values()
    group = select.get("group")
    cases = [case for case in raw["cases"] if group in (None, case.get("group"))]
    case = figures.one(cases, "case", select["case"])
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
        "result": figures.result(
            "us",
            "lower",
            figures.timed(timings[select["arm"]]),
            figures.timed(timings[select["against"]]),
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
        figures.one(
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
        "date": raw.get("date"),
        "sources": blobs,
        "machine": {"count": len(layers)}
        | {name: raw[name] for name in ("gpu", "torch", "cuda", "nccl")},
        "workload": {"id": f"layer c{ratio}, {first['rows']} rows", "sha256": None},
        "result": figures.result(
            *("us", "lower"),
            figures.arm([layer["layer_us"][1] for layer in layers]),
            figures.arm([layer["layer_us"][0] for layer in layers]),
        ),
        "correctness": {
            "ok": all(
                layer["finite"] and all(layer["graph_equals_eager"]) for layer in layers
            )
            and error <= 1 / 128,
            "how": "local heads against padded ones, a unit or two of bf16 apart at most",
            "why": None,
            "error": figures.rounded(error),
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
    arm = figures.one(raw["arms"], "name", select["arm"])
    settings = arm.get("settings") or {}
    passed = ", ".join(check["check"] for check in arm.get("smoke", ()))
    return {
        "what": f"a real server, {work['id']}, C={concurrency}: {select['arm']} against"
        f" {select['against']}",
        "date": raw.get("date"),
        "commit": arm["build"]["commit"],
        "flags": arm["build"]["paths"],
        "machine": raw.get("machine"),
        "model": {"id": settings.get("served_model_name"), "weights": arm["weights"]},
        "server_args": settings or None,
        "workload": {
            "id": f"serving:{work['id']}@{concurrency}",
            "sha256": work["digest"],
        },
        "result": figures.result(
            "tok/s",
            "higher",
            figures.arm(_throughputs(raw, select["arm"], concurrency)),
            figures.arm(_throughputs(raw, select["against"], concurrency)),
        ),
        "correctness": {
            "ok": True,
            "how": "smoke test of each server before it was measured"
            + (f": {passed}" if passed else ""),
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
    row = figures.one(raw["checkpoints"], "id", select["checkpoint"])
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
    "server-steps": server_steps.read,
    "campaign": _campaign,
}
