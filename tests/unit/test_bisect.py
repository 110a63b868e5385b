"""`bisect` with a probe that reads its figure from the tree: what is found, refused, skipped, given up."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from made_series import BASE, commit_all, git, snapshot
from made_wheel import ROOT, Release, environment, make_release, patchset
from patchset import base, gitenv, lock, target
from patchset.bisect import interpreter, measuring, probes
from patchset.bisect import plan as plans
from patchset.errors import Exit, Failure

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


@pytest.fixture
def probe(monkeypatch):
    """Makes `--probe fake:speed` known; call it with what differs."""

    def known(**different) -> None:
        fake = replace(FAKE, **different)
        monkeypatch.setattr(probes, "find", lambda *_: fake)

    known()
    return known


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


@pytest.fixture
def tree(tmp_path, probe):
    return lambda *speeds: Tree(tmp_path, list(speeds))


def state(repo: Path) -> dict[str, tuple]:
    """All of a repository but what git leaves when a work tree and its refs are gone: nothing."""
    seen = snapshot(repo)
    seen.pop(".git/worktrees", None)
    packed = seen.pop(".git/packed-refs", None)
    assert packed is None or b"refs/" not in packed[1]
    return seen


GAIN = ("100", "101", "99", "100", "20", "21", "19", "20")


def test_a_gain_is_found_and_everything_is_kept(tree):
    made = tree(*GAIN)
    before = state(made.path)
    done = made.bisect("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["name"] == "0040-step" and found["culprit"] == made.commit("0040-step")
    assert 20 < found["threshold"] < 100 and "threshold" in done.stderr
    assert len(made.measured) < len(GAIN) + 1
    steps = {step["name"]: step["values"] for step in found["steps"]}
    assert steps["0000-stock"] == [100.0] and steps["0040-step"] == [20.0]
    assert "0030-step" in steps
    made.assert_untouched()
    assert state(made.path) == before
    draft = json.loads((made.session / "record.json").read_text())
    assert draft["id"] == "0040-step" and draft["parent"] == "0030-step"
    assert draft["title"] == "step: change what it says"
    assert draft["measurements"][0]["result"]["gain"] == 5


def test_the_table_names_the_commit_the_threshold_and_the_files(tree):
    made = tree("100", "20", "20")
    done = made.bisect()
    lines = done.stdout.splitlines()
    (row,) = [line for line in lines if line.endswith("<--")]
    assert row.split()[1:4] == ["0010-step", "20", "us"]
    facts = {line.split()[0]: line for line in lines if line.strip()}
    assert made.commit("0010-step") in facts["gain"]
    assert facts["threshold"].endswith("44.72 us")
    assert Path(facts["figures"].split()[1]).exists()
    assert Path(facts["draft"].split()[1]).exists()


def test_a_loss_is_found(tree):
    made = tree("20", "20", "21", "90", "90")
    done = made.bisect("--find", "loss", "--json")
    assert json.loads(done.stdout)["name"] == "0030-step"


def test_where_more_is_better(tree, probe):
    probe(better=probes.HIGHER, unit="tok/s")
    made = tree("20", "20", "60", "60")
    assert json.loads(made.bisect("--json").stdout)["name"] == "0020-step"
    made = made.bisect("--find", "loss")
    assert made.returncode == Exit.NO
    assert "between the ends is a gain, not a loss" in made.stderr


def test_two_ends_next_to_each_other(tree):
    made = tree("100", "50")
    done = made.bisect("--old", "0001", "--new", "0010", "--json")
    assert json.loads(done.stdout)["name"] == "0010-step"


@pytest.mark.parametrize(
    "speeds, find, said, after",
    [
        (("100", "50", "100"), "gain", "their figures overlap", "further apart"),
        (("100", "50", "99"), "gain", "their figures differ by 1.01%", "further apart"),
        (("100", "50", "200"), "gain", "is a loss, not a gain", "--find loss"),
        (("100", "50", "20"), "loss", "is a gain, not a loss", "--find gain"),
    ],
)
def test_ends_without_the_change_are_refused(tree, speeds, find, said, after):
    made = tree(*speeds)
    done = made.bisect("--find", find)
    assert done.returncode == Exit.NO and done.stdout == ""
    assert said in done.stderr and after in done.stderr
    assert "old b" not in done.stdout and f"old {speeds[0]}" not in done.stdout
    assert len(made.measured) == 2
    made.assert_untouched()


def test_ends_whose_figures_overlap_in_part_are_refused(tree, probe):
    probe(rounds=3)
    made = tree("noisy 100 80 90", "70", "noisy 60 85 61")
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "their figures overlap" in done.stderr
    assert "100, 80, 90 us" in done.stderr and "60, 85, 61 us" in done.stderr
    # The ends take turns, in alternating order.
    order = [line.split()[1] for line in made.measured]
    assert order == ["100", "60", "60", "100", "100", "60"]


def test_rounds_are_decided_by_their_median(tree, probe):
    probe(rounds=3)
    made = tree("100", "noisy 30 100 101", "noisy 20 99 21", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert found["name"] == "0020-step"
    assert {len(step["values"]) for step in found["steps"]} == {3}
    again = made.bisect()
    assert "its figures lie on both sides of the threshold" in again.stdout


def test_a_commit_that_does_not_build_is_skipped_and_named(tree):
    made = tree("100", "100", "skip", "100", "20", "20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["name"] == "0040-step"
    measured = [step["name"] for step in found["steps"]]
    if "0020-step" in measured:
        assert found["skipped"] == ["0020-step (it does not build)"]


def test_skipped_commits_beside_the_change_leave_several_open(tree):
    made = tree("100", "100", "skip", "skip", "20", "20")
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "open" in done.stdout
    for name in ("0020-step", "0030-step", "0040-step"):
        assert (
            f"{name}"
            in [line for line in done.stdout.splitlines() if "open" in line][0]
        )
    assert "0020-step (it does not build)" in done.stdout
    assert "draft" not in done.stdout and not (made.session / "record.json").exists()


def test_all_between_skipped(tree):
    made = tree("100", "skip", "skip", "20")
    done = made.bisect("--json")
    assert done.returncode == Exit.NO
    assert json.loads(done.stdout)["culprit"] is None


def test_a_fast_wrong_tree_is_no_gain(tree):
    made = tree("100", "wrong 1", "wrong 1", "wrong 1", "100", "20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert found["name"] == "0050-step"
    assert found["skipped"]
    assert all("(scores differ)" in said for said in found["skipped"])


def test_a_gain_with_wrong_results_above_it_is_not_that_of_what_put_them_right(tree):
    gain_at_3 = ("100", "100", "100", "20", "20", "wrong 20", "wrong 20", "20", "20")
    made = tree(*gain_at_3)
    found = json.loads(made.bisect("--json").stdout)
    assert found["name"] == "0030-step"


def test_wrong_results_beside_the_change_leave_several_open(tree):
    made = tree("100", "wrong 20", "wrong 20", "20")
    done = made.bisect("--json")
    found = json.loads(done.stdout)
    assert done.returncode == Exit.NO and found["culprit"] is None
    names = ("0010-step", "0020-step", "0030-step")
    assert set(found["candidates"]) == {made.commit(name) for name in names}


def test_a_wrong_tree_is_no_loss_either(tree):
    made = tree("20", "20", "wrong 500", "20", "90", "90")
    found = json.loads(made.bisect("--find", "loss", "--json").stdout)
    assert found["name"] == "0040-step"


@pytest.mark.parametrize("bad", ["skip", "wrong 5"])
def test_an_end_that_cannot_be_measured(tree, bad):
    made = tree("100", "100", bad)
    done = made.bisect()
    assert done.returncode == Exit.NO
    assert "the new end can't be measured" in done.stderr
    assert "choose another end: --new COMMIT" in done.stderr


ABORTS = [
    ("raise", "exit 1"),
    *((f"exit {code}", f"exit {code}") for code in (1, 2, 3, 6, 70, 125, 126, 127)),
    ("kill", "signal SIGKILL"),
    ("nothing", "exit 0 and no figures"),
    ("garbage", "not JSON"),
    ("shape", "it gave no figure"),
]


@pytest.mark.parametrize("word, said", ABORTS, ids=[word for word, _ in ABORTS])
def test_a_probe_that_fails_gives_up_and_names_no_commit(tree, word, said):
    made = tree("100", word, word, word, "20")
    done = made.bisect("--json")
    assert done.returncode == Exit.ENVIRONMENT
    told = json.loads(done.stdout)
    assert told["error"] == "the probe failed, which says nothing about the commit"
    assert said in told["where"] and "commit " in told["where"]
    assert "no commit is named" in told["state"]
    assert not (made.session / "result.json").exists()
    made.assert_untouched()


@pytest.mark.parametrize("speeds", [("raise", "50", "20"), ("100", "50", "exit 2")])
def test_a_probe_that_fails_at_an_end(tree, speeds):
    made = tree(*speeds)
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the probe failed" in done.stderr and ".log" in done.stderr
    quoted = "ZeroDivisionError: of the probe" in done.stderr
    assert quoted == ("raise" in speeds)
    made.assert_untouched()


def test_a_probe_that_hangs_is_stopped(tree, probe):
    probe(limit_s=2)
    made = tree("100", "hang", "hang", "20")
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "it took more than 2 s" in done.stderr


def test_a_python_that_is_not_there(tree):
    made = tree("100", "20")
    done = made.bisect("--python", "/nowhere/python")
    assert done.returncode == Exit.ENVIRONMENT
    assert "/nowhere/python does not start" in done.stderr
    assert "nothing was measured" in done.stderr and not made.out.exists()


def test_a_python_without_what_the_probe_needs_is_refused_first(tree, probe):
    probe(needs=("json", "no_such_module"))
    made = tree("100", "20")
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the Python that measures lacks no_such_module" in done.stderr
    assert "--python PY" in done.stderr
    assert made.measured == [] and not made.out.exists()


def test_kernels_need_a_gpu_and_counting_none():
    assert probes.find("kernel:indexer").needs == ("torch", "triton", "CUDA")
    assert probes.find("work:indexer").needs == ("torch", "triton")


def test_a_gpu_is_asked_of_torch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: HAS)\n"
    )
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    with (tmp_path / "torch.py").open("a") as file:
        file.write("import os\nHAS = os.environ['HAS'] == 'yes'\n")
    monkeypatch.setenv("HAS", "yes")
    interpreter.require(str(python), ("torch", "CUDA"))
    monkeypatch.setenv("HAS", "no")
    with pytest.raises(Failure, match="a GPU that torch can use") as raised:
        interpreter.require(str(python), ("torch", "CUDA"))
    assert raised.value.code == Exit.ENVIRONMENT


def test_a_python_of_a_relative_path_is_found_from_where_the_user_is(tree):
    made = tree("100", "20")
    (made.directory / "python").symlink_to(sys.executable)
    line = made.command("--python", "./python")
    done = patchset(*line, env=made.env(), cwd=made.directory)
    assert done.returncode == 0, done.stderr


def test_figures_of_a_session_that_gave_up_are_kept(tree):
    made = tree("100", "exit 3", "exit 3", "20")
    made.bisect()
    assert made.measured[:2] == ["100", "20"]
    ends = len(made.measured)
    assert made.bisect().returncode == Exit.ENVIRONMENT
    assert made.measured[ends:] == ["exit 3"]


def interrupted(made: Tree, number: int) -> tuple[int, str]:
    """Start a bisect as a process of its own, and send it a signal once it is at the paused step."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import test_bisect\nfrom patchset import cli\nfrom patchset.bisect import probes\n"
        "probes.find = lambda *_: test_bisect.FAKE\nsys.exit(cli.main(sys.argv[1:]))"
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_and_the_same_command_goes_on(tree, number):
    made = tree("100", "100", "pause 100", "100", "20", "20")
    code, said = interrupted(made, number)
    assert code == 128 + number, said
    assert "run the same command again" in said
    made.assert_untouched()
    before = made.measured
    assert not [line for line in processes() if str(made.out) in line]
    done = made.bisect("--json")
    assert "going on with" in done.stderr
    assert json.loads(done.stdout)["name"] == "0040-step"
    # Only the step that was interrupted is measured again.
    again = made.measured[len(before) :]
    assert again.count("pause 100") == 1 and len(again) + len(before) - 1 <= 6


