"""`serving:WORKLOAD`: tokens per second of a real server of the tree, which is smoke-tested first.

The commands of this repository do it: `serve` starts the tree, `smoke` asks it, `bench serving` measures.
A tree whose server does not start, or fails the smoke test, cannot be measured; whatever else fails is
a failure of the probe.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .. import gpuload, signals
from ..serversettings import options
from ..servertree import CALLERS_PYTHONPATH
from ..workload import chosen
from . import faults, outcome

SERVER_FAILED = 6
# With these a server takes others than the first --tp-size GPUs.
_PLACING = {
    *("--base-gpu-id", "--gpu-id-step", "--pp-size", "--pipeline-parallel-size"),
    *("--dp-size", "--data-parallel-size"),
}
# Below this patch a server can't tell which build it is.
TELLS_FROM = "0025-server-info"
WORKLOADS = faults.HARNESS / "ci" / "workload.toml"


class ProbeFailed(RuntimeError):
    """A command that should not fail did."""


def measure(arguments: argparse.Namespace) -> dict:
    """Serve, ask and measure the tree at $PATCHSET_TREE. Raises Unmeasurable and ProbeFailed."""
    tree = Path(os.environ["PATCHSET_TREE"])
    workload, concurrency = chosen(WORKLOADS, arguments.case)
    given = shlex.split(arguments.serve)
    before = _beside(given)
    with tempfile.TemporaryDirectory(prefix="patchset-serving-") as scratch:
        with _server(tree, Path(scratch), given) as told:
            _smoke(tree, told["url"], shlex.split(arguments.smoke))
            case = f"{workload.id}@{concurrency}"
            result = _bench(tree, Path(scratch), told["url"], case, arguments)
    rows = [run for run in result["runs"] if run["round"]]
    speeds = [run["figures"]["output_throughput"] for run in rows]
    return {
        "value": statistics.median(speeds),
        "correct": True,
        "why": None,
        "speeds": speeds,
        "build": told["build"],
        "workload": result["workload"],
        "beside": gpuload.around(before, _beside(given)),
        # Of the server; this program's own says nothing.
        "machine": result["machine"],
    }


@contextlib.contextmanager
def _server(tree: Path, scratch: Path, given: list[str]) -> Iterator[dict]:
    """What a server of the tree says once it is ready; it is stopped afterwards."""
    defaults = [*_unless(given, "--log", scratch / "server.log"), *_port(given)]
    with open(scratch / "said.txt", "wb") as said:
        process = subprocess.Popen(
            _command("serve", "--tree", tree, "--json", *_series(), *defaults, *given),
            stdout=subprocess.PIPE,
            stderr=said,
            # It gets one signal, ours: a second one could meet it while it stops the server.
            process_group=0,
        )
    try:
        told = _told(process.stdout.readline())
        if told is None:
            process.stdout.read()
            why = _error((scratch / "said.txt").read_text("utf-8", "replace"))
            if process.wait() == SERVER_FAILED:
                raise outcome.Unmeasurable(f"its server does not start: {why}")
            raise ProbeFailed(f"serve ended with {process.returncode}: {why}")
        yield told
    finally:
        with signals.held_off():
            process.send_signal(signal.SIGTERM)
            process.wait()


def _beside(given: list[str]) -> dict | None:
    """What is in use on the server's GPUs while it is not there; of all, where it may take any."""
    named = options(given)
    size = named.get("--tp-size", "")
    first = size.isdecimal() and int(size) and not _PLACING & named.keys()
    return gpuload.settled(lambda: gpuload.of_visible(int(size) if first else None))


def _told(line: bytes) -> dict | None:
    """What a ready server says, all on one line; None for a failure, which takes several."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and "url" in told else None


def _series() -> list[str]:
    """The option with which each command reads the tree's own patches, not those beside it."""
    patches = os.environ.get("PATCHSET_PATCHES")
    return ["--patches", patches] if patches else []


def _port(given: list[str]) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return _unless(given, "--port", free.getsockname()[1])


def _unless(given: list[str], option: str, value) -> list[str]:
    """An option with a value of ours, where the user has given none."""
    theirs = any(word.split("=")[0] == option for word in given)
    return [] if theirs else [option, str(value)]


def _smoke(tree: Path, url: str, given: list[str]) -> None:
    build = _build(tree)
    if build == "stock":
        given = _without_active(given)
    command = _command(*("smoke", "--url", url, "--build", build, *_series(), *given))
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode == SERVER_FAILED:
        why = _error(done.stderr)
        raise outcome.Unmeasurable(f"its server fails the smoke test: {why}")
    if done.returncode:
        raise ProbeFailed(f"smoke ended with {done.returncode}: {_error(done.stderr)}")


def _without_active(given: list[str]) -> list[str]:
    """The options for a tree that can't tell which path a flag took."""
    if "--active" not in given:
        return given
    start = end = given.index("--active")
    end += 1
    while end < len(given) and not given[end].startswith("-"):
        end += 1
    return given[:start] + given[end:]


def _bench(
    tree: Path, scratch: Path, url: str, workload: str, arguments: argparse.Namespace
) -> dict:
    arm = f"tree={url}@{_build(tree)}"
    words = ("serving", "--arm", arm, "--workload", workload, "--smoked", "--json")
    words += tuple(_series())
    given = [*shlex.split(arguments.smoke), *shlex.split(arguments.bench)]
    command = _command("bench", *words, "--out", scratch / "runs", *given)
    # The benchmark is SGLang's own: of this tree, before an installed one.
    callers = os.environ.get(CALLERS_PYTHONPATH, "")
    paths = os.pathsep.join(filter(None, [str(tree / "python"), callers]))
    env = {**os.environ, CALLERS_PYTHONPATH: paths}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode:
        raise ProbeFailed(f"bench serving ended with {done.returncode}")
    return json.loads(done.stdout)


def _build(tree: Path) -> str:
    """What the server must say that it is: its patch, or stock where it can't tell yet."""
    names = "--format=%(trailers:key=Patch,valueonly,separator=%x2C)"
    command = ["git", "-C", str(tree), "log", names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    patches = done.stdout.splitlines()
    return patches[0] if TELLS_FROM in patches else "stock"


def _command(*words) -> list[str]:
    return [sys.executable, "-P", "-m", "patchset", *map(str, words)]


def _error(said: str) -> str:
    """The line of a failure that says what happened."""
    lines = [line for line in said.splitlines() if line.startswith("error:")]
    return lines[-1].removeprefix("error:").strip() if lines else "it said nothing"


if __name__ == "__main__":
    # Asked to end, it stops the server first.
    signals.unwind()
    outcome.main(measure)
