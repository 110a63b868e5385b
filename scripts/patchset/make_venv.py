"""The virtual environment of the scripts: made once, remade when half-made or out of date.

Run as `python -m patchset.make_venv DIRECTORY REQUIREMENTS COMMAND...`, before anything is
installed: it imports nothing but the standard library and modules of ours that do the same.
COMMAND is what the user typed, for messages.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from . import invocation, lock
from .errors import Exit, Failure

STAMP = ".patchset-venv"

_UNFINISHED = "it is unfinished, and the next run makes it again"
_UNTOUCHED = "nothing was changed"

# These would send the packages somewhere else than into the environment.
_MISLEADING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH")


def make(directory: Path, requirements: Path, command: str) -> None:
    """Make directory a virtual environment that holds exactly the requirements.

    The stamp in it is a copy of the requirements and is written last, so that what a killed run
    leaves is made again. Two at once wait for each other. Raises Failure(ENVIRONMENT), also for a
    directory that something else made, or that another user owns.
    """
    wanted = requirements.read_bytes()
    stamp = directory / STAMP
    begun = False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _require_writable(directory, command)
        with lock.hold(directory.with_name(directory.name + ".lock"), wait=True):
            python = directory / "bin" / "python"
            if stamp.exists() and stamp.read_bytes() == wanted and python.exists():
                return
            _require_ours(directory, stamp, command)
            print(f"setting up {directory} (once)", file=sys.stderr, flush=True)
            begun = True
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            stamp.touch()
            venv.create(directory, with_pip=True, symlinks=True)
            _install(directory, python, requirements, command)
            stamp.write_bytes(wanted)
    except OSError as error:
        raise _failure(
            directory,
            f"the environment cannot be written: {error.strerror}",
            f"make room or choose another place: PATCHSET_VENV=DIR {command}",
            _UNFINISHED if begun else _UNTOUCHED,
        ) from None
    except subprocess.CalledProcessError as error:
        raise _failure(
            directory,
            f"the environment has no working pip: exit status {error.returncode}",
            f"install python3-venv, or name another interpreter: PATCHSET_PYTHON=FILE {command}",
        ) from None


def _require_writable(directory: Path, command: str) -> None:
    """Both directories: the lock and the environment's own folder are made in the upper one."""
    for place in (directory.parent, directory):
        if place.exists() and not os.access(place, os.W_OK | os.X_OK):
            raise _failure(
                directory,
                f"this user may not write the environment: {_owner(place)} owns {place}",
                f"choose another place: PATCHSET_VENV=DIR {command}",
                _UNTOUCHED,
            )


def _owner(place: Path) -> str:
    try:
        return place.owner()
    except KeyError:
        return f"user {place.stat().st_uid}"


def _require_ours(directory: Path, stamp: Path, command: str) -> None:
    if directory.exists() and any(directory.iterdir()) and not stamp.exists():
        raise _failure(
            directory,
            "there is an environment that this tool did not make",
            f"move it away or choose another place: PATCHSET_VENV=DIR {command}",
            _UNTOUCHED,
        )


def _install(directory: Path, python: Path, requirements: Path, command: str) -> None:
    line = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    line += ["--disable-pip-version-check", "-r", str(requirements)]
    env = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    done = subprocess.run(
        line,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-3:]
        raise _failure(
            directory,
            f"pip could not install {requirements.name}",
            _bring(requirements, command),
            said="\n".join(said),
        )


def _bring(requirements: Path, command: str) -> str:
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    offline = f"PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR {command}"
    if "--wheel" not in command:
        offline += "\nand SGLang's own wheel, where that is needed: --wheel FILE"
    return (
        "see that the network and pip's index can be reached, then the same command; "
        f"without a network, on another machine with {version}:\n"
        f"python3 -m pip download -r {invocation.word(requirements)} -d DIR\n"
        f"then, with DIR brought here, to a path without spaces:\n{offline}"
    )


def _failure(
    directory: Path,
    what: str,
    after: str,
    state: str = _UNFINISHED,
    said: str = "",
) -> Failure:
    where = f"{directory}\n{said}" if said else str(directory)
    return Failure(Exit.ENVIRONMENT, what, where=where, state=state, next=after)


def main(arguments: list[str]) -> int:
    """Make the environment and return the exit code."""
    try:
        make(
            Path(arguments[0]).absolute(), Path(arguments[1]), shlex.join(arguments[2:])
        )
    except Failure as failure:
        print("\n".join(failure.lines()), file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        print("error: interrupted; the next run makes it again", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
