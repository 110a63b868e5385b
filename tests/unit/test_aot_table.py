"""The table of what compiles for sm_120: as `scripts/test.sh aot` prints it, and the kept one, of today's kernels."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


TESTS = """
import time
from types import SimpleNamespace

import pytest

@pytest.mark.parametrize("i", range(6))
def test_fits(report, i):
    # The first ends last.
    time.sleep(0.2 if i == 0 else 0)
    machine = SimpleNamespace(arch=120, registers=i, spill_bytes=0, shared=0, num_warps=4, mma={})
    if i != LEFT_OUT:
        report.row(f"kernel {i}", machine, 1)

def test_of_no_configuration():
    pass
"""


# A row left out is looked for by the same code with one process and with several.
@pytest.mark.parametrize("processes, left_out", (("0", None), ("2", None), ("2", 4)))
def test_each_test_has_its_row_in_the_order_of_the_tests(tmp_path, processes, left_out):
    """Also from several processes; a row that is missing is named, and the tier fails."""
    pytest.importorskip("xdist")
    conftest = ROOT / "tests/aot/conftest.py"
    (tmp_path / "conftest.py").write_bytes(conftest.read_bytes())
    tests = TESTS.replace("LEFT_OUT", str(left_out))
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-n", processes, "--dist", "worksteal"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    printed = re.findall(r"^kernel (\d) +sm_120 ", done.stdout, re.M)
    assert printed == [str(i) for i in range(6) if i != left_out], done.stdout
    assert "7 passed" in done.stdout
    assert done.returncode == (0 if left_out is None else 1), done.stdout
    named = re.findall(r"^ERROR: no row of .*\[(\d)\]$", done.stdout, re.M)
    assert named == ([] if left_out is None else [str(left_out)])
