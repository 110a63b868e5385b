"""What docs/measured.md says of a bisect on a GPU against what it said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from patchset.bisect import probes, second_look
from patchset.bisect.history import Commit
from patchset.bisect.plan import Figures, Plan

ROOT = Path(__file__).resolve().parents[2]
RAW = ROOT / "ci/checkpoints/raw"
STATED = " ".join((ROOT / "docs/measured.md").read_text().split())


def test_the_patch_that_a_bisect_named_on_a_gpu():
    told = (RAW / "h200-bisect-decode/bisect.txt").read_text()
    time = {
        name: float(us.replace(",", ""))
        for name, us in re.findall(r"^\w{12}  (\S+) +([\d,.]+) us ", told, re.M)
    }
    assert len(time) == 6
    threshold = float(re.search(r"^threshold +(\S+) us", told, re.M)[1])
    assert re.search(r"^gain +\w{40}  0060-decode-mma$", told, re.M)
    later = [name >= "0060" for name in time]
    assert [us < threshold for us in time.values()] == later
    release, first = time["0000-stock"], time["0060-decode-mma"]
    assert (
        f"{release:,.0f} us at the release, {first:.0f} us at 0060, threshold "
        f"{threshold:.0f} us" in STATED
    )


def speeds(name: str) -> dict[str, float]:
    """Tokens a second of each step, by the patch that it stands at."""
    made = json.loads((RAW / "h200-bisect-serving" / f"{name}.json").read_text())
    return {each["name"][:4]: each["values"][0] for each in made["steps"]}


def test_the_patch_that_a_bisect_of_servers_named_on_a_gpu():
    result = json.loads((RAW / "h200-bisect-serving/result.json").read_text())
    assert (result["name"], result["skipped"]) == ("0060-decode-mma", [])
    found, threshold = speeds("steps"), result["threshold"]
    assert found["0060"] > threshold > max(found["0050"], found["0059"])
    assert (
        f"{found['0050']:,.0f} and {found['0059']:,.0f} tok/s, one at 0060 "
        f"{found['0060']:,.0f}, threshold {threshold:,.0f}" in STATED
    )
    told = (RAW / "h200-bisect-serving/bisect.txt").read_text()
    assert re.search(r"^gain +\w{40}  0060-decode-mma$", told, re.M)


def test_a_bisect_beside_other_jobs_named_a_wrong_patch():
    alone, beside = speeds("steps"), speeds("steps-beside-other-jobs")
    assert (
        f"{beside['0050']:,.0f} tok/s instead of {alone['0050']:,.0f}, so the threshold "
        f"was {(beside['0050'] * beside['0060']) ** 0.5:,.0f} and 0059 with "
        f"{beside['0059']:,.0f}" in STATED
    )


def steps(name: str) -> tuple[list[Commit], dict[str, Figures]]:
    """The commits of a recorded bisect, which is of before anything else was looked for, and their figures."""
    made = json.loads((RAW / f"{name}.json").read_text())["steps"]
    commits = [Commit(s["commit"], s["tree"], s["name"], "") for s in made]
    return commits, {s["commit"]: Figures(s["values"], s["wrong"]) for s in made}


def doubted(plan: Plan, name: str) -> list[str]:
    commits, known = steps(name)
    found = second_look.doubtful(plan, probes.find(plan.probe), commits, known)
    return [commit.name for commit in found]


def test_todays_bisect_would_have_doubted_the_wrong_patch_and_not_the_right_one():
    folder = "h200-bisect-serving"
    alone = Plan(**json.loads((RAW / folder / "plan.json").read_text()))
    assert doubted(alone, f"{folder}/steps") == []
    commits, first = steps(f"{folder}/steps-beside-other-jobs")
    ends = first[alone.old].value, first[alone.new].value
    beside = replace(alone, threshold=(ends[0] * ends[1]) ** 0.5)
    assert doubted(beside, f"{folder}/steps-beside-other-jobs") == ["0050-indexer-topk"]
    # As the clean run has it.
    _, clean = steps(f"{folder}/steps")
    second = {**first, alone.old: clean[alone.old]}
    told = second_look.changed(
        beside, probes.find(beside.probe), commits, first, second
    )
    assert told == [
        "threshold 1,237 tok/s, then 2,841 tok/s",
        "0059-kernels-decode, 2,467 tok/s: after, then before",
    ]
    once, again = (f"{figures[alone.old].value:,.0f}" for figures in (first, clean))
    assert f"first try ({once}, 2,467 and 3,152 at 0060) make it measure 0050" in STATED
    assert f"0050 once more: with {again} it ends as *unclear*" in STATED
