"""What docs/measured.md says of whole servers of two ranks against the raw files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import measured_two_ranks as ranks

PAGE = (Path(__file__).resolve().parents[2] / "docs/measured.md").read_text()


STATED = " ".join(PAGE.split())


def table(start: str) -> list[list[str]]:
    """The rows of the first table after these words."""
    rest = PAGE.partition(start)[2]
    lines = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_local_heads_against_padded_ones():
    shown = table("Whole servers of two ranks")
    assert shown and shown == ranks.lines()


def test_what_is_said_of_random_weights():
    answers = ranks.raw("final")["answers"]
    parted = {}
    for prompt in ("300", "2047", "2049", "6000"):
        padded, local = (
            answers[f"slice-ours-{heads}"][prompt] for heads in ("padded", "local")
        )
        for one, other in zip(padded, local):
            assert set(one["gap"]) == set(other["gap"]) == {0}
            differ = (at for at in range(24) if one["lp"][at] != other["lp"][at])
            parted.setdefault(prompt, []).append(next(differ, None))
    assert parted == {
        "300": [None, None],
        "2047": [1, 1],
        "2049": [1, 1],
        "6000": [1, 1],
    }
    assert "the bits part at the second token" in STATED
    (line,) = (row for row in ranks.lines() if "final" in row[0] and "four" in row[1])
    assert line[4] == "3 of 8" and "it is three, and up to 0.407" in STATED
    assert line[6] == "0.407"


def test_each_local_server_asked_again_gives_its_bits():
    again = [
        row for row in ranks.raw("final")["equal"] if row["arms"][1].endswith("again")
    ]
    assert len(again) == 9
    assert all(row["bits_equal"] == row["rows"] for row in again)
    assert {row["exit"] for row in ranks.raw("final")["smoke"].values()} == {0}


def test_the_steps_of_ours_on_two_ranks():
    runs = ranks.raw("final")["runs"]
    for rows, words in (
        (1, "{} and {} at one row"),
        (64, "{} and {} at 64"),
    ):
        told = []
        for heads in ("padded", "local"):
            times = [
                run["step_ms"]
                for run in runs
                if (run["arm"], run["n"]) == (f"slice-ours-{heads}", rows)
                and run["rep"]
            ]
            assert len(times) == 7
            told.append(
                f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"
            )
        assert words.format(*told) in STATED


def test_the_commits_of_the_two_runs():
    for run, commit in (("trial", "a020ecd5846a"), ("final", "da3dd7074396")):
        served = [arm["served"]["commit"] for arm in ranks.raw(run)["arms"]]
        assert {each[:12] for each in served} == {commit}


def test_each_server_had_two_ranks_and_named_its_path():
    for run in ranks.runs():
        made = ranks.raw(run)
        assert made["ranks"] == 2 and made["failed"] == []
        for arm in made["arms"]:
            assert arm["server_args"][arm["server_args"].index("--tp") + 1] == "2"
            told = " ".join(arm["log_lines_of_heads"])
            own = "attention on this rank's heads only" in told
            assert own == (arm["heads"] == "local") != ("upstream's path" in told)
            ours = arm["served"]["paths"]["SGLANG_SM120_DECODE"]["ours"]
            assert ours == arm["kernel"].startswith("ours")


def test_the_pairs_differ_in_the_heads_alone():
    for run in ranks.runs():
        made = ranks.raw(run)
        arms = {arm["name"]: arm for arm in made["arms"]}
        for model, kernel in ranks.pairs(made):
            padded, local = (
                arms[f"{model}-{kernel}-{heads}"] for heads in ("padded", "local")
            )
            assert padded["server_args"] == local["server_args"]
            differ = {
                name
                for name in padded["env"] | local["env"]
                if padded["env"].get(name) != local["env"].get(name)
            }
            assert differ == {"SGLANG_SM120_LOCAL_HEADS"}


def of_ranks(folder: str) -> list[list[dict]]:
    """The cases of the layer, each as both ranks measured it."""
    made = json.loads((ranks.RAW.parent / folder / "ranks.json").read_text())
    return [list(case) for case in zip(*(rank["pair"] for rank in made["ranks"]))]


def bits(case: list[dict]) -> str:
    parts = (
        "attention_equal",
        "layer_equal",
        "summed_layer_equal",
        "gathered_equals_one_gpu",
    )
    if all(rank[part] for rank in case for part in parts):
        return "equal"
    far = max(
        rank[part]
        for rank in case
        for part in ("attention_largest_difference", "gathered_largest_difference")
    )
    largest = max(rank["largest_value"] for rank in case)
    return f"apart by {far:g} of {largest:g} at most"


def test_the_layer_on_two_ranks():
    lines = table("One attention layer of 64 heads on two ranks")
    cases = of_ranks(ranks.RAW.name)
    assert len(lines) == len(cases) == 6
    for line, case in zip(lines, cases):
        first = case[0]
        assert first["heads_seen"] == [64, 32]
        every, own = (
            statistics.mean(rank["layer_us"][at] for rank in case) for at in (0, 1)
        )
        assert line == [
            first["kernel"],
            f"{first['rows']}, c{first['compress_ratio']}",
            f"{every:,.1f}",
            f"{own:,.1f}",
            f"{every / own:.2f}x",
            bits(case),
        ]
    assert [line[-1] for line in lines[:-1]] == ["equal"] * 5


def test_the_layer_of_one_split_at_three_commits():
    equal = [
        [
            bits(case) == "equal"
            for case in of_ranks(folder)
            if "one split" in case[0]["kernel"]
        ]
        for folder in ("h200-local-heads", "server-h200-series", ranks.RAW.name)
    ]
    assert equal == [[True, True], [False, True], [True, True]]


def test_what_is_said_of_more_ranks():
    made = json.loads((ranks.RAW / "ranks.json").read_text())
    rows = [row for rank in made["ranks"] for row in rank["more_ranks"]]
    far = {}
    for row in rows:
        key = row["kernel"], row["compress_ratio"], row["ranks"]
        how = row["attention_largest_difference"], row["largest_value"]
        assert far.setdefault(key, how) == how, "both ranks found the same"
    exact = {"upstream's Triton", "ours, one split"}
    assert {how[0] for key, how in far.items() if key[0] in exact} == {0}
    many, most = far["ours", 4, 4], far["ours", 4, 8]
    assert many[0] == most[0]
    words = "64 c4 rows part by {:g} of {:g} and of {:g} at most, 8 long rows by"
    assert words.format(*many, most[1]) in STATED
    long = {far["ours", 128, number] for number in (4, 8)}
    assert len(long) == 1
    assert "8 long rows by {:g} of {:g}.".format(*long.pop()) in STATED
