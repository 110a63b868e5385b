"""A table of what each compiled configuration takes, printed at the end of the aot tier."""

from __future__ import annotations

import pytest

ROWS = pytest.StashKey[list]()


class Report:
    """Collects rows for the table."""

    def __init__(self, rows: list):
        self._rows = rows

    def row(self, name: str, machine, resident: int) -> None:
        """Add one compiled configuration; ``resident`` blocks fit an SM."""
        mma = "+".join(f"{n}x {_short(kind)}" for kind, n in machine.mma.items())
        self._rows.append(
            f"{name:<34} sm_{machine.arch} {machine.registers:>5} {machine.spill_bytes:>6}"
            f" {machine.shared:>7} {machine.num_warps:>5} {resident:>7}"
            f" {resident * machine.num_warps / 48:>6.0%}  {mma}"
        )


@pytest.fixture(scope="session")
def report(request) -> Report:
    rows = request.config.stash.setdefault(ROWS, [])
    return Report(rows)


def _short(kind: str) -> str:
    """The shape of a PTX instruction; a SASS one as it is."""
    return kind.split(".")[3] if kind.startswith("mma") else kind


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("compiled without a GPU")
        head = f"{'kernel':<34} arch    regs spill B shared  warps resident  warps"
        terminalreporter.write_line(head)
        for row in rows:
            terminalreporter.write_line(row)
