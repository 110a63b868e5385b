"""Finds the `sglang` package that a Python environment would import, without importing it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import Path

from . import invocation
from .errors import Exit, Failure
from .layout import RELEASE

PROBE_SECONDS = 60

# Ours is C for git's messages; there a `.pth` file with a non-ASCII path would not be readable.
_LOCALE = {"LC_ALL": "C.UTF-8"}

# Runs in the user's Python, so it keeps to what 3.8 has. `-I` also hides the user's own
# site-packages, where `pip install --user` puts packages; it is looked at as a plain run of
# that Python would.
PROBE = r"""
import json, os, sys
import importlib.util
from importlib import metadata
import site
if sys.prefix == sys.base_prefix:
    user = site.getusersitepackages()
    if os.path.isdir(user) and user not in sys.path:
        places = [i for i, path in enumerate(sys.path) if path.endswith("-packages")]
        sys.path.insert(places[0] if places else len(sys.path), user)
spec = importlib.util.find_spec("sglang")
dists, seen = [], set()
for dist in metadata.distributions():
    path = str(getattr(dist, "_path", ""))
    try:
        mine = dist.metadata["Name"].lower() == "sglang"
    except Exception:
        continue  # a broken neighbour
    # pip leaves a "~glang" behind when it is stopped; lib64 may be a link to lib.
    if not mine or os.path.basename(path).startswith("~") or os.path.realpath(path) in seen:
        continue
    seen.add(os.path.realpath(path))
    direct_url = dist.read_text("direct_url.json")
    dists.append({"path": path, "version": dist.version, "direct_url": direct_url})
