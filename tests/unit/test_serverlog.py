"""The cause of a server's end, found in logs as SGLang writes them."""

from __future__ import annotations

import pytest

from patchset import serverlog

CAUGHT = """\
[2026-11-29 17:22:31] Can not initialize OpenAIServingResponses, error: Traceback (most recent call last):
  File "http_server.py", line 372, in lifespan
    from x import y
ModuleNotFoundError: No module named 'openai_harmony'
"""
SCHEDULER = """\
[2026-11-29 17:22:33 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 3000, in run_scheduler_process
    scheduler = Scheduler()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.

[2026-11-29 17:22:33] Received sigquit from a child process. It usually means the child failed.
"""
MAIN = """\
Traceback (most recent call last):
  File "launch_server.py", line 66, in <module>
    run_server(server_args)
RuntimeError: Rank 0 scheduler died during initialization (exit code: -3).
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in <module>
    raise FlagError(
sglang.srt.layers.sm120.dispatch.FlagError: SGLANG_SM120_TOPK=on needs a CUDA GPU
"""
ABORTED = """\
[2026-11-29 19:51:48] sm_120 top-k: exact select in one launch (SGLANG_SM120_TOPK=on, cuda 9.0)
TileLang Error: libnvrtc symbols not found globally.
Fatal Python error: Aborted

Current thread 0x00007fe2b869d140 (most recent call first):
  File "cuda_cpp.py", line 39 in cubin
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DIED = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3)."
FLAG = (
    "sglang.srt.layers.sm120.dispatch.FlagError: SGLANG_SM120_TOPK=on needs a CUDA GPU"
)


@pytest.mark.parametrize(
    "log, cause",
    [
        ("", None),
        ("[2026-11-29 17:00:00] all is well\n", None),
        (MAIN, DIED),
        (CHAINED, FLAG),
        (
            CAUGHT + ABORTED + MAIN,
            "Fatal Python error: Aborted TileLang Error: libnvrtc symbols not found globally.",
        ),
        # The scheduler's own comes before what follows from it, and both before a caught one.
        (CAUGHT + SCHEDULER + MAIN, OOM),
        (CAUGHT + MAIN, DIED),
        (CAUGHT, "ModuleNotFoundError: No module named 'openai_harmony'"),
        (
            "launch_server.py: error: unrecognized arguments: --contxt\n",
            "launch_server.py: error: unrecognized arguments: --contxt",
        ),
        (
            "/usr/bin/python3: No module named sglang\n",
            "/usr/bin/python3: No module named sglang",
        ),
        (
            "[2026-11-29 17:00:00] ERROR: [Errno 98] bind: address already in use\n",
            "ERROR: [Errno 98] bind: address already in use",
        ),
    ],
)
def test_the_cause(log, cause):
    assert serverlog.cause(log.splitlines()) == cause


def test_a_traceback_that_is_cut_off_is_no_cause_but_does_no_harm():
    cut = MAIN.splitlines()[:-1]
    assert serverlog.cause(cut) is None
    assert serverlog.cause([*SCHEDULER.splitlines(), *cut]) == OOM


def test_the_stage():
    log = ["Load weight begin.", "Load weight end.", "Capture cuda graph begin."]
    assert [serverlog.stage(log[:n]) for n in range(4)] == [
        "starting",
        "loading weights",
        "weights are loaded",
        "capturing CUDA graphs",
    ]


@pytest.mark.parametrize(
    "cause, killed, said",
    [
        ("/usr/bin/python3: No module named sglang", False, "--python PY"),
        ("ModuleNotFoundError: No module named 'orjson'", False, "dependencies"),
        ("ImportError: cannot import name 'x' from 'y' (z.py)", False, "dependencies"),
        (None, True, "memory"),
        ("RuntimeError: no room", True, "memory"),
        ("Killed", False, "memory"),
        (None, False, "look into that log"),
        ("RuntimeError: no room", False, "remove the cause"),
        (
            "RuntimeError: decode.cu did not compile with --gpu-architecture=sm_120a --std=c++17 "
            "(NVRTC_ERROR_INVALID_OPTION):",
            False,
            "cuda-python 13",
        ),
    ],
)
def test_the_remedy(cause, killed, said):
    assert said in serverlog.remedy(cause, killed)
