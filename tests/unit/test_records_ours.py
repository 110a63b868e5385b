"""The records of this repository itself."""

from __future__ import annotations

import re

from made_wheel import ROOT
from patchset.records import history, ladder, schema, sources, sums, verify
from patchset.series import RELEASE, load_series

RECORDS = ROOT / "ci" / "checkpoints"


def test_every_record_of_the_repository_is_what_its_raw_files_give():
    known = schema.load_all(RECORDS)
    assert sums.problems(RECORDS / "raw", sources.names(known.values())) == []
    for id, found in known.items():
        for measurement in found["measurements"]:
            assert verify.recomputed(ROOT, measurement) == [], id


def test_the_chart_is_what_the_records_draw():
    known = schema.load_all(RECORDS)
    drawn = history.drawn(known)
    assert (ROOT / history.CHART).read_text() == drawn
    of_servers = ladder.drawn(known)
    assert of_servers is None or (ROOT / ladder.CHART).read_text() == of_servers
    for value in ("11.5", "29.7", "531.7", "58.7", "509"):
        assert f">{value}</text>" in drawn


def test_each_patch_has_a_row_of_a_server_over_the_one_right_below_it():
    known = schema.load_all(RECORDS)
    series = load_series(ROOT / "patches" / "0.5.13")
    page = (ROOT / "CHECKPOINTS.md").read_text()
    names = [RELEASE, *(patch.name for patch in series.patches)]
    counted = {}
    for below, name in zip(names, names[1:]):
        over = f"context 8K: {name[:4]} against {below[:4]}"
        (found,) = (
            each
            for id, each in ladder.of({name: known[name]})
            if each["result"]["compared"].endswith(over)
        )
        assert f"{found['what']}; " in page
        assert found["correctness"]["ok"], name
        counted[name] = min(
            load[arm]["n"]
            for load in found["result"]["rows"].values()
            for arm in ("candidate", "parent")
        )
    assert min(counted.values()) >= 5, counted


def test_each_row_of_the_ladder_says_how_to_see_it_again():
    page = (ROOT / "CHECKPOINTS.md").read_text()
    before = page.partition("## A ladder of real servers")[2]
    made = set(re.findall(r"^python3 ci/slice_model.py flash \d+ (\S+)", before, re.M))
    for id, each in ladder.of(schema.load_all(RECORDS)):
        servers, _, asked = each["command"].partition("scripts/bench.sh steps ")
        assert re.findall(r"--model-path (\S+) ", servers)[0] in made, id
        ports = re.findall(r"--arm \S+=http://127\.0\.0\.1:(\d+)@", asked)
        # Ports above that may be taken by an outgoing connection.
        assert ports and all(int(port) < 32_768 for port in ports), id


def test_the_campaigns_figures_are_those_that_were_reported():
    section = history.section(schema.load_all(RECORDS))
    said = [
        "| SIMT baseline | none | 11.5 | 26.6 (derived) | 29.7 | none |",
        "| MMA attention kernel | none | 8.1 | none | 59.6 | none |",
        "| split-K and bf16 | none | 33.5 | none | 64.4 | none |",
        "| 8K | 58.9 | 285.1 | 531.7 | none |",
        "| 128K | 58.7 | 279 | 509 | `598928d75` |",
        "17.9x (29.7 to 531.7): the kernels gave 2.17x",
        "capping the context at 8K 8.26x",
        "SIMT attention 57.1 %, glue 69 %",
    ]
    for text in said:
        assert text in section
    campaign = [
        record for id, record in schema.load_all(RECORDS).items() if "campaign" in id
    ]
    assert len(campaign) == 6
    assert {m["status"] for record in campaign for m in record["measurements"]} == {
        "reported"
    }
