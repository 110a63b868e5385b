"""Records of servers' decode steps: read, shown beside each other, drawn, and found out when changed."""

from __future__ import annotations

import copy
import json

import pytest

from made_records import VALUES, Made, steps, write_raw
from patchset.errors import Exit
from patchset.records import figures, ladder, schema, server_steps

FILE = "ci/checkpoints/raw/server-made/128k.json"
# tok/s of a warm-up and of two counted runs, by rows.
SPEEDS = {
    "stock": {1: (90, 100, 110), 16: (90, 1000, 1000), 64: (90, 2000, 2000)},
    "0030": {1: (9, 105, 105), 16: (9, 2000, 2000), 64: (9, 7000, 9000)},
}


def raw() -> dict:
    """What a run of servers that take turns writes."""
    arms = [
        {
            "name": name,
            "checkpoint": checkpoint,
            "context": 131_072,
            "layers": 4,
            "model": "flash-slice-4-random",
            "env": {"SGLANG_SM120_INDEXER": "on"} if name != "stock" else {},
            "server_args": ["--tp", "1"],
            "served": {"commit": "c" * 40 if name != "stock" else None},
        }
        for name, checkpoint in (("stock", "0000"), ("0030", "0030"))
    ]
    runs = [
        {"arm": arm, "n": rows, "rep": rep, "tok_s": value, "ids": [[7, 8, 9]] * 2}
        for arm, by_rows in SPEEDS.items()
        for rows, values in by_rows.items()
        for rep, value in enumerate(values)
    ]
    return {
        "date": "2026-11-29",
        "machine": {"gpu": "NVIDIA H200", "torch": "2.11.0"},
        "stand_ins": ["FlashInfer is absent", "weights are random"],
        "load": {"input_tokens": 32, "output_tokens": {"64": 65}},
        "arms": arms,
        "runs": runs,
    }


def read(raw: dict, **select: str) -> dict:
    return server_steps.read({"all": raw}, select)


def test_an_arm_over_the_one_below_it():
    found = read(raw(), arm="0030", against="stock")
    result = found["result"]
    # Repetition 0 warms up.
    assert result["candidate"] == {"median": 8000, "min": 7000, "max": 9000, "n": 2}
    assert (result["gain"], result["gain_min"]) == (4.0, 3.5)
    assert result["rows"]["C=1"]["parent"]["median"] == 105
    assert result["rows"]["C=16"]["gain"] == 2
    assert "64 rows, context 128K: 0030 against 0000" in found["what"]
    assert found["commit"] == "c" * 40 and found["correctness"]["ok"]
    assert "FlashInfer is absent" in found["notes"]


def test_the_release_alone_has_no_gain():
    found = read(raw(), arm="stock")
    assert found["result"]["gain"] is None and found["correctness"] is None
    assert found["result"]["rows"]["C=1"]["candidate"]["median"] == 105


def test_what_tells_two_arms_of_one_checkpoint_apart():
    made = raw()
    made["arms"][0]["checkpoint"] = "0030"
    assert (
        "without SGLANG_SM120_INDEXER"
        in read(made, arm="0030", against="stock")["what"]
    )
    made["arms"][0]["context"] = 8_192
    assert "0030 against 0030 at 8K" in read(made, arm="0030", against="stock")["what"]


def test_a_context_for_a_person():
    told = [server_steps.context(tokens) for tokens in (8_192, 131_072, 1_048_576)]
    assert told == ["8K", "128K", "1M"]


def test_other_first_tokens_are_a_wrong_server():
    made = raw()
    for run in made["runs"]:
        if run["arm"] == "0030":
            run["ids"] = [[7, 1, 9], [1, 8, 9]]
    found = read(made, arm="0030", against="stock")["correctness"]
    assert not found["ok"] and "first equal in 9 of 18 rows" in found["how"]
    assert "9 of 54 before a row parts" in found["how"]


@pytest.mark.parametrize("rows", server_steps.ROWS)
def test_a_load_that_was_only_warmed_up_is_no_figure(rows):
    made = raw()
    made["runs"] = [run for run in made["runs"] if run["n"] != rows or not run["rep"]]
    with pytest.raises(figures.Unreadable, match=f"no counted run of {rows} rows"):
        read(made, arm="0030", against="stock")


