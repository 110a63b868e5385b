"""What docs/measured.md says of the commands as a new user types them against what they said."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs/measured.md").read_text().split())
SAID = (ROOT / "ci/checkpoints/raw/commands/run.txt").read_text()


def test_what_the_commands_said():
    typed = re.findall(r"^\$ (.*)", SAID, re.M)
    exits = re.findall(r"^exit (\d+)$", SAID, re.M)
    *codes, last = sorted(set(exits))
    assert len(typed) == len(exits)
    shown = f"{len(typed)} calls, with exit codes {', '.join(codes)} and {last}"
    assert f"{shown} and no traceback" in PAGE and "Traceback" not in SAID
    scripts = ("serve.sh", "smoke.sh", "bench.sh serving", "bundle.sh")
    for command in (*(f"scripts/{name}" for name in scripts), "python3 ci/"):
        assert any(line.startswith(command) for line in typed), command


def test_every_error_says_what_comes_next():
    for call in SAID.split("$ ")[1:]:
        if "\nexit 0" in call or "usage: " in call or "\nexit 1" in call:
            continue
        assert re.search(r"^state: ", call, re.M), call
        assert re.search(r"^next:  ", call, re.M), call
