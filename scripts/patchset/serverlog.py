"""What a server's log says: how far it has come, and what it died of."""

from __future__ import annotations

import re
from collections.abc import Sequence

_STAGES = (
    ("Load weight begin", "loading weights"),
    ("Load weight end", "weights are loaded"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("Capture cuda graph end", "CUDA graphs are captured"),
    ("Uvicorn running", "warming up"),
    ("The server is fired up", "ready"),
)
_FATAL = "hit an exception"
_ABORTED = "Fatal Python error:"
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Failure)\b.*")
_PLAIN = re.compile(
    r"(error: .*|.*No module named .*|.*[Aa]ddress already in use.*|.*CUDA error.*|.*out of memory.*|^Killed$)"
)
# The second is what a package says of another one that is too old for it.
_MISSING = re.compile(r"No module named|ImportError: cannot import name")
# SGLang's prefix of a line: [2026-11-29 12:00:00 TP0]
_PREFIX = re.compile(r"^\[\d{4}-[^\]]*\]\s*")


def stage(lines: Sequence[str]) -> str:
    """The last stage that the log reached."""
    reached = "starting"
    for line in lines:
        for mark, name in _STAGES:
            if mark in line:
                reached = name
    return reached


def cause(lines: Sequence[str]) -> str | None:
    """The exception that ended the server; None when the log has none.

    A scheduler's comes before the main process's, which only says that a scheduler died. One that
    is logged in the middle of a line was caught, and counts only when there is no other. Where a
    process aborted, it is what that process said last.
    """
    plain = [_PREFIX.sub("", line.rstrip()) for line in lines]
    for at, line in enumerate(plain):
        if line.startswith(_ABORTED):
            said = next((text for text in reversed(plain[:at]) if text), "")
            return f"{line} {said}".strip()
    starts = [i for i, line in enumerate(plain) if _TRACEBACK in line]
    fatal = [i for i in starts if _FATAL in plain[i]][:1]
    bare = [i for i in starts if plain[i].startswith(_TRACEBACK)]
    for start in (*fatal, *reversed(bare)):
        found = _exception_after(plain, start)
        if found:
            return found
    for line in reversed(plain):
        if _EXCEPTION.match(line) or _PLAIN.search(line):
            return line.strip()
    return None


def remedy(cause: str | None, killed: bool = False) -> str:
    """What to do about a cause, or about none that the log names; killed is by SIGKILL."""
    if cause is not None and "address already in use" in cause.lower():
        return (
            "another program took that port meanwhile: start it again with another --port, "
            "or --nccl-port where you named one"
        )
    if cause is not None and _MISSING.search(cause):
        return (
            "install SGLang's dependencies into that Python, or name with --python PY one that "
            "has them"
        )
    if cause is not None and "did not compile with" in cause:
        # Copies by the copy engine and register hand-over: NVRTC 12.6 knows neither, 12.8 not for sm_121.
        return (
            "that Python's NVRTC is likely too old: 12.8 compiles for sm_120, 12.9 for sm_121 too; "
            "install cuda-python 13 as SGLang asks for, then start it again"
        )
    if killed or cause == "Killed":
        return (
            "the system mostly does so for want of memory (dmesg tells): give the machine or "
            "container more, or end what else uses it, then start it again"
        )
    if cause is None:
        return "look into that log from its beginning, then start it again"
    return "remove the cause, then start it again"


def _exception_after(lines: Sequence[str], start: int) -> str | None:
    """The last exception of the chain whose traceback begins at start, with its whole message."""
    found = None
    at = start + 1
    while at < len(lines):
        line = lines[at]
        if _ends_traceback(line):
            found = line.strip()
            following = _next_text(lines, at + 1)
            if following is not None and lines[following].strip() in _CHAINED:
                at = following + 1
                continue
            return found
        at += 1
    return found


def _ends_traceback(line: str) -> bool:
    return bool(line) and not line[0].isspace() and _TRACEBACK not in line


def _next_text(lines: Sequence[str], at: int) -> int | None:
    return next((i for i in range(at, len(lines)) if lines[i].strip()), None)
