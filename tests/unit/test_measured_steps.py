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
    waits_for_the_host,
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


ENDS = (
    ("8k", "stock", "0100-whole"),
    ("128k", "stock", "0090"),
    ("128k", "stock-1m", "0090-1m"),
)


def whole_over_stock() -> list[tuple[float, float, float]]:
    """The gain as timed at 8K, 128K and 1M: by the medians, and by our slowest and fastest list."""
    return [gain_as_timed(*end) for end in ENDS]


def gain_as_timed(name: str, stock: str, ours: str) -> tuple[float, float, float]:
    times = steps(raw(name), ours, 64)
    below = median(raw(name), stock, 64)
    ends = (statistics.median(times), max(times), min(times))
    return tuple(below / each for each in ends)


def whole_over_stock_on_the_gpu() -> list[float]:
    """The same by the GPU's own time, at 8K and 128K."""
    return [gain_on_the_gpu(*end) for end in ENDS[:2]]


def gain_on_the_gpu(name: str, stock: str, ours: str) -> float:
    return busy(raw(name), stock, 64) / busy(raw(name), ours, 64)


def test_how_fast_the_series_is_over_stock():
    far = raw("128k")
    assert (
        "At 64 rows the series is **{:.1f} times as fast as stock at 8K and {:.1f} times at "
        "128K by the GPU's own time**".format(*whole_over_stock_on_the_gpu()) in STATED
    )
    near, middle, most = whole_over_stock()
    assert (
        "As timed it is {:.1f} times at 8K (single lists: {:.1f} to {:.1f}), {:.1f} times at "
        "128K ({:.1f} to {:.1f}) and {:.0f} times at 1M ({:.0f} to {:.0f})".format(
            *near, *middle, *most
        )
        in STATED
    )
    whole = median(raw("8k"), "0100-whole", 64)
    assert f"(`0100-whole` in its raw file, {whole:.3f} ms" in STATED
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


def late_lists(name: str) -> list[tuple[str, int, int]]:
    """Of the servers that do not wait for the host: each list 2% later than the quickest, by its turn."""
    made = raw(name)
    arms = [arm["name"] for arm in made["arms"] if not waits_for_the_host(arm["name"])]
    assert arms
    return [
        (arm, rows, at)
        for arm in arms
        for rows in ROWS
        for at, time in enumerate(steps(made, arm, rows), 1)
        if time / min(steps(made, arm, rows)) - 1 >= 0.02
    ]


# The one list of the four runs that was late, by its run: docs/ladder.md tells of it.
LATE = {"128k": [("0030", 64, 4)]}


@pytest.mark.parametrize("name", ["8k", "upper", "128k"])
def test_servers_that_do_not_wait_for_the_host_are_steady(name):
    assert late_lists(name) == LATE.get(name, [])


def test_what_the_page_says_of_the_list_that_was_late():
    made = raw("128k")
    ((arm, rows, turn),) = LATE["128k"]
    lists = [
        run
        for run in made["runs"]
        if (run["arm"], run["rows"]) == (arm, rows) and run["rep"]
    ]
    (late,) = (run for run in lists if run["rep"] == turn)
    others = [run for run in lists if run is not late]
    (each,) = {f"{run['step_ms']:.1f}" for run in others}
    more = late["whole_s"] - statistics.median(run["whole_s"] for run in others)
    tokens = made["load"]["output_tokens"][str(rows)]
    assert (
        f"for one list of {arm} at 128K. So" in STATED
        and f"the fourth of five at {rows} rows, took {late['step_ms']:.1f} ms a step where the "
        f"other four took {each}: {more:.1f} s more for its {tokens} tokens." in STATED
    )
    below, ours = (steps(made, name, rows) for name in ("stock", arm))
    assert (
        f"gains {min(below) / max(ours):.2f}x to {max(below) / min(ours):.2f}x there as timed"
        in STATED
    )
    own = busy(made, "stock", rows) / busy(made, arm, rows)
    assert f"no difference shown; by the GPU's own time it is {own:.2f}x." in STATED


def test_a_gain_as_timed_from_0060_on_is_smaller_than_the_spread():
    timed, own = [], []
    for made in map(raw, ("upper", "128k")):
        names = [arm["name"] for arm in made["arms"] if "-" not in arm["name"]]
        for below, name in zip(names, names[1:]):
            if "0060" <= below < "stock":
                timed.append(median(made, below, 64) / median(made, name, 64))
            if "0059" <= name < "stock" and name not in ("0060", "0090"):
                own += [busy(made, below, r) / busy(made, name, r) - 1 for r in ROWS]
    assert f"({min(timed):.2f}x to {max(timed):.2f}x) is noise" in STATED
    assert f"within {max(map(abs, own)):.1%} by every patch from 0059 on but" in STATED


def test_all_runs_are_of_one_series():
    built: dict[str, set[str]] = {}
    for made in map(raw, ("8k", "upper", "128k", "43")):
        for arm in made["arms"]:
            build = arm["build"]
            built.setdefault(build["checkpoint"], set()).add(build["commit"])
    assert [name for name, commits in built.items() if len(commits) > 1] == []
    (tip,) = built["0100-moe-mxfp4-draft"]
    assert f"series of commit {tip[:12]}; every run is of that series." in STATED


