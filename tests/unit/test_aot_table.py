"""The table of what compiles for sm_120, kept as `scripts/test.sh aot` printed it: it is of today's kernels."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = (ROOT / "ci/checkpoints/raw/aot-sm120/table.txt").read_text()
SHARED_BYTES = 101_376  # that a block of sm_120 may have


def test_the_kept_table_is_of_these_kernels():
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted((ROOT / "kernels").iterdir())
        if file.suffix in (".py", ".cu", ".cuh")
    ]
    today = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert (
        f"kernels: {today} " in KEPT
    ), "run scripts/test.sh aot and keep its table, with this sum"


def test_what_is_compiled_fits_and_does_not_spill():
    rows = re.findall(
        r"^(\S.*?) +sm_(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)%", KEPT, re.M
    )
    assert len(rows) == KEPT.count(" sm_12") - KEPT.count("read sm_121") > 0
    assert {(name, "120") for name, *_ in rows} | {
        (name, "121") for name, *_ in rows
    } == {(name, arch) for name, arch, *_ in rows}
    for name, _, registers, spilled, shared, warps, resident, _ in rows:
        assert int(spilled) == 0 and int(shared) <= SHARED_BYTES, name
        assert int(registers) * int(warps) * 32 * int(resident) <= 65_536, name
