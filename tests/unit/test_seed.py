"""The seed of the random inputs: what is printed is what each process of a run uses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
WRITES = """
import pytest

@pytest.mark.parametrize("i", range(8))
def test_it(seed, worker_id, i):
    with open("seeds", "a") as file:
        file.write(f"{worker_id} {seed}\\n")
"""


@pytest.mark.parametrize("given", [(), ("--seed", "7")])
def test_each_process_has_the_seed_that_is_printed(tmp_path, given):
    pytest.importorskip("xdist")
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (tmp_path / "tests" / "unit" / "test_it.py").write_text(WRITES)
    command = [sys.executable, "-m", "pytest", "-n", "2", *given, "tests/unit"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.search(r"^seed: (\d+)", done.stdout, re.M)[1]
    used = [line.split() for line in (tmp_path / "seeds").read_text().splitlines()]
    assert {worker for worker, _ in used} == {"gw0", "gw1"}
    assert {seed for _, seed in used} == {printed}
    assert not given or printed == "7"
