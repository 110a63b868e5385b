"""Records of servers' decode steps: read, shown beside each other, drawn, and found out when changed."""

from __future__ import annotations

import copy
import json

import pytest

from made_records import VALUES, Made, steps, write_raw
from patchset.errors import Exit
from patchset.records import figures, ladder, rows, schema, server_steps, stale

FILE = "ci/checkpoints/raw/server-made/128k.json"
# ms of a step in a warm-up and in two counted lists, by rows.
STEPS = {
    "stock": {1: (90, 10, 10), 16: (90, 16, 16), 64: (90, 32, 32)},
    "0030": {1: (9, 8, 10), 16: (9, 8, 8), 64: (9, 7, 9)},
}
BEST = [[[7, -1.0], [8, -1.5]]] * 3
SAID = {"ids": [7, 7, 7], "best": BEST}


def raw() -> dict:
    """What `bench.sh steps` writes."""
    arms = [
        {
            "name": name,
            "against": against,
            "build": {
                "release": "0.5.13",
                "checkpoint": checkpoint,
                "commit": "c" * 40 if against else None,
                "state": "partly" if against else "stock",
                "paths": {},
            },
            "settings": {
                "served_model_name": "flash-4-layers-random",
                "context_length": 131_072,
            },
            "model": {"weights": "random", "layers": 4, "expert_width": 64},
        }
        for name, checkpoint, against in (
            ("stock", "stock", None),
            ("0030", "0030-indexer", "stock"),
        )
    ]
    return {
        "what": "decode steps of running servers that take turns",
        "date": "2026-11-30",
        "machine": {"gpu": "NVIDIA H200", "torch": "2.11.0"},
        "notes": ["FlashInfer is absent", "weights are random"],
        "load": {
            "input_tokens": 32,
            "output_tokens": {"1": 65, "16": 33, "64": 17},
        },
        "arms": arms,
        "runs": [
            {"arm": arm, "rows": rows, "rep": rep, "step_ms": value}
            for arm, by_rows in STEPS.items()
            for rows, values in by_rows.items()
            for rep, value in enumerate(values)
        ],
        "answers": [
            {"arm": arm, "rows": rows, "said": [SAID] * rows}
            for arm in STEPS
            for rows in server_steps.ROWS
        ],
        "profiles": [
            {"arm": arm, "rows": rows, "turn": turn, "busy_us": [time, time + turn]}
            for arm, time in (("stock", 3000), ("0030", 1500))
            for rows in server_steps.ROWS
            for turn in range(3)
        ],
        "kernel_names": [],
        "failed": [],
    }


def read(raw: dict, **select: str) -> dict:
    return server_steps.read({"all": raw}, select)


def test_an_arm_over_the_one_below_it():
    found = read(raw(), arm="0030", against="stock")
    result = found["result"]
    # Repetition 0 warms up; tok/s are rows over a step.
    lists = {"min": 7111.11, "max": 9142.86, "n": 2}
    assert result["candidate"] == {"median": 8126.98, **lists}
    assert (result["parent"]["median"], result["gain"]) == (2000, 4.06349)
    assert result["rows"]["C=1"]["parent"]["median"] == 100
    assert result["rows"]["C=16"]["gain"] == 2
    assert "64 rows, 4 layers, context 128K: 0030 against 0000" in found["what"]
    assert found["commit"] == "c" * 40 and found["correctness"]["ok"]
    assert "243 tokens equal, 0 of 81 answers parted" in found["correctness"]["how"]
    assert "FlashInfer is absent" in found["notes"] and result["is_step"]


def test_the_gpus_own_time():
    result = read(raw(), arm="0030", against="stock")["result"]
    gpu = result["gpu"]["C=1"]
    assert gpu["candidate"] == {"median": 1500, "min": 1500, "max": 1502, "n": 6}
    assert (gpu["unit"], gpu["gain"]) == ("us", 2)
    assert "; GPU time 2.00x" in rows.gain(result)


