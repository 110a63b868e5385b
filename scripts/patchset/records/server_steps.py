"""How a raw file of `scripts/bench.sh steps` is read: one arm, or one over another.

The form of the file is described in stepbench.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import agreement, stepsummary
from . import figures

STOCK = "0000"
# The numbers of rows that the page of checkpoints has a column for.
ROWS = (1, 16, 64)


def read(raws: Mapping[str, Any], select: Mapping[str, str]) -> dict[str, Any]:
    """The derived fields of one arm, against another where `against` is selected."""
    (raw,) = raws.values()
    arm = _whole(raw, select["arm"])
    below = select.get("against")
    against = _whole(raw, below) if below else None
    by_rows = {f"C={rows}": _speeds(raw, arm, against, rows) for rows in ROWS}
    where = f"{arm['model']['layers']} layers, context {context(_context(arm))}"
    over = f" against {checkpoint(against)}{_unlike(arm, against)}" if against else ""
    compared = f"{where}: {checkpoint(arm)}{over}"
    settings, model = arm["settings"], arm["model"]
    tokens = raw["load"]["input_tokens"]
    return {
        "what": f"decode step of a real server, {ROWS[-1]} rows, {compared}",
        "date": raw["date"],
        "commit": arm["build"]["commit"],
        "flags": arm["build"]["paths"],
        "machine": raw["machine"],
        "model": {"id": settings.get("served_model_name"), **model},
        "server_args": settings,
        "workload": {
            "id": f"server-steps: {tokens} tokens, {where}, experts of"
            f" {model['expert_width']}",
            "sha256": None,
        },
        "result": {
            **by_rows[f"C={ROWS[-1]}"],
            "rows": by_rows,
            "gpu": {f"C={rows}": _gpu(raw, arm, against, rows) for rows in ROWS},
            "context": _context(arm),
            "layers": model["layers"],
            "input_tokens": tokens,
            "compared": compared,
            "is_step": _is_step(arm, against),
        },
        "correctness": _correctness(raw, arm, against),
        "notes": "; ".join(raw["notes"]),
    }


def context(tokens: int) -> str:
    """131072 as 128K, 1048576 as 1M."""
    thousands = tokens // 1024
    return f"{thousands // 1024}M" if thousands >= 1024 else f"{thousands}K"


def checkpoint(arm: Mapping) -> str:
    """The number of the patch that an arm stands at; 0000 is the release."""
    name = arm["build"]["checkpoint"]
    return STOCK if name == "stock" else name[:4]


def _whole(raw: Mapping, name: str) -> Mapping:
    for failed in raw["failed"]:
        if failed["arm"] == name:
            raise figures.Unreadable(
                f"{name} failed while it was measured: {failed['what']}"
            )
    return figures.one(raw["arms"], "name", name)


def _context(arm: Mapping) -> int:
    return arm["settings"]["context_length"]


def _is_step(arm: Mapping, against: Mapping | None) -> bool:
    """Whether the patch alone tells an arm from the other; the release alone is the first step."""
    if against is None:
        return checkpoint(arm) == STOCK
    return not _unlike(arm, against) and checkpoint(arm) != checkpoint(against)


def _speeds(raw: Mapping, arm: Mapping, against: Mapping | None, rows: int) -> dict:
    counted = [
        figures.arm([rows / step * 1e3 for step in _steps(raw, each, rows)])
        for each in _both(arm, against)
    ]
    return figures.result("tok/s", "higher", counted[0], (*counted, None)[1])


def _steps(raw: Mapping, arm: Mapping, rows: int) -> list[float]:
    found = stepsummary.steps_ms(raw, arm["name"], rows)
    if not found:
        raise figures.Unreadable(f"{arm['name']} has no counted run of {rows} rows")
    return found


def _gpu(raw: Mapping, arm: Mapping, against: Mapping | None, rows: int) -> dict | None:
    """The GPU's own time of a step; None where an arm was not profiled."""
    busy = [
        stepsummary.busy_us(raw, each["name"], rows) for each in _both(arm, against)
    ]
    if not all(busy):
        return None
    candidate, parent = (*map(figures.arm, busy), None)[:2]
    return figures.result("us", "lower", candidate, parent)


def _both(arm: Mapping, against: Mapping | None) -> list[Mapping]:
    return [arm, *([against] if against else [])]


def _unlike(arm: Mapping, against: Mapping) -> str:
    """What else than the checkpoint tells two arms apart."""
    told = []
    if _context(arm) != _context(against):
        told.append(f" at {context(_context(against))}")
    if arm["model"] != against["model"]:
        told.append(f" with {against['model']['layers']} layers")
    if checkpoint(arm) == checkpoint(against) and not told:
        told.append(f" ({arm['name']} against {against['name']})")
    return "".join(told)


def _correctness(raw: Mapping, arm: Mapping, against: Mapping | None) -> dict | None:
    if against is None:
        return None
    found = stepsummary.compared(raw, arm["name"], against["name"])
    if not found:
        raise figures.Unreadable(
            f"{arm['name']} and {against['name']} were not asked for tokens"
        )
    wrong = agreement.wrong(found)
    how = "greedy answers to the same prompts, for each number of rows"
    return {
        "ok": not wrong,
        "how": how if wrong else f"{how}: {agreement.line(found)}",
        "why": "; ".join(wrong) or None,
    }