json.dump({
    "python": "%d.%d.%d" % sys.version_info[:3],
    "package": None if spec is None else list(spec.submodule_search_locations or []),
    "origin": None if spec is None else spec.origin,
    "zipped": "zipimport" in type(getattr(spec, "loader", None)).__module__,
    "distributions": dists,
}, sys.stdout)
"""


@dataclass(frozen=True)
class Installation:
    """One installed `sglang`.

    Attributes:
        python: the interpreter that was asked.
        site: the folder that holds `sglang/` (site-packages).
        dist_info: its `sglang-<version>.dist-info` folder.
        version: the version that its metadata states.
        by_default: nobody named the interpreter.
    """

    python: str
    site: Path
    dist_info: Path
    version: str
    by_default: bool = False

    def revert_command(self) -> str:
        """The command that takes the patches out of this environment."""
        return revert_command(self.python)

    def reinstall_command(self) -> str:
        """The command that gives this environment the files of its own version back."""
        python = shlex.quote(self.python)
        return f"{python} -m pip install --force-reinstall --no-deps sglang=={self.version}"


def revert_command(python: str) -> str:
    """The command that takes the patches out of the environment of an interpreter."""
    line = ("--installed", "--python", python, "--revert")
    return invocation.again(*line, drop=("upto", "patches"))


def default_python() -> str:
    """The Python meant without `--python`: of the active virtual environment, else on PATH.

    Raises Failure(ENVIRONMENT) when there is none.
    """
    active = os.environ.get("VIRTUAL_ENV")
    if active and os.access(os.path.join(active, "bin", "python"), os.X_OK):
        return os.path.join(active, "bin", "python")
    found = shutil.which("python3") or shutil.which("python")
    if not found:
        raise Failure(
            Exit.ENVIRONMENT,
            "no python3 on PATH",
            next="name the environment's interpreter with --python PY",
        )
    return found


def find_installation(python: str | None = None) -> Installation:
    """Asks `python` (a path or command, 3.8 or newer) which installed `sglang` it would import.

    Raises Failure(USAGE) when it is not there, and Failure(ENVIRONMENT) when it can't be run, has
    no sglang, or has one that can't be changed in place: an editable or directory install, a zip
    import, or a package that its metadata does not describe.
    """
    asked = interpreter(python or default_python())
    found = _probe(asked)
    if not found["package"] and not found["distributions"]:
        raise Failure(
            Exit.ENVIRONMENT,
            "no sglang in this environment",
            where=asked,
            state="nothing was changed",
            next=f"{shlex.quote(asked)} -m pip install sglang=={RELEASE}, "
            "or name another interpreter with --python PY",
        )
    if found["zipped"]:
        raise _unfit(asked, f"sglang is imported out of a zip file: {found['origin']}")
    return replace(_fit_for_patching(asked, found), by_default=not python)


def interpreter(python: str) -> str:
    """The absolute path of an interpreter, a path or a command. Raises Failure(USAGE): no such."""
    # Not the real path: a virtual environment is told by the name of its link to the interpreter.
    found = os.path.abspath(python) if os.sep in python else shutil.which(python)
    if not found or not os.path.isfile(found) or not os.access(found, os.X_OK):
        raise Failure(
            Exit.USAGE,
            f"no such interpreter: {python}",
            state="nothing was changed",
            next="name one with --python PY, such as --python .venv/bin/python",
        )
    return found


def _probe(python: str) -> dict:
    try:
        done = subprocess.run(
            [python, "-I", "-X", "utf8", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            cwd=os.path.dirname(python),
            env={**os.environ, **_LOCALE},
        )
        reason = f"it exited {done.returncode}"
    except subprocess.TimeoutExpired:
        done, reason = None, f"it gave no answer in {PROBE_SECONDS} s"
    except OSError as error:
        done, reason = None, error.strerror or str(error)
    if done is not None and done.returncode == 0:
        try:
            # A site hook of the environment may print before the answer.
            return json.loads(done.stdout[done.stdout.index(b'{"python"') :])
        except ValueError:
            reason = "its answer could not be read"
    last = (
        done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done else []
    )
    raise Failure(
        Exit.ENVIRONMENT,
        "this interpreter could not say where its sglang is: "
        + "; ".join([reason, *last]),
        where=python,
        state="nothing was changed",
        next="name a Python 3.8 or newer with --python PY",
    )


def _fit_for_patching(python: str, found: dict) -> Installation:
    distributions = found["distributions"]
    if not distributions:
        raise _unfit(
            python,
            f"the sglang at {(found['package'] or ['?'])[0]} has no installed metadata, "
            "so it is no pip or uv install",
        )
    if len(distributions) > 1:
        paths = ", ".join(d["path"] for d in distributions)
        raise _unfit(python, f"more than one installed sglang: {paths}")
    dist = distributions[0]
    source = _directory_of(dist["direct_url"])
    if source:
        raise _unfit(
            python,
            f"sglang was installed from a directory: {source}",
            next="patch that checkout instead: "
            + invocation.again("--into", source, drop=("installed", "python")),
        )
    info = Path(dist["path"])
    if info.suffix != ".dist-info" or not info.is_dir():
        raise _unfit(python, f"sglang is not installed as a wheel: {info}")
    package = Path((found["package"] or [""])[0])
    if not found["package"] or not _same(package, info.parent / "sglang"):
        raise _unfit(
            python,
            f"Python imports sglang from {package if found['package'] else 'nowhere'}, "
            f"but the installed metadata is {info}",
        )
    if not (info / "RECORD").is_file():
        raise _unfit(python, f"{info} has no RECORD, so pip could not uninstall it")
    return Installation(python, info.parent, info, dist["version"])


def _same(package: Path, expected: Path) -> bool:
    parent = os.path.realpath(expected.parent)
    return os.path.realpath(package) == os.path.join(parent, expected.name)


def _directory_of(direct_url: str | None) -> str | None:
    if not direct_url:
        return None
    try:
        origin = json.loads(direct_url)
    except ValueError:
        return None
    if "dir_info" not in origin:
        return None
    return urllib.parse.unquote(urllib.parse.urlsplit(str(origin.get("url", ""))).path)


def _unfit(python: str, what: str, *, next: str | None = None) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        what,
        where=python,
        state="nothing was changed",
        next=next
        or f"install the wheel there: {shlex.quote(python)} -m pip install "
        f"--force-reinstall --no-deps sglang=={RELEASE}",
    )
