"""Git, always run through GitPython in an environment that no user setting can reach."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Iterable, Iterator, Mapping

# GitPython runs git when it is imported, and fails when that one does not run. We name git in each
# command, and scrub() is what says that it is missing or broken.
os.environ["GIT_PYTHON_REFRESH"] = "quiet"
os.environ["GIT_PYTHON_GIT_EXECUTABLE"] = os.devnull

import git  # noqa: E402
from git import GitCommandError  # noqa: E402

from .errors import Exit, Failure  # noqa: E402

MINIMUM_VERSION = (2, 32)  # the first git that honours GIT_CONFIG_GLOBAL

# A clone needs the user's way to the network; none of these can change an object.
_NETWORK = re.compile(r"GIT_(SSH|SSL|PROXY|HTTP|ASKPASS)")

_GLOBAL_CONFIG = Path(__file__).with_name("gitconfig")

_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_DEFAULT_HASH": "sha1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
    "LANGUAGE": "C",
    "TZ": "UTC",
}

# Command-scope settings beat those in a user's own repository, where hooks, signing and line-ending
# conversion would otherwise change what we write.
_OVERRIDES = {
    "safe.directory": "*",
    "core.hooksPath": os.devnull,
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.quotePath": "true",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "i18n.commitEncoding": "utf-8",
    "i18n.logOutputEncoding": "utf-8",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
}


def scrub() -> None:
    """Clean this process's environment of git settings and fix those that matter.

    Call once, before any git command. Raises Failure(ENVIRONMENT) when git is missing or older
    than MINIMUM_VERSION.
    """
    for name in list(os.environ):
        if name.startswith("GIT_") and not _NETWORK.match(name):
            del os.environ[name]
    os.environ.update(_FIXED)
    # An old git takes safe.directory only from a file, a newer one also from the command scope.
    os.environ["GIT_CONFIG_GLOBAL"] = str(_GLOBAL_CONFIG)
    os.environ["GIT_CONFIG_COUNT"] = str(len(_OVERRIDES))
    for number, (key, value) in enumerate(_OVERRIDES.items()):
        os.environ[f"GIT_CONFIG_KEY_{number}"] = key
        os.environ[f"GIT_CONFIG_VALUE_{number}"] = value
    _require_git()


def _require_git() -> None:
    wanted = ".".join(map(str, MINIMUM_VERSION))
    if shutil.which("git") is None:
        raise Failure(
            Exit.ENVIRONMENT,
            "git was not found on PATH",
            state="nothing was changed",
            next=f"install git {wanted} or newer, then run the same command again",
        )
    try:
        text = git.cmd.Git().execute(["git", "--version"])
    except (GitCommandError, OSError) as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"git does not run: {error}",
            where=shutil.which("git"),
            state="nothing was changed",
            next=f"install git {wanted} or newer, then run the same command again",
        ) from None
    found = re.search(r"(\d+)\.(\d+)", str(text))
    if not found or tuple(map(int, found.groups())) < MINIMUM_VERSION:
        raise Failure(
            Exit.ENVIRONMENT,
            f"{text} is too old: git {wanted} or newer is needed",
            where=shutil.which("git"),
            state="nothing was changed",
            next=f"install git {wanted} or newer, then run the same command again",
        )


def run(
    cwd: str | os.PathLike[str],
    *args: str,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run `git ARGS` in the directory cwd and return its standard output, byte for byte.

    Arguments: input is given on standard input (none: it reads nothing); env adds variables.
    Raises GitCommandError when git exits with anything but 0.
    """
    with _started(cwd, args, env) as process:
        stdout, stderr = process.communicate(input)
    if process.returncode:
        raise GitCommandError(["git", *args], process.returncode, stderr, stdout)
    return stdout


def feed(cwd: str | os.PathLike[str], *args: str, chunks: Iterable[bytes]) -> None:
    """Run `git ARGS` in cwd and write the chunks to its standard input as they come.

    For commands that print next to nothing. Raises GitCommandError when git fails, and whatever
    chunks raises, after ending git.
    """
    with _started(cwd, args, None) as process:
        # git may die before it has read everything: its exit status and message tell why.
        with contextlib.suppress(BrokenPipeError):
            for chunk in chunks:
                process.stdin.write(chunk)
            process.stdin.flush()
        stdout, stderr = process.communicate()
    if process.returncode:
        raise GitCommandError(["git", *args], process.returncode, stderr, stdout)


def text(
    cwd: str | os.PathLike[str], *args: str, env: Mapping[str, str] | None = None
) -> str:
    """The standard output of `git ARGS` as stripped text. Raises GitCommandError."""
    return os.fsdecode(run(cwd, *args, env=env)).strip()


def has_commit(cwd: str | os.PathLike[str], name: str) -> bool:
    """True when the repository has this commit."""
    try:
        run(cwd, "cat-file", "-e", f"{name}^{{commit}}")
    except GitCommandError:
        return False
    return True


def message_of(error: GitCommandError) -> str:
    """What git itself said on standard error, without GitPython's dressing."""
    found = re.search(r"stderr: '(.*)'\s*$", error.stderr or "", re.DOTALL)
    return (found.group(1) if found else str(error)).strip()


@contextlib.contextmanager
def _started(
    cwd: str | os.PathLike[str], args: Iterable[str], env: Mapping[str, str] | None
) -> Iterator[subprocess.Popen]:
    """A git process that does not outlive the block, whatever ends the block."""
    # -C, not a working directory: GitPython silently falls back to ours when it cannot enter it.
    handle = git.cmd.Git().execute(
        ["git", "-C", os.fspath(cwd), *args],
        istream=subprocess.PIPE,
        as_process=True,
        env=dict(env or {}),
    )
    process = handle.proc
    try:
        yield process
    except BaseException:
        process.kill()
        process.wait()
        raise
