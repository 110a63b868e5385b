"""What docs/measured.md says of a server from a bundle against the raw files."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()
STATED = " ".join(PAGE.split())
AT_1M = ROOT / "ci/checkpoints/raw/server-h200-1m"
BUNDLE = ROOT / "ci/checkpoints/raw/server-h200-bundle"


def test_what_was_served_from_a_bundle():
    said = (BUNDLE / "run.txt").read_text()
    for words in (
        "[6] install exit 0",
        "install again, exit 4",
        "a damaged part, exit 4",
        "ready  http://127.0.0.1:33900 after 49 s",
        "23 of 23 patches",
        "left: 0",
    ):
        assert words in said
    assert "\n0\n" in said  # modules of SGLang that the server compiled
    for words in ("needed 6 s", "ready after 49 s", "`23 of 23 patches`"):
        assert words in STATED
    told = json.loads((BUNDLE / "smoke.json").read_text())
    checks = {check["check"]: check for check in told["checks"]}
    assert all(check["ok"] for check in checks.values())
    needles = [
        tuple(map(int, re.match(r"(\d+) of (\d+) texts", check["detail"]).groups()))
        for name, check in checks.items()
        if name.startswith("needles")
    ]
    right, asked = map(sum, zip(*needles))
    assert (
        f"passed {len(checks)} checks: 72 of 72 products, {right} of {asked}" in STATED
    )
    assert checks["products"]["detail"].startswith("72 of 72")


def test_the_whole_series_passed_todays_rule_twice():
    made = json.loads((AT_1M / "shake.json").read_text())
    details = [
        check["detail"]
        for check in json.loads((BUNDLE / "smoke.json").read_text())["checks"]
    ]
    (command,) = (c for c in made["commands"] if c["tag"] == "smoke-m-ours")
    assert command["exit"] == 0 and "smoke   passed, 15 checks" in command["stdout"]
    details += command["stderr"].splitlines()
    within = re.findall(r"75% of the gaps within (\d\.\d+)", "\n".join(details))
    assert len(within) == 16
    assert f"each group's gaps within {max(map(float, within)):.2f}" in STATED
