"""Measure the commit that is checked out, in a process of its own, and keep its figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import gpuload, processes
from ..layout import Layout
from . import plan as plans
from .plan import REPO, Figures, Plan

BEFORE, AFTER, SKIP, ABORT = 0, 1, 125, 200
_KEYS = {"value", "correct", "why"}
# A measuring program that is to end may have a server to stop, which takes STOP_SECONDS at most twice.
PATIENCE_S = 30.0


class Aborted(Exception):
    """The probe itself failed: nothing is known of the commit."""


def measured(plan: Plan, directory: Path, running: Path, commit: str) -> Figures:
    """The figures of a commit: those kept, or measured now. Raises Aborted."""
    for round in range(plan.rounds):
        found = run_round(plan, directory, running, commit, round)
        if "skip" in found:
            break
    figures = plans.figures(plan, directory, commit)
    assert figures is not None
    return figures


def run_round(
    plan: Plan, directory: Path, running: Path, commit: str, round: int | str
) -> dict:
    """One run for the commit that is checked out in running/worktree, unless it is kept.

    Raises Aborted when the program ends with anything but figures, or a reason that the tree has
    none.
    """
    found = plans.kept(directory, commit, round)
    if found is None:
        tree, reason = _tree(plan, running)
        if reason:
            found = {"skip": reason}
        else:
            given = {"PATCHSET_TREE": str(tree), **_patches(plan, running)}
            found = _run(plan, directory, given, commit, round)
        plans.keep(directory, commit, round, found)
        _warn(directory, commit, round, found.get("beside"))
    return found


def exit_status(plan: Plan, figures: Figures) -> int:
    """What `git bisect run` is told of a commit: BEFORE or AFTER the change, or SKIP.

    Of a tree whose results are wrong nothing is known: it may be on either side of the change.
    """
    if figures.skip or figures.wrong:
        return SKIP
    good = (figures.value < plan.threshold) == (plan.better == "lower")
    return AFTER if good == (plan.find == plans.GAIN) else BEFORE


def _warn(directory: Path, commit: str, round: int | str, beside: dict | None) -> None:
    if gpuload.is_busy(beside):
        tell(
            f"warning: {commit[:12]} was timed beside other work ({gpuload.said(beside)}), so its "
            "figure may be too slow: stop with Ctrl-C, free the GPU (nvidia-smi shows who is there), "
            f"remove {plans.file(directory, commit, round)} and give the same command"
        )


def _tree(plan: Plan, running: Path) -> tuple[Path, str | None]:
    """The tree to measure, and why there is none."""
    worktree = running / "worktree"
    if plan.over != REPO:
        return worktree, None
    # Only here: it needs git and the packages of the command line.
    from . import repo_tree

    return repo_tree.make(worktree, running / "base")


def _patches(plan: Plan, running: Path) -> dict[str, str]:
    """Where the tree's own patches are, if they are not the harness's and it has any."""
    if plan.over != REPO:
        return {}
    patches = Layout(running / "worktree").patches
    return {"PATCHSET_PATCHES": str(patches)} if any(patches.glob("*.patch")) else {}


def _run(
    plan: Plan, directory: Path, given: dict, commit: str, round: int | str
) -> dict:
    harness = directory / "harness"
    log_file = plans.log_file(directory, commit, round)
    with tempfile.TemporaryDirectory(prefix="patchset-probe-") as scratch:
        out = Path(scratch) / "figures.json"
        command = [plan.python, "-P", *plan.program]
        command += ["--stock", str(harness / "stock"), "--out", str(out)]
        env = {
            **os.environ,
            **plan.environment,
            **given,
            "PYTHONPATH": str(harness / "scripts"),
            # Two commits checked out in one second may have sources that a .pyc takes for the same.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with open(log_file, "wb") as log:
            status = _wait(command, env, scratch, log, plan.limit_s)
        if status is None:
            raise Aborted(f"it took more than {plan.limit_s} s: see {log_file}")
        if status or not out.exists():
            ended = f"it ended with {_ending(status)}: see {log_file}"
            raise Aborted("\n".join([ended, *_last_line(log_file)]))
        return _checked(out, log_file)


def _wait(command, env, cwd, log, limit_s: int) -> int | None:
    """The exit status, or None for one that had to be stopped."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    try:
        # A group of its own: Ctrl-C on the terminal is no second signal while it stops its server.
        process = subprocess.Popen(
            command, env=env, cwd=cwd, process_group=0, **streams
        )
    except OSError as error:
        raise Aborted(f"{command[0]} does not start: {error.strerror}") from None
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        processes.end_group(process, PATIENCE_S)


def _ending(status: int) -> str:
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit {status}" if status else "exit 0 and no figures"


def _last_line(log_file: Path) -> list[str]:
    """What a program said last, which is mostly why it ended; nothing where it said nothing."""
    return log_file.read_text(errors="replace").strip().splitlines()[-1:]


def _checked(out: Path, log_file: Path) -> dict:
    try:
        found = json.loads(out.read_text())
    except ValueError:
        raise Aborted(f"its figures are not JSON: see {log_file}") from None
    if isinstance(found, dict) and (
        found.keys() == {"skip"}
        or (_KEYS <= found.keys() and _is_number(found["value"]))
    ):
        return found
    raise Aborted(f"it gave no figure: {found!r:.200}")


def _is_number(value) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 < value < float("inf")
    )


def tell(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)