def test_an_arm_that_is_not_there():
    with pytest.raises(figures.Unreadable, match="0 entries with name '0031'"):
        read(raw(), arm="0031")


@pytest.fixture
def made(own) -> Made:
    """A release whose records have the ladder."""
    recorded = Made(own)
    commit = steps(recorded.root, VALUES)["steps"][3]["commit"]
    data = raw()
    data["arms"][1]["served"]["commit"] = commit
    file = write_raw(recorded.root, data, FILE)
    for id, *select in (
        ("0000-stock", "arm=stock"),
        ("0030-indexer", "arm=0030", "against=stock"),
    ):
        words = [word for pair in select for word in ("--select", pair)]
        words += ["--reader", "server-steps", "--raw", file, "--command", "c"]
        done = recorded.run("record", id, *words)
        assert done.returncode == 0, done.stderr
    assert recorded.run("render").returncode == 0
    return recorded


def test_the_ladder_on_the_page_and_its_chart(made):
    page = made.page.read_text()
    assert "## A ladder of real servers" in page
    assert (
        "| [0000-stock](ci/checkpoints/0000-stock.json) | context 128K: 0000 | 105 | 1,000 | 2,000 | 2 |"
        in page
    )
    row = "context 128K: 0030 against 0000 | 105 (1.00x) | 2,000 (2.00x) | 8,000 (4.00x) | 2 |"
    assert row in page and f"![tok/s over the checkpoints]({ladder.CHART})" in page
    assert "| 4.00x (2,000 tok/s to 8,000 tok/s) | decode step of a real server" in page
    drawn = (made.root / ladder.CHART).read_text()
    for text in ("8,000", "105", "C=64", ">0000 stock</text>", ">0030 indexer</text>"):
        assert text in drawn
    code, told = made.verify()
    assert code == 0 and told["stale"] == []


@pytest.mark.parametrize("against", ["0030@8k", "0030-off"])
def test_a_checkpoint_beside_itself_is_no_step_of_the_chart(against):
    def drawn(*pairs):
        measured = [
            read(data, arm=arm, **({"against": over} if over else {}))
            | {"reader": "server-steps", "select": {"arm": arm, "against": over}}
            for arm, over in pairs
        ]
        return ladder.drawn({"0030-indexer": {"measurements": measured}})

    data = raw()
    data["arms"].append(data["arms"][1] | {"name": against, "env": {"A": "off"}})
    data["runs"] += [r | {"arm": against} for r in data["runs"] if r["arm"] == "0030"]
    pairs = [("0030", "stock"), ("0030", against)]
    assert drawn(*pairs) == drawn(pairs[0])
    assert drawn(pairs[1]) is None


def test_a_page_without_a_chart_names_none(own):
    recorded = Made(own)
    steps(recorded.root, VALUES)
    data = raw()
    for arm in data["arms"]:
        arm["context"] = 8_192
    file = write_raw(recorded.root, data, FILE)
    words = ("--select", "arm=stock", "--reader", "server-steps", "--raw", file)
    done = recorded.run("record", "0000-stock", *words, "--command", "c")
    assert done.returncode == 0, done.stderr
    assert recorded.run("render").returncode == 0
    page = recorded.page.read_text()
    assert "context 8K: 0000" in page and ladder.CHART not in page


def test_a_changed_chart_is_found_out(made):
    chart = made.root / ladder.CHART
    chart.write_text(chart.read_text().replace("8,000", "9,000"))
    code, told = made.verify()
    assert code == Exit.NO
    assert told["problems"] == [f"{ladder.CHART} is not what the records render"]


def test_a_changed_digit_of_the_raw_file_is_found_out(made):
    file = made.root / FILE
    file.write_text(file.read_text().replace('"tok_s": 9000', '"tok_s": 9001'))
    code, told = made.verify()
    assert code == Exit.NO
    assert any("the raw files give" in text for text in told["problems"])


def test_a_changed_digit_of_the_record_is_found_out(made):
    file = made.records / "0030-indexer.json"
    record = json.loads(file.read_text())
    before = copy.deepcopy(record)
    record["measurements"][0]["result"]["rows"]["C=16"]["gain"] = 3.0
    file.write_text(json.dumps(record | {"seal": schema.seal(record)}))
    assert before != record
    code, told = made.verify()
    assert code == Exit.NO
    assert any("result is" in text for text in told["problems"])
