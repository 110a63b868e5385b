"""Measurements as cells of a table: gain, on what, how sure, see it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .stale import Now, since

_UNTOLD = "none"


def of(record: Mapping | None, today: Now) -> list[tuple[str, ...]]:
    """A row of four cells for each measurement of a record that _tells() something."""
    if record is None:
        return []
    return [
        (
            gain(each["result"]),
            _on_what(each),
            _how_sure(each, since(record["id"], each, today)),
            _again(each["command"]),
        )
        for each in record["measurements"]
        if _tells(each)
    ]


def _tells(measurement: Mapping) -> bool:
    """False for counted work that is the parent's: it is counted of every patch, also of those that
    cannot change it."""
    result, correctness = measurement["result"], measurement["correctness"]
    if not _is_work(measurement) or result.get("gain") is None:
        return True
    same = result["candidate"]["median"] == result["parent"]["median"]
    return not same or not correctness["ok"]


def _is_work(measurement: Mapping) -> bool:
    workload = measurement["workload"]
    return bool(workload) and workload["id"].startswith("work:")


def _again(command: str) -> str:
    return command if command.startswith(_UNTOLD) else f"`{command}`"


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first row is its head."""
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def gain(result: Mapping) -> str:
    """The gain over the parent, and what it is of; a figure alone where there is no parent."""
    if "equal_ids" in result:
        return f"{result['equal_ids']} of {result['compared']} answers equal"
    unit = result["unit"]
    value = figure(result["candidate"]["median"], unit)
    if result["gain"] is None:
        return value
    before = figure(result["parent"]["median"], unit)
    return f"{times(result['gain'])} ({before} to {value}){_of_gpu(result)}"


def _of_gpu(result: Mapping) -> str:
    """The gain by the GPU's own time, at as many rows; nothing where it was not profiled."""
    *_, most = result.get("gpu", {"": None}).values()
    return f"; GPU time {times(most['gain'])}" if most else ""


def times(ratio: float) -> str:
    """A ratio with three digits."""
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def figure(value: float, unit: str, digits: int = 3) -> str:
    """A value of so many digits, and every one before the point, with its unit."""
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}g}"
    return f"{number}x" if unit == "x" else f"{number} {unit}"


def _on_what(measurement: Mapping) -> str:
    machine = measurement["machine"] or {}
    place = machine.get("gpu") or (machine.get("cpu") and "any machine, no GPU")
    count = machine.get("count")
    if place and count and count > 1:
        place = f"{count} x {place}"
    return f"{measurement['what']}; {place or 'machine: none'}"


def _how_sure(measurement: Mapping, why_stale: str | None) -> str:
    result = measurement["result"]
    words = [measurement["status"]]
    day = measurement["date"]
    if day:
        words[0] += f" {day[:10]}"
    words.append(_spread(measurement, result))
    correctness = measurement["correctness"]
    if correctness and not correctness["ok"]:
        words.append(f"**WRONG**: {correctness['why'] or correctness['how']}")
    if why_stale:
        words.append(f"**{why_stale}**")
    return "; ".join(word for word in words if word)


def _spread(measurement: Mapping, result: Mapping) -> str:
    if _is_work(measurement):
        return "counted, so exact"
    if result.get("gain") is None:
        return (
            f"{result['right']} of {result['asked']} right" if "right" in result else ""
        )
    counts = [result[arm]["n"] for arm in ("parent", "candidate")]
    n = _UNTOLD if None in counts else " and ".join(map(str, counts))
    least, most = result["gain_min"], result["gain_max"]
    # What lies on both sides of 1 is neither gain nor loss, whatever its median is.
    timed = " as timed" if result.get("gpu") else ""
    shown = f": no difference shown{timed}" if least <= 1 <= most else ""
    return f"n = {n} in one run, {times(least)} to {times(most)}{shown}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