@pytest.mark.parametrize("arm", ["0030", "stock"])
def test_an_arm_without_a_profile_has_no_time_of_the_gpu(arm):
    made = raw()
    made["profiles"] = [each for each in made["profiles"] if each["arm"] != arm]
    result = read(made, arm="0030", against="stock")["result"]
    assert result["gpu"] == dict.fromkeys(("C=1", "C=16", "C=64"))
    assert "GPU" not in rows.gain(result)


def test_the_release_alone_has_no_gain():
    found = read(raw(), arm="stock")
    assert found["result"]["gain"] is None and found["correctness"] is None
    assert found["result"]["rows"]["C=1"]["candidate"]["median"] == 100
    assert found["result"]["gpu"]["C=64"]["candidate"]["n"] == 6
    assert found["result"]["is_step"]
    assert not read(raw(), arm="0030")["result"]["is_step"]


def test_what_tells_two_arms_of_one_checkpoint_apart():
    made = raw()
    made["arms"][0]["build"]["checkpoint"] = "0030-indexer"
    what = read(made, arm="0030", against="stock")["what"]
    assert "0030 against 0030 (0030 against stock)" in what
    made["arms"][0]["settings"]["context_length"] = 8_192
    found = read(made, arm="0030", against="stock")
    assert "0030 against 0030 at 8K" in found["what"]
    assert not found["result"]["is_step"]
    made["arms"][0]["build"]["checkpoint"] = "stock"
    assert not read(made, arm="0030", against="stock")["result"]["is_step"]
    made["arms"][0]["settings"]["context_length"] = 131_072
    made["arms"][0]["model"] = {"weights": "random", "layers": 43, "expert_width": 64}
    found = read(made, arm="0030", against="stock")
    assert "against 0000 with 43 layers" in found["what"]
    assert not found["result"]["is_step"]


def test_a_context_for_a_person():
    told = [server_steps.context(tokens) for tokens in (8_192, 131_072, 1_048_576)]
    assert told == ["8K", "128K", "1M"]


@pytest.mark.parametrize("others, ok", [(3, True), (8, False)])
def test_answers_are_judged_for_each_number_of_rows(others, ok):
    made = raw()
    other = {"ids": [9, 9, 9], "best": [[[9, -1.0], [8, -1.5]]] * 3}
    for answer in made["answers"]:
        if answer["arm"] == "0030" and answer["rows"] == 16:
            answer["said"] = [SAID] * (16 - others) + [other] * others
    found = read(made, arm="0030", against="stock")["correctness"]
    assert found["ok"] is ok
    if ok:
        assert f"{3 * (81 - 3)} tokens equal, 3 of 81 answers parted" in found["how"]
        assert found["why"] is None
    else:
        why = "lists of 16 rows: 8 of 32 are off by more than 0.1"
        assert found["why"].startswith(why) and "within" not in found["how"]


def test_an_arm_that_was_not_asked_for_tokens_proves_nothing():
    made = raw()
    made["answers"] = []
    with pytest.raises(figures.Unreadable, match="were not asked for tokens"):
        read(made, arm="0030", against="stock")


@pytest.mark.parametrize("arm", ["0030", "stock"])
def test_an_arm_that_failed_is_no_figure(arm):
    made = raw()
    made["failed"] = [{"arm": arm, "what": "no server answers", "where": None}]
    with pytest.raises(figures.Unreadable, match=f"{arm} failed while it was measured"):
        read(made, arm="0030", against="stock")


@pytest.mark.parametrize("count", server_steps.ROWS)
def test_a_load_that_was_only_warmed_up_is_no_figure(count):
    made = raw()
    made["runs"] = [
        run for run in made["runs"] if run["rows"] != count or not run["rep"]
    ]
    with pytest.raises(figures.Unreadable, match=f"no counted run of {count} rows"):
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
    data["arms"][1]["build"]["commit"] = commit
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
    assert "flash 4 build/slice-4 --expert-width 64" in page
    assert (
        "| 4 layers, context 128K: 0000 | 100 | 1,000 | 2,000 | 3,000 | 3,000 | 3,000 | 2 |"
        in page
    )
    row = "0030 against 0000 | 112 (1.12x) | 2,000 (2.00x) | 8,127 (4.06x) |"
    assert f"{row} 1,500 (2.00x) | 1,500 (2.00x) | 1,500 (2.00x) | 2 |" in page
    assert f"![tok/s over the checkpoints]({ladder.CHART})" in page
    gain = "| 4.06x (2,000 tok/s to 8,127 tok/s); GPU time 2.00x | decode step of a"
    assert gain in page
    drawn = (made.root / ladder.CHART).read_text()
    for text in ("8,127", "100", "C=64", ">0000 stock</text>", ">0030 indexer</text>"):
        assert text in drawn
    code, told = made.verify()
    assert code == 0 and told["stale"] == []


