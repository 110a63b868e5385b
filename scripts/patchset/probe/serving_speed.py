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

from ..servertree import CALLERS_PYTHONPATH
from . import outcome

SERVER_FAILED = 6
# Below this patch a server can't tell which build it is.
TELLS_FROM = "0025-server-info"


class ProbeFailed(RuntimeError):
    """A command that should not fail did."""


def measure(arguments: argparse.Namespace) -> dict:
    """Serve, ask and measure the tree at $PATCHSET_TREE. Raises Unmeasurable and ProbeFailed."""
    tree = Path(os.environ["PATCHSET_TREE"])
    with tempfile.TemporaryDirectory(prefix="patchset-serving-") as scratch:
        with _server(tree, Path(scratch), shlex.split(arguments.serve)) as told:
            _smoke(tree, told["url"], shlex.split(arguments.smoke))
            result = _bench(tree, Path(scratch), told["url"], arguments)
    rows = [
        run
        for run in result["runs"]
        if run["round"] and run["concurrency"] == _concurrency(result, arguments.case)
    ]
    speeds = [run["figures"]["output_throughput"] for run in rows]
    return {
        "value": statistics.median(speeds),
        "correct": True,
        "why": None,
        "speeds": speeds,
        "build": told["build"],
        "workload": result["workload"],
    }


@contextlib.contextmanager
def _server(tree: Path, scratch: Path, given: list[str]) -> Iterator[dict]:
    """What a server of the tree says once it is ready; it is stopped afterwards."""
    defaults = [*_unless(given, "--log", scratch / "server.log"), *_port(given)]
    with open(scratch / "said.txt", "wb") as said:
        process = subprocess.Popen(
            _command("serve", "--tree", tree, "--json", *defaults, *given),
            stdout=subprocess.PIPE,
            stderr=said,
        )
    try:
        line = process.stdout.readline()
        if not line:
            why = _error((scratch / "said.txt").read_text("utf-8", "replace"))
            if process.wait() == SERVER_FAILED:
                raise outcome.Unmeasurable(f"its server does not start: {why}")
            raise ProbeFailed(f"serve ended with {process.returncode}: {why}")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _port(given: list[str]) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return _unless(given, "--port", free.getsockname()[1])


def _unless(given: list[str], option: str, value) -> list[str]:
    """An option with a value of ours, where the user has given none."""
    theirs = any(word.split("=")[0] == option for word in given)
    return [] if theirs else [option, str(value)]


def _smoke(tree: Path, url: str, given: list[str]) -> None:
    command = _command("smoke", "--url", url, "--build", _build(tree), *given)
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode == SERVER_FAILED:
        why = _error(done.stderr)
        raise outcome.Unmeasurable(f"its server fails the smoke test: {why}")
    if done.returncode:
        raise ProbeFailed(f"smoke ended with {done.returncode}: {_error(done.stderr)}")


def _bench(tree: Path, scratch: Path, url: str, arguments: argparse.Namespace) -> dict:
    workload = arguments.case.partition("@")[0]
    arm = f"tree={url}@{_build(tree)}"
    words = ("serving", "--arm", arm, "--workload", workload, "--json")
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


def _concurrency(result: dict, case: str) -> int:
    """That of WORKLOAD@C, or the workload's last."""
    asked = case.partition("@")[2]
    there = result["workload"]["concurrency"]
    if asked and int(asked) not in there:
        raise ProbeFailed(f"the workload has C={there}, and not C={asked}")
    return int(asked) if asked else there[-1]


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
    outcome.main(measure)
