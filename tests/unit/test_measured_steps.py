"""What docs/ladder.md says of the ladder of real servers against the raw files."""

from __future__ import annotations

import statistics

import pytest

from measured_steps import (
    ROOT,
    ROWS,
    SERIES,
    WHOLE,
    busy,
    constants,
    parts,
    raw,
    steps,
    tables,
)
from patchset import agreement, stepsummary

PAGE = (ROOT / "docs/ladder.md").read_text()


@pytest.mark.parametrize("before", tables())
def test_a_table_is_what_the_raw_files_give(before):
    _, found, rest = PAGE.partition(before)
    assert found, before
    assert rest[rest.index("\n|") + 1 :].startswith(tables()[before])


@pytest.mark.parametrize("name", ["128k", "8k", "upper", "43"])
def test_no_arm_failed(name):
    assert raw(name)["failed"] == []


@pytest.mark.parametrize("name", ["128k", "8k", "upper", "43"])
def test_every_arm_was_counted_five_times(name):
    made = raw(name)
    for arm in made["arms"]:
        for rows in ROWS:
            assert len(steps(made, arm["name"], rows)) >= 5, arm["name"]


def test_each_time_at_three_contexts_is_of_36_steps_in_three_profiles():
    made = raw("128k")
    for arm in SERIES:
        for rows in ROWS:
            assert len(stepsummary.busy_us(made, arm, rows)) == 36
            turns = {
                each["turn"]
                for each in made["profiles"]
                if (each["arm"], each["rows"]) == (arm, rows)
            }
            assert len(turns) == 3


STATED = " ".join(PAGE.split())


def median(made: dict, arm: str, rows: int) -> float:
    return statistics.median(steps(made, arm, rows))


def test_how_fast_the_series_is_over_stock():
    near, far = raw("8k"), raw("128k")
    ends = (
        (near, "stock", "0100-whole"),
        (far, "stock", "0090"),
        (far, "stock-1m", "0090-1m"),
    )
    timed = [
        median(made, stock, 64) / median(made, ours, 64) for made, stock, ours in ends
    ]
    own = [busy(made, "stock", 64) / busy(made, ours, 64) for made, _, ours in ends[:2]]
    assert (
        "At 64 rows the series is {:.1f} times as fast as stock at 8K, {:.1f} times at "
        "128K and {:.0f} times at 1M as timed, {:.1f} and {:.1f} times by the GPU's own".format(
            *timed, *own
        )
        in STATED
    )
    one, other = (median(far, arm, 64) for arm in ("stock-1m", "stock"))
    assert (
        f"stock server takes {one:.1f} ms at 1M, {one / other:.1f} times its" in STATED
    )
    flag = [
        median(raw("43"), "0095-off", r) / median(raw("43"), "0095-on", r)
        for r in ROWS[::-1]
    ]
    assert (
        "{:.2f} times at 64 rows, {:.2f} at 16, {:.2f} at one".format(*flag) in STATED
    )


# `upper` had another plan of servers on the host beside it.
@pytest.mark.parametrize("name", ["8k", "128k"])
def test_servers_that_do_not_wait_for_the_host_are_steady(name):
    made = raw(name)
    for arm in made["arms"]:
        if not "0060" <= arm["name"] < "stock":
            for rows in ROWS:
                times = steps(made, arm["name"], rows)
                assert max(times) / min(times) - 1 < 0.02, arm["name"]


def test_which_arms_wait_for_the_host():
    waiting: list[float] = []
    spread: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for made in map(raw, ("8k", "upper", "128k")):
        for arm in made["arms"]:
            waits = "0060" <= arm["name"] < "stock"
            for rows in ROWS:
                times = steps(made, arm["name"], rows)
                found = waiting if waits else spread[rows]
                found.append(max(times) / min(times) - 1)
    one, some, many = (max(spread[rows]) for rows in ROWS)
    assert (
        f"spread by {min(waiting):.0%} to {max(waiting):.0%}, those of all other servers by "
        f"{many:.1%} at most at 64 rows ({some:.1%} at 16, {one:.1%} at one: single late "
        "lists of the run from 0050 on" in STATED
    )


def test_what_is_left_of_the_speed_of_43_layers():
    made = raw("43")
    for arm in WHOLE[1:]:
        for rows in ROWS:
            left = median(made, WHOLE[0], rows) / median(made, arm, rows)
            assert left >= 0.999
            assert busy(made, WHOLE[0], rows) / busy(made, arm, rows) >= 0.9965


def test_what_is_left_of_the_speed_of_four_layers():
    made = raw("128k")
    found = [
        busy(made, SERIES[0], rows) / busy(made, arm, rows)
        for arm in SERIES[1:]
        for rows in ROWS
    ]
    assert f"{min(found):.1%} to {max(found):.1%} is left by the" in STATED
    timed = [
        median(made, SERIES[0], rows) / median(made, arm, rows)
        for arm in SERIES[1:]
        for rows in ROWS
    ]
    assert f"{min(timed):.0%} to {max(timed):.0%} is left, as the host" in STATED


def test_how_much_longer_a_step_of_43_layers_is_than_the_gpu_works():
    made = raw("43")
    more = [
        median(made, arm, rows) - busy(made, arm, rows) / 1e3
        for arm in WHOLE
        for rows in ROWS
    ]
    assert f"takes {min(more):.2f} to {max(more):.2f} ms more than the GPU" in STATED


def test_how_little_a_layer_and_a_step_pay_for_the_context():
    layer = max(far - near for near, _, far in (each for _, each in constants()))
    once = max(far - near for near, _, far in (each for each, _ in constants()))
    assert (
        f"layer takes {layer:.1f} us more at most, and a step {once:.0f} us once"
        in STATED
    )


def test_what_the_rest_was():
    rest = {
        arm: parts("128k", arm, 64)["rest"] for arm in ("stock", "0030", "0070", "0090")
    }
    assert (
        f"{1 - rest['0030'] / rest['stock']:.0%} of stock's rest go with 0030 (the torch "
        f"indexer) and {1 - rest['0090'] / rest['0070']:.0%} of 0070's" in STATED
    )


# What changes the rounding of a result, and so random answers: the attention and the pre-linear.
PART = {
    *(("0060", "0050"), ("0090", "0070"), ("0060", "0059"), ("0090", "0089")),
    ("0100-whole", "stock"),
}


@pytest.mark.parametrize("name", ["128k", "8k", "upper", "43"])
def test_the_answers_are_as_alike_as_the_page_says(name):
    made = raw(name)
    for arm in made["arms"]:
        if arm["against"]:
            alike = stepsummary.compared(made, arm["name"], arm["against"])
            assert not agreement.wrong(alike)
            pair = arm["name"], arm["against"]
            if pair in PART:
                assert agreement.line(alike) in STATED
            else:
                assert sum(each.parted for each in alike.values()) == 0


def test_what_the_readme_says_of_the_ladder():
    text = " ".join((ROOT / "README.md").read_text().split())
    far, whole = raw("128k"), raw("43")
    gains = (
        median(far, stock, 64) / median(far, ours, 64)
        for stock, ours in (("stock", "0090"), ("stock-1m", "0090-1m"))
    )
    words = "four layers is {:.1f} times as fast as stock's, at 1M {:.0f} times"
    assert words.format(*gains) in text
    near, *others = (median(whole, arm, 64) for arm in WHOLE)
    left = (f"{near / each:.1%}" for each in others)
    words = "keeps {} of its tok/s at 8K when the context is 128K, and {} when it is 1M"
    assert words.format(*left) in text