def test_flags_that_were_forced_are_named(made):
    known = schema.load_all(made.records)
    today = stale.Now({}, {}, {}, {})
    assert "export" not in ladder.section(known, today)
    (measured,) = known["0030-indexer"]["measurements"][:1]
    measured["flags"] = {
        flag: {"path": f"x: some path ({flag}={word}, cuda 9.0)", "ours": word == "on"}
        for flag, word in (("SGLANG_B", "on"), ("SGLANG_A", "on"), ("SGLANG_C", "off"))
    } | {"SGLANG_D": None}
    section = ladder.section(known, today)
    assert "\nexport SGLANG_A=on SGLANG_B=on\n```\n" in section


def test_a_checkpoint_beside_itself_is_no_step_of_the_chart():
    def drawn(*pairs):
        measured = [
            read(data, arm=arm, **({"against": over} if over else {}))
            | {"reader": "server-steps"}
            for arm, over in pairs
        ]
        return ladder.drawn({"0030-indexer": {"measurements": measured}})

    data = raw()
    near = copy.deepcopy(data["arms"][1]) | {"name": "0030-8k"}
    near["settings"]["context_length"] = 8_192
    data["arms"].append(near)
    for part in ("runs", "answers"):
        data[part] += [
            each | {"arm": "0030-8k"} for each in data[part] if each["arm"] == "0030"
        ]
    pairs = [("0030", "stock"), ("0030", "0030-8k")]
    assert drawn(*pairs) == drawn(pairs[0])
    assert drawn(pairs[1]) is None


def test_a_page_without_a_chart_names_none(own):
    recorded = Made(own)
    steps(recorded.root, VALUES)
    data = raw()
    for arm in data["arms"]:
        arm["settings"]["context_length"] = 8_192
    file = write_raw(recorded.root, data, FILE)
    words = ("--select", "arm=stock", "--reader", "server-steps", "--raw", file)
    done = recorded.run("record", "0000-stock", *words, "--command", "c")
    assert done.returncode == 0, done.stderr
    assert recorded.run("render").returncode == 0
    page = recorded.page.read_text()
    assert "4 layers, context 8K: 0000" in page and ladder.CHART not in page


def test_a_changed_chart_is_found_out(made):
    chart = made.root / ladder.CHART
    chart.write_text(chart.read_text().replace("8,127", "9,127"))
    code, told = made.verify()
    assert code == Exit.NO
    assert told["problems"] == [f"{ladder.CHART} is not what the records render"]


def test_a_changed_digit_of_the_raw_file_is_found_out(made):
    file = made.root / FILE
    file.write_text(file.read_text().replace('"step_ms": 7\n', '"step_ms": 6\n'))
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
    assert any("result.rows.C=16.gain is 3.0" in text for text in told["problems"])


def test_a_step_that_is_stale_says_so_in_the_ladder_too(made):
    known = schema.load_all(made.root / "ci/checkpoints")
    for id, each in ladder.of(known):
        other = stale.Now({}, {id: "f" * 40}, {}, {})
        why = stale.since(id, each, other)
        assert (why is not None) == (each["commit"] is not None)
        assert ladder.section(known, other).count(f"; **{why}** |") == bool(why)
    as_measured = {id: each["commit"] for id, each in ladder.of(known)}
    same = stale.Now({}, as_measured, {}, {})
    assert any(as_measured.values())
    assert "**stale" not in ladder.section(known, same)
