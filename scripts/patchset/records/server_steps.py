"""How decode steps of servers that were alive together are read: one arm of a ladder and the one below it.

The raw file has `arms` (name, checkpoint, context, layers, flags, arguments, and what each said of itself)
and `runs`: an arm, the rows `n` that it decoded at once, the repetition `rep` (0 warms up), the time of a
step, tok/s, and the first tokens of some rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import figures

ROWS = (1, 16, 64)
# Whole texts part where two tokens are level, so only the first token of a row is asked to be the same. Random
# weights are level often: a patch that rounds otherwise may fall short of this without being wrong.
_AGREE = 0.9


def read(raws: Mapping[str, Any], select: Mapping[str, str]) -> dict[str, Any]:
    """The derived fields of one arm, against another where `against` is selected."""
    (raw,) = raws.values()
    arm = figures.one(raw["arms"], "name", select["arm"])
    below = select.get("against")
    against = figures.one(raw["arms"], "name", below) if below else None
    by_rows = {f"C={rows}": _result(raw, arm, against, rows) for rows in ROWS}
    where = f"context {context(arm['context'])}"
    over = f" against {against['checkpoint']}{_unlike(arm, against)}" if against else ""
    compared = f"{where}: {arm['checkpoint']}{over}"
    return {
        "what": f"decode step of a real server, {arm['layers']} layers, {ROWS[-1]} rows, {compared}",
        "date": raw["date"],
        "commit": arm["served"]["commit"],
        "flags": arm["env"],
        "machine": raw["machine"],
        "model": {"id": arm["model"], "weights": "random"},
        "server_args": arm["server_args"],
        "workload": {
            "id": f"server-steps: {raw['load']['input_tokens']} tokens, {where},"
            f" {arm['layers']} layers",
            "sha256": None,
        },
        "result": {
            **by_rows[f"C={ROWS[-1]}"],
            "rows": by_rows,
            "context": arm["context"],
            "layers": arm["layers"],
            "input_tokens": raw["load"]["input_tokens"],
            "compared": compared,
        },
        "correctness": _correctness(raw, arm, against),
        "notes": "; ".join(raw["stand_ins"]),
    }


def context(tokens: int) -> str:
    """131072 as 128K, 1048576 as 1M."""
    thousands = tokens // 1024
    return f"{thousands // 1024}M" if thousands >= 1024 else f"{thousands}K"


def _result(raw: Mapping, arm: Mapping, against: Mapping | None, rows: int) -> dict:
    arms = [arm, *([against] if against else [])]
    counted = [
        figures.arm([run["tok_s"] for run in _runs(raw, each, rows) if run["rep"]])
        for each in arms
    ]
    return figures.result("tok/s", "higher", counted[0], (*counted, None)[1])


def _unlike(arm: Mapping, against: Mapping) -> str:
    """What else than the checkpoint tells two arms apart."""
    told = []
    if arm["context"] != against["context"]:
        told.append(f" at {context(against['context'])}")
    if arm["checkpoint"] == against["checkpoint"] and arm["env"] != against["env"]:
        changed = dict(set(arm["env"].items()) - set(against["env"].items()))
        told.append(f" without {' '.join(sorted(changed))}")
    return "".join(told)


def _correctness(raw: Mapping, arm: Mapping, against: Mapping | None) -> dict | None:
    if against is None:
        return None
    pairs = [
        (mine, other)
        for rows in ROWS
        for run in _runs(raw, arm, rows)
        for parent in _runs(raw, against, rows)
        if run["rep"] == parent["rep"]
        for mine, other in zip(run["ids"], parent["ids"], strict=True)
    ]
    first = sum(mine[0] == other[0] for mine, other in pairs)
    led = [_lead(mine, other) for mine, other in pairs]
    every = sum(min(map(len, pair)) for pair in pairs)
    ok = bool(pairs) and first >= _AGREE * len(pairs)
    return {
        "ok": ok,
        "how": f"greedy tokens of the same prompts: the first equal in {first} of {len(pairs)} rows,"
        f" {sum(led)} of {every} before a row parts",
        "why": None if ok else "the first tokens differ in too many rows",
    }


def _runs(raw: Mapping, arm: Mapping, rows: int) -> list[Mapping]:
    found = [
        run for run in raw["runs"] if (run["arm"], run["n"]) == (arm["name"], rows)
    ]
    if not any(run["rep"] for run in found):
        raise figures.Unreadable(f"{arm['name']} has no counted run of {rows} rows")
    return found


def _lead(mine: list[int], other: list[int]) -> int:
    same = [a == b for a, b in zip(mine, other)]
    return same.index(False) if False in same else len(same)
