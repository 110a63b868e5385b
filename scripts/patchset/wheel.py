"""The pinned wheel: from a file at hand, from the cache, or downloaded into the cache by pip."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from . import invocation, lock
from .errors import Exit, Failure
from .pin import Pin

CACHE_VARIABLE = "PATCHSET_CACHE"

_DOWNLOAD_PREFIX = ".download-"

_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish|NameResolution|Name or service not known"
    r"|getaddrinfo|Temporary failure in name|ConnectTimeout|ReadTimeout|timed out|ProxyError"
    r"|Cannot connect to proxy|Network is unreachable|Connection refused|Max retries"
    r"|RemoteDisconnected|ConnectionError|Connection aborted|SSLError",
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|Errno 28\b")


def cache_directory() -> Path:
    """Where wheels are kept: $PATCHSET_CACHE, or the user's cache directory."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else platformdirs.user_cache_path("sm120-patches")


def obtain(pin: Pin, given: Path | None = None) -> Path:
    """The path of the pinned wheel, its sha256 checked on every call.

    Arguments: given is a wheel that the user has; without it the cache is used, and filled by
    `pip download` when it has no wheel. Raises Failure(PATCH) when the bytes are not the pinned
    wheel, Failure(ENVIRONMENT) when it cannot be had; the cache then is as it was.
    """
    if given is not None:
        _verify(Path(given), pin, "nothing was changed")
        return Path(given)
    cache = cache_directory()
    kept = cache / pin.wheel.name
    try:
        there = kept.exists()
    except OSError as error:
        raise _os_failure(error, cache, "read") from None
    if not there:
        _fill(cache, pin)
    _verify(kept, pin, "nothing was changed; the cache is as it was")
    return kept


def members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The files of these names in a wheel that obtain() gave; those that it has."""
    with zipfile.ZipFile(path) as archive:
        there = set(archive.namelist())
        return {name: archive.read(name) for name in names if name in there}


def _fill(cache: Path, pin: Pin) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_downloader(cache):
            if not (cache / pin.wheel.name).exists():
                _download(cache, pin)
    except OSError as error:
        raise _os_failure(error, cache, "written") from None


@contextlib.contextmanager
def _only_downloader(cache: Path):
    path = cache / ".lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.hold(path))
        except lock.Held:
            print("waiting for another download into the cache", file=sys.stderr)
            stack.enter_context(lock.hold(path, wait=True))
        yield


def _download(cache: Path, pin: Pin) -> None:
    # We hold the lock, so what lies here was left by a process that was killed.
    for stale in cache.glob(_DOWNLOAD_PREFIX + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=_DOWNLOAD_PREFIX, dir=cache))
    try:
        print(
            f"downloading sglang {pin.version} into {cache}",
            file=sys.stderr,
            flush=True,
        )
        _run_pip(scratch, pin, cache)
        found = scratch / pin.wheel.name
        if not found.exists():
            names = ", ".join(sorted(path.name for path in scratch.iterdir()))
            raise Failure(
                Exit.PATCH,
                f"pip gave another file than the pinned {pin.wheel.name}: {names or 'none'}",
                state="nothing was changed; the cache is as it was",
                next=_by_hand(pin),
            )
        _verify(found, pin, "nothing was changed; the cache is as it was")
        os.replace(found, cache / found.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_pip(scratch: Path, pin: Pin, cache: Path) -> None:
    wheel = pin.wheel
    quiet = [] if sys.stderr.isatty() else ["--quiet", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", *quiet]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    command += ["--timeout", "20", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", wheel.python]
    command += ["--platform", wheel.platform, "--dest", str(scratch)]
    command += [f"sglang=={pin.version}"]
    env = os.environ | {"TMPDIR": str(scratch)}
    # pip draws its progress bar on standard output, which is ours for results.
    with tempfile.TemporaryFile() as errors:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=errors,
            env=env,
        )
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip()
    if done.returncode:
        raise _pip_failure(said, pin, cache)


def _pip_failure(said: str, pin: Pin, cache: Path) -> Failure:
    last = said.splitlines()[-1] if said else "pip said nothing"
    if _DISK_FULL.search(said):
        what = "the disk is full: the wheel could not be stored"
    elif _NO_NETWORK.search(said):
        what = "no network: pip could not reach its package index"
    elif "No matching distribution" in said:
        what = f"the package index has no wheel {pin.wheel.name}"
    elif "No module named pip" in said:
        what = f"{sys.executable} has no pip"
    else:
        what = f"pip could not download the wheel: {last}"
    return Failure(
        Exit.ENVIRONMENT,
        what,
        where=str(cache),
        state="nothing was changed; the cache is as it was",
        next=_by_hand(pin),
    )


def _by_hand(pin: Pin) -> str:
    return (
        "run the same command again, or get "
        f"{pin.wheel.name} another way and give it: {invocation.again('--wheel', 'FILE')}"
    )


def _other_cache() -> str:
    return f"{CACHE_VARIABLE}=DIR {invocation.again()}"


def _os_failure(error: OSError, cache: Path, how: str) -> Failure:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full: the wheel could not be stored"
        after = f"make room, or choose another place: {_other_cache()}"
    else:
        what = f"the cache directory cannot be {how}: {error.strerror}"
        after = f"choose another place: {_other_cache()}"
    return Failure(
        Exit.ENVIRONMENT,
        what,
        where=str(cache),
        state="nothing was changed; the cache is as it was",
        next=after,
    )


def _verify(path: Path, pin: Pin, state: str) -> None:
    """Check the sha256; when it differs, say whether the file is corrupt, another version or other bytes."""
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the wheel cannot be read: {error.strerror}",
            where=str(path),
            state=state,
            next="make that file readable, name another with --wheel FILE, or choose another "
            f"cache: {_other_cache()}",
        ) from None
    if found == pin.wheel.sha256:
        return
    version = _version_inside(path)
    if version is None:
        what = "the wheel is a corrupt zip"
    elif version != pin.version:
        what = f"this is SGLang {version}; the patches are for {pin.version}"
    else:
        what = "the wheel's sha256 is not the pinned one"
    raise Failure(
        Exit.PATCH,
        what,
        where=f"{path}\nsha256 {found}\npinned {pin.wheel.sha256} ({pin.wheel.name})",
        state=state,
        next="delete that file if it is damaged, then run the same command again; "
        f"or give the pinned wheel: {invocation.again('--wheel', 'FILE')}",
    )


def _version_inside(path: Path) -> str | None:
    """The version that a wheel's metadata names; None when it is not a sound wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".dist-info/METADATA"):
                    text = archive.read(name).decode("utf-8", "replace")
                    found = re.search(r"^Version: *(\S+)", text, re.MULTILINE)
                    if found and archive.testzip() is None:
                        return found.group(1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError):
        return None
    return None
