"""How many calls a measurement holds, without a GPU: host and graph take made-up times."""

from __future__ import annotations

import pytest

from patchset import gputime


class Graph:
    """A captured graph of so many calls."""

    def __init__(self, calls: int):
        self.calls = calls

    def __call__(self):
        pass


@pytest.fixture
def runner(monkeypatch):
    """A runner of ``count`` calls that take so many microseconds launched by the host, and in a graph."""

    def make(count: int, host_us: float, graph_us: float) -> gputime._Runner:
        def elapsed_us(run, repeats):
            if isinstance(run, Graph):
                return repeats * run.calls * graph_us
            return repeats * count * host_us

        monkeypatch.setattr(gputime, "_elapsed_us", elapsed_us)
        monkeypatch.setattr(
            gputime._Runner, "_capture", lambda self: Graph(len(self._calls))
        )
        return gputime._Runner([lambda: None] * count)

    return make


@pytest.mark.parametrize("host_us", [2.0, 40.0, 400.0])
def test_a_graph_of_short_calls_is_long_however_slow_the_host(runner, host_us):
    made = runner(16, host_us, 1.0)
    assert made.graph and made._run.calls == 256
    assert made._repeats == round(gputime.SAMPLE_US / 256)
    assert made.measure() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "count, graph_us, calls, repeats",
    [(48, 3.5, 288, 1), (2, 300.0, 4, 1), (1, 4_000.0, 1, 1), (16, 50.0, 32, 1)],
)
def test_a_graph_is_no_longer_than_a_sample(runner, count, graph_us, calls, repeats):
    made = runner(count, 2 * graph_us, graph_us)
    assert (made._run.calls, made._repeats) == (calls, repeats)
    assert made.measure() == pytest.approx(graph_us)


def test_a_long_call_is_launched_by_the_host(runner):
    made = runner(2, 20_000.0, 1.0)
    assert not made.graph and made._repeats == 1
    assert made.measure() == pytest.approx(20_000.0)
