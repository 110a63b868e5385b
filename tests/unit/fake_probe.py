"""A measuring program for tests: the figure is what a file of the tree says."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shlex
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--stock", type=Path)
parser.add_argument("--out", type=Path)
for given in ("--case", "--serve", "--smoke"):
    parser.add_argument(given)
arguments = parser.parse_args()
# A .pyc of the last commit could pass for one of this, checked out in the same second.
assert sys.dont_write_bytecode
said = (
    (Path(os.environ["PATCHSET_TREE"]) / "python/sglang/speed.txt").read_text().split()
)
log = Path(os.environ["FAKE_PROBE_LOG"])
with log.open("a") as file:
    file.write(" ".join(said) + "\n")
runs = log.read_text().splitlines().count(" ".join(said))
word, *rest = said
found = {"correct": True, "why": None, "machine": {"cpu": "test"}}
patches = os.environ.get("PATCHSET_PATCHES")
if patches:
    found["step"] = (Path(patches) / "0010-step.patch").read_text()
if word == "skip":
    found = {"skip": "it does not build"}
elif word == "wrong":
    found |= {"value": float(rest[0]), "correct": False, "why": "scores differ"}
elif word == "exit":
    sys.exit(int(rest[0]))
elif word == "raise":
    raise ZeroDivisionError("of the probe")
elif word == "garbage":
    arguments.out.write_text("{")
    sys.exit(0)
elif word == "nothing":
    sys.exit(0)
elif word == "shape":
    found |= {"value": None}
elif word == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif word == "hang":
    time.sleep(600)
elif word == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
elif word == "pause":
    # Long enough to be interrupted in, the first time.
    time.sleep(600 if runs == 1 else 0)
    found |= {"value": float(rest[0])}
elif word == "serve":
    words = f"--python {shlex.quote(sys.executable)} --model-path m --tp 1"
    given = ["--case", "sweep-256-256", f"--serve={words}"]
    sys.argv[1:] = [*given, "--out", str(arguments.out)]
    runpy.run_module("patchset.probe.serving_speed", run_name="__main__")
elif word == "runs":
    # One for each run, the last from then on: a figure, "skip", or "fail".
    which = rest[min(runs, len(rest)) - 1]
    if which == "fail":
        sys.exit(3)
    found = (
        {"skip": "it is gone"} if which == "skip" else {**found, "value": float(which)}
    )
elif word == "gpu":
    # A load for each run, in MiB ("none": not told), and the figure: MIB:FIGURE.
    load, _, figure = rest[min(runs, len(rest)) - 1].partition(":")
    if load == "fail":
        sys.exit(3)
    beside = {"gpu": "GPU 0", "memory_mib": 0, "utilisation": 0}
    beside = None if load == "none" else {**beside, "memory_mib": int(load)}
    found |= {"value": float(figure), "beside": beside}
elif word == "smi":
    # What nvidia-smi tells.
    from patchset import gpuload

    found |= {"value": float(rest[min(runs, len(rest)) - 1])}
    found["beside"] = gpuload.of_visible()
elif word == "noisy":
    # A round each.
    found |= {"value": float(rest[(runs - 1) % len(rest)])}
else:
    found |= {"value": float(word)}
arguments.out.write_text(json.dumps(found))