def test_a_killed_bisect_is_swept_away(tree):
    made = tree("100", "pause 100", "100", "20")
    code, _ = interrupted(made, signal.SIGKILL)
    assert code == -signal.SIGKILL
    left = list(made.out.glob("*/running-*"))
    assert len(left) == 1
    done = made.bisect("--json")
    assert json.loads(done.stdout)["name"] == "0030-step"
    made.assert_untouched()
    for line in processes():
        if str(made.out) in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)


AT_AN_END, AT_A_STEP = ("serve", "20"), ("100", "serve", "serve", "20")


@pytest.mark.parametrize("speeds", [AT_AN_END, AT_A_STEP], ids=["end", "step"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_bisect_leaves_no_server(tree, speeds, number):
    made = tree(*speeds)
    code, said = interrupted(made, number)
    assert code == 128 + number, said
    (server,) = made.servers()
    assert not Path(f"/proc/{server}").exists()
    assert not [line for line in processes() if str(made.out) in line]
    made.assert_untouched()


@pytest.mark.parametrize("speeds", [AT_AN_END, AT_A_STEP], ids=["end", "step"])
def test_a_server_that_takes_too_long_is_stopped_with_the_probe(tree, probe, speeds):
    probe(limit_s=8)
    made = tree(*speeds)
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "it took more than 8 s" in done.stderr
    (server,) = made.servers()
    assert not Path(f"/proc/{server}").exists()


def test_a_step_that_does_not_end_when_asked_is_killed(tree, probe, monkeypatch):
    monkeypatch.setattr(measuring, "PATIENCE_S", 1.0)
    probe(limit_s=3)
    made = tree("stubborn", "20")
    done = made.bisect()
    assert "it took more than 3 s" in done.stderr
    assert not [line for line in processes() if str(made.out) in line]


def processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        found.append(f"{path.parent.name} {words}")
    return found


def test_what_python_compiles_is_no_change_of_the_harness(tree):
    made = tree("100", "exit 3", "20")
    env = {"PYTHONPYCACHEPREFIX": ""}
    made.bisect(**env)
    assert list((made.session / "harness").rglob("*.pyc"))
    before = len(made.measured)
    made.bisect(**env)
    assert made.measured[before:] == ["exit 3"]


def test_figures_of_another_program_are_kept_apart(tree, probe):
    made = tree("100", "exit 3", "20")
    made.bisect()
    probe(program=(*FAKE.program, "--stock", "other"))
    before = len(made.measured)
    made.bisect()
    assert made.measured[before:] == ["100", "20", "exit 3"]
    probe()
    before = len(made.measured)
    made.bisect()
    assert made.measured[before:] == ["exit 3"]
    assert len(list(made.out.iterdir())) == 2


@pytest.mark.parametrize(
    "case, said",
    [
        ("nothing", "no workload 'nothing'; there are: sweep-256-256, long-8192-256"),
        ("nothing@1", "no workload 'nothing'"),
        ("sweep-256-256@7", "has C=1, 16, 64, and not C='7'"),
        ("sweep-256-256@", "and not C=''"),
        ("sweep-256-256@x", "and not C='x'"),
    ],
)
def test_a_workload_that_is_not_there_is_refused_first(tree, probe, case, said):
    probe(workload=case)
    made = tree("100", "20")
    done = made.bisect()
    assert done.returncode == Exit.USAGE and said in done.stderr
    assert "--probe serving:WORKLOAD[@C]" in done.stderr
    assert made.measured == [] and not made.out.exists()


def test_a_changed_harness_is_measured_afresh(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    (made.session / "harness" / "scripts" / "patchset" / "errors.py").write_text("")
    before = len(made.measured)
    made.bisect()
    assert made.measured[before : before + 2] == ["100", "20"]


def test_a_complete_session_is_kept_beside_the_next(tree):
    made = tree("100", "20")
    made.bisect()
    first = made.session
    kept = snapshot(first)
    made.bisect()
    assert sorted(path.name for path in made.out.iterdir()) == [
        first.name,
        f"{first.name}-2",
    ]
    assert snapshot(first) == kept


def test_two_at_once(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    with lock.hold(made.session / ".lock"):
        done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "this bisect is at work already" in done.stderr


def test_the_users_own_work_and_bisect_stay(tree):
    made = tree(*GAIN)
    git(made.path, "checkout", "--quiet", "-b", "mine")
    (made.path / SPEED).write_text("7\n")
    (made.path / "note.txt").write_text("mine\n")
    tip, first = made.commit("0070-step"), git(made.path, "rev-parse", base.REF)
    git(made.path, "stash", "--quiet")
    git(made.path, "bisect", "start", tip, first)
    git(made.path, "checkout", "--quiet", "mine")
    git(made.path, "stash", "pop", "--quiet")
    before = state(made.path)
    done = made.bisect("--json")
    assert json.loads(done.stdout)["name"] == "0040-step"
    assert "changes that are not committed are not measured" in done.stderr
    assert state(made.path) == before


def test_a_full_disk(tree, small_disk):
    made = tree("100", "20")
    made.out = small_disk / "out"
    made.out.mkdir()
    with open(small_disk / "filler", "wb") as filler:
        filler.write(b"\0" * (3 << 20))
        filler.flush()
    with open(small_disk / "rest", "wb") as rest:
        try:
            while True:
                rest.write(b"\0" * 65536)
                rest.flush()
        except OSError:
            pass
    done = made.bisect()
    assert done.returncode == Exit.ENVIRONMENT
    assert "the disk is full" in done.stderr and "Traceback" not in done.stderr
    assert not list(made.out.glob("*/.harness-*"))
    made.assert_untouched()


@pytest.mark.parametrize(
    "line, said",
    [
        (("--old", "0030", "--new", "0010"), "the old end is not before the new end"),
        (("--old", "0010", "--new", "10"), "the old end is not before the new end"),
        (("--old", "0999"), "no commit '0999'"),
        (("--new", "-x"), "expected one argument"),
        (("--serve", "--tp-size 8"), "go with serving:"),
        (("--probe", "serving:x", "--serve=--api-key k-1"), "--serve has a key"),
        (("--probe", "serving:x", "--smoke=--api-key=k-1"), "--smoke has a key"),
        (("--probe", "serving:x", "--bench=--tag 'k-1"), "no list of words"),
        (("--over", "repo", "--old", "x"), "--tree means nothing with --over repo"),
        (("--find", "luck"), "invalid choice"),
    ],
)
def test_usage(tree, line, said):
    made = tree("100", "50", "50", "20")
    done = made.bisect(*line)
    assert done.returncode == Exit.USAGE
    assert said in done.stderr and "k-1" not in done.stderr
    assert made.measured == [] and not list(made.out.rglob("plan.json"))


def test_an_unknown_probe_names_those_there_are(tmp_path):
    done = patchset("bisect", "--probe", "work:luck", "--tree", tmp_path)
    assert done.returncode == Exit.USAGE
    assert "no probe 'work:luck'" in done.stderr and "work:indexer" in done.stderr


def test_no_tree(probe, tmp_path):
    done = patchset("bisect", "--probe", "fake:speed", "--tree", tmp_path / "none")
    assert done.returncode == Exit.USAGE
    assert "there is no patched tree" in done.stderr and "apply.sh" in done.stderr


@pytest.mark.parametrize("holds", ["nothing", "a repository of git"])
def test_a_tree_of_another_kind(probe, tmp_path, holds):
    if holds != "nothing":
        (tmp_path / ".git").mkdir()
    done = patchset("bisect", "--probe", "fake:speed", "--tree", tmp_path)
    assert done.returncode == Exit.PATCH
    after = done.stderr.partition("\nnext:")[2].strip()
    assert after.startswith("name a tree that scripts/apply.sh made: ")
    assert after.endswith("scripts/bisect.sh --probe fake:speed --tree DIR")


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


@pytest.fixture
def repository(tmp_path, probe, monkeypatch):
    """Makes a repository; the pin that the verb reads is that of the made release."""

    def made(*speeds) -> Repository:
        repo = Repository(tmp_path, list(speeds))
        from patchset.bisect import session

        pin = repo.tree.release.series.pin
        monkeypatch.setattr(session, "load_pin", lambda directory: pin)
        return repo

    return made


def test_over_the_commits_of_a_repository(repository):
    made = repository("100", "99", "20", "21")
    git(made.root, "checkout", "--quiet", "-b", "mine")
    before = state(made.root)
    done = made.bisect("--old", made.commits[0], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["culprit"] == made.commits[2] and found["over"] == "repo"
    # Each is measured beside its own patches.
    said = {step["commit"]: step["step"] for step in found["steps"]}
    for commit, speed in zip(made.commits, ("100", "99", "20", "21")):
        if commit in said:
            assert f"\n+{speed}\n" in said[commit]
    assert len(said) >= 3
    assert state(made.root) == before


def test_commits_whose_series_does_not_apply_are_skipped(repository):
    made = repository("100", "99", "conflict", "20", "21", "none", "22")
    done = made.bisect("--old", made.commits[0], "--json")
    found = json.loads(done.stdout)
    if found["culprit"] is None:
        assert made.commits[3] in found["candidates"]
    skipped = " ".join(found["skipped"])
    steps = {step["commit"]: step for step in found["steps"]}
    for commit in (made.commits[2], made.commits[5]):
        if commit in steps:
            assert commit[:12] in skipped and steps[commit]["skip"]


def test_over_a_repository_needs_an_end_and_a_repository(probe, tmp_path):
    line = ("bisect", "--probe", "fake:speed", "--over", "repo")
    done = patchset(*line, "--root", tmp_path)
    assert done.returncode == Exit.USAGE and "--old COMMIT" in done.stderr
    done = patchset(*line, "--root", tmp_path, "--old", "HEAD")
    assert done.returncode == Exit.ENVIRONMENT
    assert "not a git repository" in done.stderr


def test_every_probe_has_a_program_and_sense():
    for name in probes.names():
        found = probes.find(name, {"serve": "--tp-size 1"})
        module = found.program[1].split(".")
        assert ROOT.joinpath("scripts", *module).with_suffix(".py").exists()
        assert found.rounds >= 1 and 0 < found.least_change < 1
        assert found.shown(1.0).startswith("1")
        served = name.startswith("serving:")
        assert found.workload == (name.partition(":")[2] if served else "")


def test_a_plan_of_another_version_is_not_gone_on_with(tree):
    made = tree("100", "exit 3", "20")
    made.bisect()
    file = made.session / "plan.json"
    file.write_text(json.dumps({"over": "tree"}))
    before = len(made.measured)
    made.bisect()
    assert made.measured[before : before + 2] == ["100", "20"]
    assert plans.read(made.session).probe == "fake:speed"
