"""Raw files and records made for a test, through the command that makes real ones."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from made_wheel import patchset
from patchset import gitenv
from patchset.records import sums

RAW = "ci/checkpoints/raw/speed/steps.json"


def steps(root: Path, values: dict[str, float], **facts) -> dict:
    """The raw file of a measured series: a value for each commit of the release made below root."""
    made = root / "made"
    rows = gitenv.text(
        made, "log", "--reverse", "--format=%H %T %(trailers:key=Patch,valueonly)"
    )
    found = []
    for row in filter(None, rows.splitlines()):
        commit, tree, *name = row.split()
        name = name[0] if name else "0000-stock"
        found.append(
            {
                "name": name,
                "commit": commit,
                "tree": tree,
                "values": [values[name]],
                "wrong": None,
                "skip": None,
                "machine": {"cpu": "x86_64", "torch": "2.13.0"},
            }
        )
    return {
        "probe": "fake:speed",
        "what": "speed of a test",
        "unit": "us",
        "better": "lower",
        "date": "2026-11-29T12:00:00+00:00",
        "harness_sha256": "0" * 64,
        "steps": found,
        **facts,
    }


VALUES = {
    "0000-stock": 100,
    "0010-kernels": 100,
    "0020-environ": 50,
    "0030-indexer": 10,
}


def write_raw(root: Path, raw: dict, name: str = RAW) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw, indent=1))
    return path


def record(root: Path, id: str) -> Path:
    """Record every step of the release below root; the file of one record."""
    raw = write_raw(root, steps(root, VALUES))
    (wheel,) = root.glob("*.whl")
    where = ("--root", root, "--wheel", wheel)
    done = patchset("checkpoint", "record", "--steps", raw, *where)
    assert done.returncode == 0, done.stderr
    assert not sums.unlisted(root / "ci/checkpoints/raw", ())
    return root / "ci" / "checkpoints" / f"{id}.json"


class Made:
    """A release with records, and the commands over it."""

    def __init__(self, release):
        self.root = release.wheel.parent
        self.release = release
        self.where = ("--root", self.root, "--wheel", release.wheel)
        self.records = self.root / "ci" / "checkpoints"
        self.page = self.root / "CHECKPOINTS.md"

    def run(self, *words):
        return patchset("checkpoint", *words, *self.where)

    def verify(self) -> tuple[int, dict]:
        done = self.run("verify", "--json")
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)


def way_back(said: str) -> list[str]:
    """The `git checkout` of a next line, as words."""
    line = said.partition("git checkout -- ")[2]
    words = shlex.split(line.split(";")[0].split("\n")[0])
    return [str(Path(word).resolve()) for word in words]


def put_back(made: Made, said: str) -> None:
    gitenv.run(made.root, "checkout", "--", *way_back(said))
