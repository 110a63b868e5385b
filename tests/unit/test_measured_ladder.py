"""What docs/measured.md says of the serving benchmark, of two ranks and of a bisect against the raw files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
RAW = ROOT / "ci/checkpoints/raw/server-h200-series"


def raw(name: str) -> dict:
    return json.loads((RAW / f"{name}.json").read_text())


def table(start: str) -> list[list[str]]:
    """The rows of the first table after these words."""
    rest = PAGE.partition(start)[2]
    assert rest, start
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


STATED = " ".join(PAGE.split())


def test_what_the_serving_benchmark_did():
    (command,) = raw("bench")["commands"]
    assert command["exit"] == 6
    assert "9 of 16 answers differ" in command["stderr"]
    assert "of 16 answers of random weights 9 part" in STATED
    name = "bench-stock-alone-sweep-256-256-ends-stock.jsonl"
    rounds = [json.loads(line) for line in (RAW / name).read_text().splitlines()]
    assert [each["max_concurrency"] for each in rounds] == [64, 64, 1]
    many = [f"{each['output_throughput']:,.0f}" for each in rounds[:2]]
    assert f"{' and '.join(many)} output tok/s in two rounds, then one" in STATED


def test_the_patch_that_a_bisect_named_on_a_gpu():
    told = (RAW.parent / "h200-bisect-decode/bisect.txt").read_text()
    time = {
        name: float(us.replace(",", ""))
        for name, us in re.findall(r"^\w{12}  (\S+) +([\d,.]+) us ", told, re.M)
    }
    assert len(time) == 6
    threshold = float(re.search(r"^threshold +(\S+) us", told, re.M)[1])
    assert re.search(r"^gain +\w{40}  0060-decode-mma$", told, re.M)
    later = [name >= "0060" for name in time]
    assert [us < threshold for us in time.values()] == later
    release, first = time["0000-stock"], time["0060-decode-mma"]
    assert (
        f"{release:,.0f} us at the release, {first:.0f} us at 0060, threshold "
        f"{threshold:.0f} us" in STATED
    )