def test_which_arms_wait_for_the_host():
    waiting: list[float] = []
    spread: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for name in ("8k", "upper", "128k"):
        made = raw(name)
        for arm in made["arms"]:
            for rows in ROWS:
                times = {
                    (arm["name"], rows, at): time
                    for at, time in enumerate(steps(made, arm["name"], rows), 1)
                }
                if waits_for_the_host(arm["name"]):
                    waiting.append(max(times.values()) / min(times.values()) - 1)
                    continue
                for late in LATE.get(name, []):
                    times.pop(late, None)
                spread[rows].append(max(times.values()) / min(times.values()) - 1)
    one, some, many = (max(spread[rows]) for rows in ROWS)
    assert (
        f"spread by {min(waiting):.0%} to {max(waiting):.0%}, those of all other servers by "
        f"{many:.1%} at most at 64 rows ({some:.1%} at 16, {one:.1%} at one) but for one list "
        in STATED
    )


# The one share of the GPU's own time, by rows and arm, below what the run before kept everywhere: docs/ladder.md tells of it.
LESS_LEFT = [(1, "0090-1m")]


def test_as_much_is_left_of_the_speed_of_43_layers_as_was_asked_for():
    made = raw("43")
    less = []
    for arm, wanted in zip(WHOLE[1:], (0.99, 0.98)):
        for rows in ROWS:
            assert median(made, WHOLE[0], rows) / median(made, arm, rows) >= wanted
            if busy(made, WHOLE[0], rows) / busy(made, arm, rows) < 0.9965:
                less.append((rows, arm))
    assert less == LESS_LEFT
    ((rows, arm),) = LESS_LEFT
    near, far = (busy(made, name, rows) for name in (WHOLE[0], arm))
    assert near / far >= 0.98
    assert f"99.65% or more: {near / far:.1%}, {far - near:.0f} us of {near:,.0f}." in (
        STATED
    )


def test_what_the_page_says_is_left_of_the_speed_of_43_layers():
    made = raw("43")
    timed, own = [], []
    for arm in WHOLE[1:]:
        for rows in ROWS:
            timed.append(median(made, WHOLE[0], rows) / median(made, arm, rows))
            own.append(busy(made, WHOLE[0], rows) / busy(made, arm, rows))
    assert (
        f"{min(timed):.1%} is left or more as timed, {min(own):.1%} by the GPU's own time:"
        in STATED
    )


def attention_us(made: dict, arm: str, rows: int) -> tuple[float, int]:
    """How long our attention ran in a step, the median over the profiles, and its calls."""
    found = [
        (took, calls)
        for profile in made["profiles"]
        if (profile["arm"], profile["rows"]) == (arm, rows)
        for at, took, _, calls in profile["kernels"]
        if made["kernel_names"][at] == "sparse_mla_decode"
    ]
    took, calls = (statistics.median(each) for each in zip(*found))
    return took, int(calls)


def test_how_long_our_attention_takes():
    deep = [attention_us(raw("43"), arm, 64) for arm in WHOLE]
    a_layer = [took / calls for took, calls in deep]
    assert f"there and takes {min(a_layer):.1f} to {max(a_layer):.1f} here." in STATED
    more = busy(raw("43"), WHOLE[0], 64) / 12.86e3 - 1
    assert f"that is {more:.1%} more of the GPU's own time" in STATED
    measured = " ".join((ROOT / "docs/measured.md").read_text().split())
    assert (
        f"64 rows and 64 heads, take {min(a_layer):.1f} to {max(a_layer):.1f} us a layer"
        in measured
    )
    near, _, far = a_layer
    assert far <= near
    assert "of 43 layers, at 64 rows, it takes no more at 1M than at 8K" in STATED
    many = (attention_us(raw("128k"), arm, 64)[0] for arm in SERIES)
    assert (
        "our attention took {:.0f} us at 8K and {:.0f} and {:.0f} at 128K and 1M;".format(
            *many
        )
        in STATED
    )


def test_what_is_left_of_the_speed_of_four_layers():
    made = raw("128k")
    left = {
        (rows, arm): busy(made, SERIES[0], rows) / busy(made, arm, rows)
        for arm in SERIES[1:]
        for rows in ROWS
    }
    found = left.values()
    assert f"{min(found):.1%} to {max(found):.1%} is left by the" in STATED
    assert min(left, key=left.get) == (64, SERIES[2])
    assert "The least is at 64 rows and 1M:" in STATED
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
    whole = raw("43")
    words = "four layers is {:.1f} times as fast as stock's at a context of 8K, {:.1f} times at 128K"
    assert words.format(*whole_over_stock_on_the_gpu()) in text
    (near, *lists), (far, *more), (most, *range_1m) = whole_over_stock()
    words = (
        "it is {:.1f} and {:.1f} times as fast (single lists: {:.1f} to {:.1f} and {:.1f} to {:.1f}), "
        "at 1M {:.0f} times ({:.0f} to {:.0f}). A server"
    )
    assert words.format(near, far, *lists, *more, most, *range_1m) in text
    left = {
        rows: [
            median(whole, WHOLE[0], rows) / median(whole, arm, rows)
            for arm in WHOLE[1:]
        ]
        for rows in ROWS
    }
    words = (
        "keeps {:.1%} of its tok/s at 8K when the context is 128K, and {:.1%} when it is 1M; "
        "at 1 and 16 rows {:.1%} or more"
    )
    assert words.format(*left[64], min(left[1] + left[16])) in text
