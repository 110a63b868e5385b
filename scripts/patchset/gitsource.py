"""`--source git`: the base commit taken from upstream's own repository, at the tag of the pin."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import git

from . import base, gitenv, invocation
from .errors import Exit, Failure
from .listing import counted, listed
from .series import Series
from .standing import blob_at
from .state import State, read_state

STATE = "nothing was changed"

# A server that has gone silent must end in a message, not in a wait without end.
_PATIENCE = {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}

_NO_TAG = re.compile(r"couldn't find remote ref|Could not find remote branch")
_NO_ANSWER = re.compile(
    r"Could not resolve host|Couldn't resolve|Failed to connect|Could not connect"
    r"|unable to look up|unable to connect|Connection (refused|timed out|reset)|timed out"
    r"|Network is unreachable|Temporary failure in name resolution|Operation too slow|proxy"
    r"|SSL|early EOF|hung up|Connection closed",
    re.IGNORECASE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded")


def fetch_at_tag(series: Series, directory: Path, url: str) -> str:
    """Makes a repository in the empty `directory` with the commit at the pin's tag; its id.

    Only that commit is fetched, without its history. Arguments: url is anything that git
    fetches from, a local path too. Raises Failure(ENVIRONMENT) when the repository or the tag
    can't be had, Failure(PATCH) listing the files that the series touches and that differ from
    the pin's.
    """
    pin = series.pin
    source = _absolute(url)
    base.init_repository(directory)
    gitenv.run(directory, "config", "remote.origin.url", source)
    ref = f"refs/tags/{pin.tag}"
    _fetch(directory, source, ref, pin.tag)
    commit = gitenv.text(directory, "rev-parse", f"{ref}^{{commit}}")
    state = read_state(lambda path: blob_at(directory, commit, path), series)
    if state.kind != "pristine":
        raise Failure(
            Exit.PATCH,
            _difference(state, pin.tag),
            where="\n".join([url, *listed(state.foreign or _held(state)).splitlines()]),
            state=STATE,
            next="use upstream's own repository: "
            f"{invocation.again('--source', 'git', drop=['url'])}\nor the wheel: {_wheel()}",
        )
    return commit


def _difference(state: State, tag: str) -> str:
    if state.foreign:
        return (
            f"{counted(state.foreign, 'file')} that the series changes "
            f"differ from the pin's at {tag} of this repository"
        )
    if state.partial:
        return f"the series is half applied at {tag} of this repository"
    return f"{state.applied} of {state.total} patches are at {tag} of this repository already"


def _held(state: State) -> list[str]:
    return [f"{path}: {patch}" for path, patch in state.partial]


def _wheel() -> str:
    return invocation.again("--source", "wheel", drop=["url"])


def _another(url: str) -> str:
    return invocation.again("--source", "git", "--url", url)


def _absolute(url: str) -> str:
    # git would take a relative path from the new repository, not from where the user is.
    if "://" not in url and os.path.exists(url):
        return os.path.abspath(url)
    return url


def _fetch(directory: Path, source: str, ref: str, tag: str) -> None:
    progress = _Progress()
    settings = [f"{key}={value}" for key, value in _PATIENCE.items()]
    options = [word for setting in settings for word in ("-c", setting)]
    command = [
        *("git", "-C", str(directory), *options),
        *(
            "fetch",
            "--depth=1",
            "--no-tags",
            "--progress",
            "--",
            source,
            f"{ref}:{ref}",
        ),
    ]
    try:
        process = git.cmd.Git().execute(
            command, as_process=True, universal_newlines=True
        )
        try:
            git.cmd.handle_process_output(
                process, None, progress.new_message_handler(), decode_streams=False
            )
            process.wait()
        except BaseException:
            process.proc.kill()
            process.proc.wait()
            raise
    except gitenv.GitCommandError:
        raise _failure(progress.said, source, tag) from None
    finally:
        progress.end()


class _Progress(git.RemoteProgress):
    """Shows how far a fetch is, on a terminal only, and keeps what git said besides."""

    STAGES = {
        git.RemoteProgress.COUNTING: "counting",
        git.RemoteProgress.COMPRESSING: "compressing",
        git.RemoteProgress.RECEIVING: "receiving",
        git.RemoteProgress.RESOLVING: "unpacking",
    }

    def __init__(self) -> None:
        super().__init__()
        self.width = 0

    @property
    def said(self) -> str:
        return "\n".join([*self.other_lines, *self.error_lines])

    def update(self, op_code, cur_count, max_count=None, message="") -> None:
        stage = self.STAGES.get(op_code & self.OP_MASK)
        if not stage or not max_count or not sys.stderr.isatty():
            return
        line = f"{stage} {100 * float(cur_count) / float(max_count):3.0f} %  {message}"
        print(f"\r{line:<{self.width}}", end="", file=sys.stderr, flush=True)
        self.width = max(self.width, len(line))

    def end(self) -> None:
        if self.width:
            print(f"\r{'':<{self.width}}\r", end="", file=sys.stderr, flush=True)


def _failure(said: str, source: str, tag: str) -> Failure:
    where = f"{source}\n{said}".strip()
    if _NO_TAG.search(said):
        what, after_that = (
            f"this repository has no tag {tag}",
            f"name another: {_another('URL')}",
        )
    elif _DISK.search(said):
        what, after_that = "the disk is full", "free some space"
    elif _NO_ANSWER.search(said):
        what = "the repository can't be reached"
        after_that = (
            "check the network (a proxy is taken from https_proxy, not from git's "
            f"settings), or name a local clone: {_another('DIR')}"
        )
    else:
        what, after_that = "nothing could be fetched from this repository", (
            f"check the address, or name another: {_another('URL')}"
        )
    return Failure(
        Exit.ENVIRONMENT,
        what,
        where=where,
        state=STATE,
        next=f"{after_that}\nor use the wheel: {_wheel()}",
    )
