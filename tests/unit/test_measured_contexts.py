"""What docs/measured.md says of servers at 8K and 1M against the raw file."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())
ENDS = json.loads((ROOT / "ci/checkpoints/raw/server-h200-1m/shake.json").read_text())


def of_arm(arm: str, rows: int) -> dict[int, dict]:
    """The runs of an arm at so many rows, by repetition; the first warms up."""
    runs = ((run["arm"], run["n"], run) for run in ENDS["runs"])
    return {run["rep"]: run for of, n, run in runs if (of, n) == (arm, rows)}


def steps_of(arm: str, rows: int) -> list[float]:
    return [run["step_ms"] for rep, run in of_arm(arm, rows).items() if rep]


def test_the_steps_at_both_ends_of_the_context():
    arms = ("stock-det@8k", "0100@8k", "stock@1m", "0100@1m")
    for rows in (1, 16, 64):
        cells = []
        for times in (steps_of(arm, rows) for arm in arms):
            assert len(times) in (5, 6)
            median, ends = statistics.median(times), (min(times), max(times))
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(median, *ends))
        assert f"| {rows} | {' | '.join(cells)} |\n" in PAGE
    stock8, ours8, stock1, ours1 = (statistics.median(steps_of(a, 64)) for a in arms)
    assert (
        f"{stock8 / ours8:.1f} times as fast at 8K, and {stock1 / ours1:.0f} times"
        in STATED
    )
    assert f"takes {stock1 / stock8:.1f} times its time at 8K" in STATED
    profile = ENDS["profiles"]["0100@1m C=1"]
    (steps,) = (n for name, _, n in profile["by_kernel"] if "ArgMax" in name)
    busy, whole = (profile[part] / steps / 1e3 for part in ("busy_us", "span_us"))
    assert f"the GPU works {busy:.2f} ms of {whole:.2f}" in STATED


def first_tokens(arm: str, other: str) -> tuple[int, int, int]:
    """Rows of both arms: with the same first token, with the same kept ones, all."""
    rows = [
        pair
        for n in (1, 16, 64)
        for rep, run in of_arm(arm, n).items()
        if (its := of_arm(other, n).get(rep))
        for pair in zip(run["ids"], its["ids"], strict=True)
    ]
    whole = (a[: len(b)] == b[: len(a)] for a, b in rows)
    return sum(a[0] == b[0] for a, b in rows), sum(whole), len(rows)


def test_the_tokens_at_both_ends_of_the_context():
    for arm, name in (("0100", "the series"), ("stock", "stock")):
        other = "stock-det@8k" if arm == "stock" else "0100@8k"
        _, equal, rows = first_tokens(f"{arm}@1m", other)
        assert f"of {name} ({equal} of {rows}" in STATED and equal == rows
    first, _, rows = first_tokens("0100@1m", "stock@1m")
    assert f"the first token is the same in {first} of {rows} rows" in STATED


def test_the_flag_of_the_torch_indexer():
    gains = [
        statistics.median(steps_of("0095-off", rows))
        / statistics.median(steps_of("0095-on", rows))
        for rows in (64, 16, 1)
    ]
    words = "{:.2f} times at 64 rows, {:.2f} at 16, {:.2f} at one"
    assert words.format(*gains) in STATED
