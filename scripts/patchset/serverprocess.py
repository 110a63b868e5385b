"""A server process of our own: started in a session of its own, watched, and stopped with all its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import processes, serverlog, signals
from .errors import Exit, Failure

STOP_SECONDS = 10.0
_POLL = 0.5
# A server that stops within so many seconds needs no word.
_QUIET = 1.0
_TAIL = 15


class ServerProcess:
    """A started server. Its session id is its process id: that is how its children are told."""

    def __init__(self, process: subprocess.Popen, log: Path):
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> list[str]:
        """The log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def wait_until_ready(
        self,
        healthy: Callable[[], bool],
        seconds: float,
        progress: Callable[[str, float], None],
    ) -> float:
        """Wait until healthy() says so; the seconds it took.

        progress gets the stage of the log and the seconds so far at each look. Raises
        Failure(SERVER) when the server ends before, with the cause from its log, or is not ready in
        time.
        """
        start = time.monotonic()
        while True:
            took = time.monotonic() - start
            self.require_running()
            if healthy():
                return took
            if took > seconds:
                raise Failure(
                    Exit.SERVER,
                    f"the server is not ready after {seconds:g} s; it is still: "
                    f"{serverlog.stage(self.lines())}",
                    where=self._told(),
                    state="it was stopped",
                    next="give it longer with --ready-timeout S, or look into that log",
                )
            progress(serverlog.stage(self.lines()), took)
            time.sleep(_POLL)

    def require_running(self) -> None:
        """Raise Failure(SERVER) with the log's cause when the server has ended."""
        code = self._process.poll()
        if code is None:
            return
        why = serverlog.cause(self.lines())
        how = (
            f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        )
        raise Failure(
            Exit.SERVER,
            f"the server ended ({how}): {why or 'its log names no cause'}",
            where=self._told(),
            state="what it had started is stopped",
            next=serverlog.remedy(why, killed=code == -signal.SIGKILL),
        )

    def stop(self, seconds: float = STOP_SECONDS) -> list[int]:
        """End the server and every process of its session; none of anybody else's.

        Returns the processes that are still there so many seconds after SIGKILL.
        """
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, seconds)):
            self._signal(number)
            start = time.monotonic()
            said = False
            while (waited := time.monotonic() - start) < patience:
                self._process.poll()
                left = self._members()
                if not left:
                    self._process.wait()
                    return []
                if waited > _QUIET and not said:
                    said = True
                    _say_waiting(left, number, patience)
                time.sleep(0.05)
        return self._members()

    def _signal(self, number: int) -> None:
        for pid in self._members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _members(self) -> list[int]:
        """The live processes of the session, the server's own among them."""
        return [each.id for each in processes.live() if each.session == self.pid]

    def _told(self) -> str:
        return "\n".join([str(self.log), *self.lines()[-_TAIL:]])


def _say_waiting(pids: Sequence[int], number: int, patience: float) -> None:
    sent = signal.Signals(number).name
    after = "SIGKILL follows" if number == signal.SIGTERM else "they are named then"
    print(
        f"{sent} was sent, waiting for the server's process(es) {' '.join(map(str, pids))}: "
        f"{patience:g} s at most, {after}",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[ServerProcess]:
    """Start a server whose output goes to a log; it is stopped on the way out, whatever happens.

    Raises Failure(ENVIRONMENT) when the log can't be written or the command can't be run, and
    Failure(SERVER) when a process of it can't be ended.
    """
    server = None
    try:
        # A signal between its start and here would leave it alone in its session.
        with signals.deferred():
            server = ServerProcess(_start(command, environment, log), log)
        yield server
    finally:
        if server:
            with signals.held_off():
                left = server.stop()
            if left:
                raise _survived(left, sys.exception())


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            return subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the server can't be started: {error.strerror or error}",
            where=str(error.filename or command[0]),
            state="no server was started",
            next="name another interpreter with --python, or another log with --log",
        ) from None


def _survived(pids: Sequence[int], ended: BaseException | None) -> Failure:
    before = ended.what if isinstance(ended, Failure) else None
    told = [f"before that: {before}"] if before else []
    return Failure(
        Exit.SERVER,
        f"{len(pids)} of the server's processes can't be ended",
        where="\n".join([f"process ids: {' '.join(map(str, pids))}", *told]),
        state="SIGKILL was sent; they are left running",
        next=f"see what they wait for: ps -o pid,stat,wchan:20,args -p {','.join(map(str, pids))}",
    )


def require_free(host: str, port: int) -> None:
    """Raise Failure(SERVER) when something already listens there."""
    address = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        with socket.create_connection((address, port), timeout=2):
            pass
    except OSError:
        return
    raise Failure(
        Exit.SERVER,
        f"something already listens on {address} port {port}",
        state="it was left alone; no server was started",
        next="stop it, or choose another with --port",
    )
