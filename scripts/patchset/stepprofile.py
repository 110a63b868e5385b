"""Have a server profile some decode steps of one list, and read its trace."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from . import gputrace
from .askserver import Server
from .chat import failure
from .decodelist import decode
from .errors import Failure

_POLL = 0.05
# From the first tokens to the first profiled step: two requests, and the profiler's own start.
_START_SECONDS = 0.4
# Rows of one list may fill the pool of a small server: no more tokens of a row than this.
_MOST_TOKENS = 192
_SPARE_TOKENS = 8
# Steps of 40 ms, which are slow ones: ten of them pass before the profiler runs.
_SLOW_STEP = 0.04
# More of them never lie whole within a list.
MOST_STEPS = _MOST_TOKENS - _SPARE_TOKENS - round(_START_SECONDS / _SLOW_STEP)
_WRITING_SECONDS = 20.0


def take(
    server: Server, asked: Sequence[Sequence[int]], steps: int, step_s: float
) -> gputrace.Profile:
    """Profile so many steps while these prompts are decoded; step_s is about the time of one.

    More than MOST_STEPS can't be had. Raises Failure(SERVER), also when no trace of whole steps lies on this
    machine afterwards.
    """
    tokens = min(_MOST_TOKENS, steps + _SPARE_TOKENS + round(_START_SECONDS / step_s))
    with tempfile.TemporaryDirectory(prefix="patchset-profile-") as place:
        folder = Path(place)
        # The server may run as another user.
        folder.chmod(0o777)
        began = threading.Event()
        load = _Load(server, asked, tokens, began)
        load.start()
        began.wait(server.seconds)
        load.require_running()
        body = {
            "output_dir": place,
            "activities": ["GPU"],
            "num_steps": steps,
            "with_stack": False,
            "record_shapes": False,
        }
        server.tell("/start_profile", body)
        load.join()
        load.require_running()
        return _read(server, folder)


class _Load(threading.Thread):
    """The decoding of one list beside the requests of this thread."""

    def __init__(self, server, asked, tokens, began):
        super().__init__(daemon=True)
        self._decode = lambda: decode(server, asked, tokens, began.set)
        self._began = began
        self._failure: Failure | None = None

    def run(self) -> None:
        try:
            self._decode()
        except Failure as error:
            self._failure = error
        finally:
            self._began.set()

    def require_running(self) -> None:
        """Raise what it met, if it met anything."""
        if self._failure:
            raise self._failure


def _read(server: Server, folder: Path) -> gputrace.Profile:
    end = time.monotonic() + min(_WRITING_SECONDS, server.seconds)
    while True:
        # The first of several ranks.
        files = sorted(folder.glob("*.trace.json*"))
        try:
            if files:
                return gputrace.read(files[0])
        except gputrace.NoSteps as error:
            raise failure(
                f"the profile of {server.url} is empty: {error}",
                "see whether the server ran out of memory, or profile more steps: "
                "--profile-steps N",
            ) from None
        except (OSError, EOFError, ValueError, KeyError, zlib.error) as error:
            found = f"its trace can't be read: {error!r:.200}"
        else:
            found = "no trace was written to this machine's disk"
        if time.monotonic() > end:
            # One that still runs would slow down what is timed next.
            with contextlib.suppress(Failure):
                server.tell("/stop_profile", {})
            raise failure(
                f"{server.url} was profiled, and {found}",
                "profile servers of this machine only, and look into the server's log",
            )
        time.sleep(_POLL)
