"""What docs/measured.md says of whole servers of two ranks against the raw files."""

from __future__ import annotations

import re
from pathlib import Path

import measured_two_ranks as ranks

PAGE = (Path(__file__).resolve().parents[2] / "docs/measured.md").read_text()


def test_local_heads_against_padded_ones():
    rest = PAGE.partition("Whole servers of two ranks")[2]
    table = re.search(r"(?:^\|.*\n)+", rest, re.M)[0].splitlines()[2:]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert shown and shown == ranks.lines()


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
            assert ours == (arm["kernel"] == "ours")


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
