"""The virtual environment of the scripts: made once, remade when half-made or out of date.

Run as `python -m patchset.make_venv DIRECTORY REQUIREMENTS`, before anything is installed: it
imports nothing but the standard library and two modules of ours that do the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from . import lock
from .errors import Exit, Failure

STAMP = ".patchset-venv"

# These would send the packages somewhere else than into the environment.
_MISLEADING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH")


def make(directory: Path, requirements: Path) -> None:
    """Make directory a virtual environment that holds exactly the requirements.

    The stamp in it is a copy of the requirements and is written last, so that what a killed run
    leaves is made again. Two at once wait for each other. Raises Failure(ENVIRONMENT), also for a
    directory that something else made.
    """
    wanted = requirements.read_bytes()
    stamp = directory / STAMP
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with lock.hold(directory.with_name(directory.name + ".lock"), wait=True):
            python = directory / "bin" / "python"
            if stamp.exists() and stamp.read_bytes() == wanted and python.exists():
                return
            _require_ours(directory, stamp)
            print(f"setting up {directory} (once)", file=sys.stderr, flush=True)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            stamp.touch()
            venv.create(directory, with_pip=True, symlinks=True)
            _install(directory, python, requirements)
            stamp.write_bytes(wanted)
    except OSError as error:
        raise _failure(
            directory,
            f"the environment cannot be written: {error.strerror}",
            "make room or choose another place: PATCHSET_VENV=DIR, then the same command",
        ) from None
    except subprocess.CalledProcessError as error:
        raise _failure(
            directory,
            f"the environment has no working pip: exit status {error.returncode}",
            "install python3-venv, or name another interpreter: PATCHSET_PYTHON=FILE",
        ) from None


def _require_ours(directory: Path, stamp: Path) -> None:
    if directory.exists() and any(directory.iterdir()) and not stamp.exists():
        raise _failure(
            directory,
            "there is an environment that this tool did not make",
            "move it away or choose another place: PATCHSET_VENV=DIR, then the same command",
            "it is as it was",
        )


def _install(directory: Path, python: Path, requirements: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "-r", str(requirements)]
    env = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    done = subprocess.run(
        command,
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
            "see that the network and pip's index can be reached, then the same command",
            said="\n".join(said),
        )


def _failure(
    directory: Path,
    what: str,
    after: str,
    state: str = "it is unfinished, and the next run makes it again",
    said: str = "",
) -> Failure:
    where = f"{directory}\n{said}" if said else str(directory)
    return Failure(Exit.ENVIRONMENT, what, where=where, state=state, next=after)


def main(arguments: list[str]) -> int:
    """Make the environment and return the exit code."""
    try:
        make(Path(arguments[0]).absolute(), Path(arguments[1]))
    except Failure as failure:
        print("\n".join(failure.lines()), file=sys.stderr)
        return int(failure.code)
    except KeyboardInterrupt:
        print("error: interrupted; the next run makes it again", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
