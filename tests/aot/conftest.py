"""A table of what each compiled configuration takes, printed at the end of the aot tier.

The tests run in several processes, and the table is printed by the one that gathers their reports: a row
travels with the report of its test, and rows stand in the order of the tests, not in that of their ends.
"""

from __future__ import annotations

import pytest

# The property of a test's report that holds its rows; none yet if the test ended before it compiled.
ROWS = "rows of the table"


class Report:
    """Collects rows for the table."""

    def __init__(self, rows: list[str]):
        self._rows = rows

    def row(self, name: str, machine, resident: int) -> None:
        """Add one compiled configuration; ``resident`` blocks fit an SM."""
        mma = "+".join(f"{n}x {_short(kind)}" for kind, n in machine.mma.items())
        self._rows.append(
            f"{name:<34} sm_{machine.arch} {machine.registers:>5} {machine.spill_bytes:>6}"
            f" {machine.shared:>7} {machine.num_warps:>5} {resident:>7}"
            f" {resident * machine.num_warps / 48:>6.0%}  {mma}"
        )


@pytest.fixture
def report(record_property) -> Report:
    rows: list[str] = []
    record_property(ROWS, rows)
    return Report(rows)


def _short(kind: str) -> str:
    """The shape of a PTX instruction; a SASS one as it is."""
    return kind.split(".")[3] if kind.startswith("mma") else kind


def pytest_configure(config):
    config.pluginmanager.register(Table(), "table")


class Table:
    """Gathers the rows from the reports, in one process as in the one for which others run the tests."""

    def __init__(self):
        self._order: list[str] = []
        self._rows: dict[str, list[str]] = {}
        self._without: list[str] = []

    def pytest_collection_finish(self, session):
        self._order += [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        """Of pytest-xdist, which runs no test unless all processes found the same ones in the same order."""
        self._order = list(ids)

    def pytest_runtest_logreport(self, report):
        rows = dict(report.user_properties).get(ROWS)
        if report.when != "call" or rows is None:
            return
        self._rows[report.nodeid] = rows
        if report.passed and not rows:
            self._without.append(report.nodeid)

    def pytest_sessionfinish(self, session):
        missing = self._rows.keys() - set(self._order)
        self._without += [f"{test} (in no order)" for test in sorted(missing)]
        # A process that runs tests for another prints nothing, and its exit status is nobody's.
        if self._without and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if not self._rows:
            return
        terminalreporter.section("compiled without a GPU")
        head = f"{'kernel':<34} arch    regs spill B shared  warps resident  warps"
        terminalreporter.write_line(head)
        for test in self._order:
            for row in self._rows.get(test, ()):
                terminalreporter.write_line(row)
        for test in self._without:
            terminalreporter.write_line(f"ERROR: no row of {test}", red=True)
