"""A signal that comes while an object is deleted, where Python forgets what is raised."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kernel_arms import ROOT

PROGRAM = """
import os, signal, time
from patchset import signals
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass
signals.unwind()
held = Held()
try:
    del held
    print("went on", flush=True)
    time.sleep(10)
    print("to its end")
except KeyboardInterrupt as stopped:
    print("stopped by", stopped.args[0])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_in_a_deletion_is_not_lost(name):
    number = getattr(signal, name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=30,
        # A caller that ignores one (nohup) would hand that on.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert done.stdout == f"went on\nstopped by {int(number)}\n"
    assert done.stderr == ""


def test_what_else_is_raised_there_is_printed():
    program = "from patchset import signals\nsignals.unwind()\nclass A:\n def __del__(self): raise OSError('full')\nA()\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "OSError: full" in done.stderr and done.returncode == 0
