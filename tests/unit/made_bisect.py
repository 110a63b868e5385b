"""Trees and repositories with a figure in a file, to bisect over with a probe that reads it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from made_series import BASE, commit_all, git, snapshot
from made_wheel import Release, environment, make_release, patchset
from patchset import base, gitenv, target
from patchset.bisect import probes

SPEED = "python/sglang/speed.txt"


FAKE = probes.Probe(
    name="fake:speed",
    what="what the file says",
    unit="us",
    better=probes.LOWER,
    program=(str(Path(__file__).with_name("fake_probe.py")),),
    rounds=1,
    least_change=0.05,
    limit_s=60,
)


# A server that is never ready, and takes its time to stop.
LAUNCH = b"""
import os, signal, time
def stop(*_):
    time.sleep(1)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
with open(os.environ["FAKE_PROBE_LOG"] + ".server", "a") as told:
    told.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


GAIN = ("100", "101", "99", "100", "20", "21", "19", "20")


class Tree:
    """A patched tree whose commits have these speeds, the release's first."""

    def __init__(self, directory: Path, speeds: list[str]):
        self.directory = directory
        files = {
            **BASE,
            SPEED: f"{speeds[0]}\n".encode(),
            "python/sglang/launch_server.py": LAUNCH,
        }
        # Each step changes a file of its own too, so that equal speeds are commits as well.
        steps = [
            (
                f"{10 * number:04}-step",
                {
                    SPEED: f"{speed}\n".encode(),
                    f"python/sglang/srt/step{number}.py": b"x = 1\n",
                },
            )
            for number, speed in enumerate(speeds[1:], 1)
        ]
        # The first patch of a made release is the kernels'.
        kernels = ("0001-kernels", {"python/sglang/srt/layers/sm120/__init__.py": b""})
        self.release: Release = make_release(directory, files, [kernels, *steps])
        series = self.release.series

        def fill(place: Path) -> str:
            base.init_repository(place)
            return base.import_base(place, self.release.wheel, series.pin)

        self.path = directory / "tree"
        target.apply_to(self.path, series, series, target.Source("wheel", fill))
        self.log = directory / "measured.txt"
        self.log.touch()
        self.out = directory / "out"

    def bisect(self, *more, **env) -> subprocess.CompletedProcess:
        return patchset(*self.command(*more), env=self.env(**env))

    def command(self, *more) -> list[str]:
        line = ["bisect", "--probe", "fake:speed", "--tree", self.path]
        return [*map(str, [*line, "--out", self.out, *more])]

    def env(self, **more) -> dict[str, str]:
        return {"FAKE_PROBE_LOG": str(self.log), **more}

    @property
    def measured(self) -> list[str]:
        return self.log.read_text().splitlines()

    def commit(self, name: str) -> str:
        return git(self.path, "log", "--format=%H", f"--grep=^Patch: {name}$")

    def servers(self) -> list[int]:
        """Those that were started by now."""
        told = Path(f"{self.log}.server")
        return [int(pid) for pid in told.read_text().split()] if told.exists() else []

    @property
    def session(self) -> Path:
        (directory,) = self.out.iterdir()
        return directory

    def assert_untouched(self) -> None:
        assert git(self.path, "symbolic-ref", "--short", "HEAD") == base.BRANCH
        assert git(self.path, "status", "--porcelain") == ""
        assert len(git(self.path, "worktree", "list").splitlines()) == 1
        assert git(self.path, "for-each-ref", "refs/bisect") == ""
        assert not list(self.out.glob("*/running-*"))


class Repository:
    """A repository of patches whose commits change the speed that its series gives."""

    def __init__(self, directory: Path, speeds: list[str]):
        self.root = directory / "repo"
        made = Tree(directory, ["5", "5"])
        self.tree = made
        shutil.copytree(made.release.patches, self.root / "patches" / "0.5.13")
        gitenv.run(self.root, "init", "--quiet", "--template=")
        commit_all(self.root, "start")
        self.commits = [self._commit(speed) for speed in speeds]

    def _commit(self, speed: str) -> str:
        path = self.root / "patches" / "0.5.13" / "0010-step.patch"
        if speed == "none":
            (self.root / "patches" / "0.5.13" / "upstream.toml").unlink()
        elif speed == "conflict":
            text = path.read_text()
            path.write_text(text.replace("\n-5\n", "\n-6\n"))
        else:
            self._series(path, speed)
        return commit_all(self.root, f"speed {speed}")

    def _series(self, path: Path, speed: str) -> None:
        directory = self.root.parent / f"made {speed}"
        directory.mkdir()
        release = make_release(
            directory,
            {**BASE, SPEED: b"5\n"},
            [
                ("0001-kernels", {"python/sglang/srt/layers/sm120/__init__.py": b""}),
                ("0010-step", {SPEED: f"{speed}\n".encode()}),
            ],
        )
        shutil.copyfile(release.patches / path.name, path)
        (path.parent / "upstream.toml").write_bytes(
            (self.tree.release.patches / "upstream.toml").read_bytes()
        )

    def bisect(self, *more) -> subprocess.CompletedProcess:
        line = [
            "bisect",
            "--probe",
            "fake:speed",
            "--over",
            "repo",
            "--root",
            self.root,
        ]
        line += ["--wheel", self.tree.release.wheel, "--out", self.tree.out]
        return patchset(*line, *more, env=self.tree.env())


def state(repo: Path) -> dict[str, tuple]:
    """All of a repository but what git leaves when a work tree and its refs are gone: nothing."""
    seen = snapshot(repo)
    seen.pop(".git/worktrees", None)
    packed = seen.pop(".git/packed-refs", None)
    assert packed is None or b"refs/" not in packed[1]
    return seen


def interrupted(made: Tree, number: int) -> tuple[int, str]:
    """Start a bisect as a process of its own, and send it a signal once it is at the paused step."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import made_bisect\nfrom patchset import cli\nfrom patchset.bisect import probes\n"
        "probes.find = lambda *_: made_bisect.FAKE\nsys.exit(cli.main(sys.argv[1:]))"
    )
    # To a file: what a killed one leaves running would keep a pipe open.
    with open(made.directory / "said.txt", "w") as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                program,
                str(Path(__file__).parent),
                *made.command(),
            ],
            env=environment(made.env()),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while not made.servers() and not any(
        line.startswith("pause") for line in made.measured
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    if number == signal.SIGINT:
        # As a terminal does it.
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    code = process.wait(timeout=60)
    return code, (made.directory / "said.txt").read_text()


def processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        found.append(f"{path.parent.name} {words}")
    return found
