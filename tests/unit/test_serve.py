"""scripts/serve.sh with server processes that answer, die, hang and have children."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from made_wheel import ROOT, command, environment, patchset
from patchset import gpus, serverprocess, serversettings, signals
from patchset.errors import Exit, Failure
from patchset.series import load_series
from patchset.serverbuild import Build
from patchset.serverprocess import ServerProcess
from patchset.verbs import serve

HERE = Path(__file__).parent

# What stands for sglang.launch_server: it starts a child as SGLang starts schedulers.
LAUNCH = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(HERE)!r})
how = os.environ.get("FAKE", "good")
print("started with", *sys.argv[1:], flush=True)
print("PYTHONPATH", os.environ.get("PYTHONPATH"), "LC_ALL", os.environ.get("LC_ALL"), flush=True)
if how == "dies":
    sys.exit("Traceback (most recent call last):\\n  File x\\nRuntimeError: no room for the weights")
if how == "no port":
    sys.exit("Traceback (most recent call last):\\n  File x\\ntorch.distributed.DistNetworkError: The server socket has failed to listen. port: 46160, message: address already in use")
if how == "killed":
    os.kill(os.getpid(), 9)
ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if how == "stubborn" else ""
child = subprocess.Popen([sys.executable, "-c", f"import signal, time; {{ignore}}time.sleep(600)"],
                         process_group=0)
print("child", child.pid, flush=True)
if how == "hangs":
    print("Load weight begin.", flush=True)
    time.sleep(600)
port = int(sys.argv[sys.argv.index("--port") + 1])
from fake_server import Fake, serving
with serving(Fake(), port):
    if how == "dies later":
        time.sleep(1.5)
        print("[2026-11-29 17:22:33 TP0] Scheduler hit an exception: Traceback (most recent call last):\\n  File x\\nRuntimeError: an illegal memory access", flush=True)
        child.kill()
        os._exit(3)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path) -> Path:
    package = tmp_path / "tree" / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(LAUNCH)
    return tmp_path


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def line(place: Path, *more: str, port: int | None = None) -> list[str]:
    words = ["serve", "--tree", str(place / "tree"), "--python", sys.executable]
    words += ["--log", str(place / "log"), "--model-path", "m", "--tp", "1"]
    return [*words, "--port", str(port or free_port()), *more]


def children(place: Path) -> list[int]:
    log = (place / "log").read_text()
    return [int(row.split()[1]) for row in log.splitlines() if row.startswith("child")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Serving:
    """serve.sh as a process of its own, from when it says that the server is ready."""

    def __init__(self, words: list[str], **env: str):
        self.process = subprocess.Popen(
            command(*words),
            env=environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def ends(self, number: int | None = None) -> tuple[int, str]:
        if number:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_when_it_is_ready_and_ends_all_of_its_own(place, number):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        stubborn = {"FAKE": "stubborn"} if number == signal.SIGINT else {}
        words = line(place, "--json", "--disable-radix-cache")
        served = Serving(words, **stubborn)
        facts = served.ready()
        assert facts["build"]["state"] == "stock"
        (child,) = children(place)
        assert alive(child)
        code, said = served.ends(number)
        assert code == 128 + number, said
        assert re.search(r"^stopped: the server at http://127.0.0.1:\d+", said, re.M)
        assert "error" not in said and f"log: {place}/log" in said
        waited = f"SIGTERM was sent, waiting for the server's process(es) {child}: 10 s"
        assert (waited in said) == bool(stubborn)
        assert not alive(
            child
        ), "also a child that ignores SIGTERM, in a group of its own"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    log = (place / "log").read_text()
    assert "--model-path m --tp 1" in log and "--disable-radix-cache" in log
    assert "--tool-call-parser deepseekv4" in log


def test_the_server_gets_the_callers_environment_and_the_tree_first(place):
    served = Serving(
        line(place, "--json"),
        PATCHSET_CALLERS_PYTHONPATH="/theirs",
        LC_ALL="C.UTF-8",
    )
    served.ready()
    served.ends(signal.SIGTERM)
    log = (place / "log").read_text()
    assert f"PYTHONPATH {place}/tree/python:/theirs LC_ALL C.UTF-8" in log


def test_a_server_that_dies_at_the_start(place):
    done = patchset(*line(place), env={"FAKE": "dies"})
    assert done.returncode == Exit.SERVER and done.stdout == ""
    assert "(exit code 1): RuntimeError: no room for the weights" in done.stderr
    assert str(place / "log") in done.stderr and "started with" in done.stderr
    assert "remove the cause, then start it again" in done.stderr


def test_a_port_that_another_takes_while_it_starts(place):
    done = patchset(*line(place), env={"FAKE": "no port"})
    assert done.returncode == Exit.SERVER
    assert "port: 46160, message: address already in use" in done.stderr
    assert "with another --port, or --nccl-port" in done.stderr


def test_a_server_that_is_killed(place):
    done = patchset(*line(place), env={"FAKE": "killed"})
    assert done.returncode == Exit.SERVER
    assert "(signal SIGKILL): its log names no cause" in done.stderr
    assert "for want of memory" in done.stderr


def test_the_key_that_smoke_needs_is_named_and_not_told(place):
    served = Serving(line(place, "--api-key", "k-1"))
    rows = iter(served.process.stdout.readline, "")
    told = "".join(itertools.takewhile(lambda row: not row.startswith("stop"), rows))
    served.ends(signal.SIGTERM)
    (following,) = [row for row in told.splitlines() if row.startswith("next")]
    url = re.search(r"http://\S+", told)[0]
    words = shlex.split(following.partition("  (")[0])[2:]
    assert words == ["--url", url, "--build", "stock", "--api-key", "$API_KEY"]
    assert "k-1" not in told


def test_the_smoke_test_of_the_whole_series_names_no_build():
    series = load_series(ROOT / "patches" / "0.5.13")
    for name, words in ((series.last, ""), ("0050-x", " --build 0050-x")):
        build = Build("0.5.13", None, name, None, {})
        assert serve._smoke("u", build, series, False).endswith(f"--url u{words}")


@pytest.mark.parametrize(
    "words, said",
    [
        (("--model-path", "--tp-size", "1"), "--model-path needs a value"),
        (("--model-path", "--dry-run", "--tp-size", "1"), "--model-path needs a value"),
        (("--model=",), "--model needs a value"),
        (("--model-path", "m", "--tp"), "--tp needs a value"),
        (("--model-path", "m", "--host", "--port", "1"), "after it stands --port"),
        (("--model-path", "log"), "the model is a file, not a folder\nwhere: log"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_value_that_is_an_option_or_no_model(place, monkeypatch, words, said, dry):
    (place / "log").touch()
    monkeypatch.chdir(place)
    done = without_gpu(place, *dry, *GIVEN[:2], *words)
    assert done.returncode == Exit.USAGE and done.stdout == "", done.stderr
    assert said in done.stderr and "serve.sh --model-path DIR_OR_NAME" in done.stderr


def test_a_model_in_one_file(place):
    (place / "one.gguf").touch()
    words = (*GIVEN[:2], "--model-path", place / "one.gguf", "--tp", "1", "--dry-run")
    assert without_gpu(place, *words).returncode == 0


def test_a_server_that_never_gets_ready(place):
    done = patchset(*line(place, "--ready-timeout", "2"), env={"FAKE": "hangs"})
    assert done.returncode == Exit.SERVER
    assert "not ready after 2 s; it is still: loading weights" in done.stderr
    (child,) = children(place)
    assert not alive(child)


def test_a_server_that_dies_while_it_serves(place):
    done = patchset(*line(place), env={"FAKE": "dies later"})
    assert done.returncode == Exit.SERVER
    assert "ready" in done.stdout
    assert "(exit code 3): RuntimeError: an illegal memory access" in done.stderr


def test_a_port_in_use_is_left_alone(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = patchset(*line(place, port=port))
    assert done.returncode == Exit.SERVER
    assert f"already listens on 127.0.0.1 port {port}" in done.stderr
    assert not (place / "log").exists()


def test_a_python_that_is_none(place):
    words = line(place, "--python", str(place / "none"))
    done = patchset(*words)
    assert done.returncode == Exit.USAGE
    assert f"no such interpreter: {place}/none" in done.stderr


def without_gpu(place: Path, *words: str, **env: str):
    """serve.sh without --tp on a machine without nvidia-smi."""
    command = ["serve", "--tree", str(place / "tree"), *words]
    return patchset(*command, env={"PATH": str(place), **env})


GIVEN = ("--python", sys.executable, "--model-path", "m")


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    "words, env, said",
    [
        (GIVEN[:2], {}, "no model is named"),
        (("--python", "/none", *GIVEN[2:]), {}, "no such interpreter: /none"),
        ((*GIVEN, "--port", "x"), {}, "--port needs a number"),
        (GIVEN, {"SGLANG_SM120_TOPK": "yes"}, "expected one of auto, on, off"),
        (GIVEN, {"SGLANG_SM120_HC_PRE_WEIGHTS": ""}, "expected one of split, bf16"),
        (GIVEN, {"SGLANG_SM120_LOGITS_MB": "0"}, "a whole number above 0"),
    ],
)
def test_what_was_typed_comes_before_the_gpu(place, words, env, said, dry):
    done = without_gpu(place, *words, *dry, **env)
    assert done.returncode == Exit.USAGE, done.stderr
    assert said in done.stderr and "nvidia-smi" not in done.stderr


@pytest.mark.parametrize(
    "model",
    ["/none/m", "./none", "../none", "~/none", "none/", "none/of/these", "tree/none"],
)
def test_a_folder_of_a_model_that_is_none(place, monkeypatch, model):
    monkeypatch.chdir(place)
    words = (*GIVEN[:2], "--model-path", model)
    done = without_gpu(place, *words)
    assert done.returncode == Exit.USAGE, done.stderr
    assert f"no such folder of a model\nwhere: {model}" in done.stderr
    # A dry run may be for another machine.
    assert without_gpu(place, *words, "--tp", "1", "--dry-run").returncode == 0


@pytest.mark.parametrize("model", ["none", "none/none", "tree", "s3://none/of/these"])
def test_what_may_be_a_model_elsewhere_goes_on_to_the_gpu(place, monkeypatch, model):
    monkeypatch.chdir(place)
    done = without_gpu(place, *GIVEN[:2], "--model-path", model)
    assert done.returncode == Exit.ENVIRONMENT and "no nvidia-smi" in done.stderr


def test_right_words_go_on_to_the_gpu(place):
    good = {"SGLANG_SM120_TOPK": "on", "SGLANG_SM120_LOGITS_MB": "64"}
    done = without_gpu(place, *GIVEN, **good)
    assert done.returncode == Exit.ENVIRONMENT and "no nvidia-smi" in done.stderr


def test_a_tree_that_is_none(place):
    done = patchset(*line(place, "--tree", str(place)))
    assert done.returncode == Exit.USAGE
    assert "this is no SGLang tree" in done.stderr


def test_two_places_at_once(place):
    done = patchset(*line(place, "--installed"))
    assert done.returncode == Exit.USAGE and "name two places" in done.stderr


def test_a_dry_run_shows_the_command_and_starts_nothing(place):
    done = patchset(*line(place, "--dry-run", port=30001))
    assert done.returncode == 0
    assert done.stdout.startswith(
        f"PYTHONPATH={place}/tree/python {shlex.quote(sys.executable)} -m"
    )
    assert "--port 30001" in done.stdout and not (place / "log").exists()


def test_keys_reach_the_server_and_are_not_shown(place):
    keys = ["--api-key", "k-1", "--admin-api-key=k-2", "--ssl-keyfile-password", "k-3"]
    done = patchset(*line(place, "--dry-run", *keys))
    assert done.returncode == 0 and not re.search(r"k-\d", done.stdout)
    hidden = "--api-key '***' '--admin-api-key=***' --ssl-keyfile-password '***'"
    assert hidden in done.stdout
    done = patchset(*line(place, *keys), env={"FAKE": "dies"})
    starting = done.stderr.partition("log:")[0]
    assert hidden in starting and "k-1" not in starting
    log = (place / "log").read_text()
    assert "--api-key k-1 --admin-api-key=k-2" in log


@pytest.mark.parametrize(
    "given, shown",
    [
        (["--api-k", "x", "--port", "1"], ["--api-k", "***", "--port", "1"]),
        (["--api-key", "--api-key", "y"], ["--api-key", "***", "y"]),
        (["--ssl-keyfile", "f", "--a", "b"], ["--ssl-keyfile", "f", "--a", "b"]),
        (["--api-key"], ["--api-key"]),
    ],
)
def test_what_is_shown_of_a_command(given, shown):
    assert serversettings.without_secrets(given) == shown


@pytest.mark.parametrize("given", [["--port", "abc"], ["--port=65536"], ["--port"]])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_port_that_is_none(place, given, dry):
    words = line(place)
    at = words.index("--port")
    done = patchset(*words[:at], *dry, *given)
    assert done.returncode == Exit.USAGE, done.stderr
    assert "--port needs a number from 1 to 65535" in done.stderr
    assert not (place / "log").exists() and done.stdout == ""


SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_signal_while_the_server_is_started_leaves_none(place, monkeypatch):
    made = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            made.append(self)
            signal.raise_signal(signal.SIGTERM)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, signals._raise)
    try:
        with pytest.raises(KeyboardInterrupt):
            with serverprocess.started(SLEEPS, os.environ, place / "log"):
                pytest.fail("it went on")
        assert made[0].poll() is not None
        assert signal.getsignal(signal.SIGTERM) is signals._raise
    finally:
        signal.signal(signal.SIGTERM, before)
        made[0].kill()
        made[0].wait()
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]


def test_a_signal_that_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.deferred():
            # A program that is started here has to ignore it too.
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_processes_that_survive_are_named(place, monkeypatch):
    monkeypatch.setattr(ServerProcess, "_signal", lambda self, number: None)
    monkeypatch.setattr(ServerProcess.stop, "__defaults__", (0.1,))
    with pytest.raises(Failure) as caught:
        with serverprocess.started(SLEEPS, os.environ, place / "log") as server:
            process = server._process
            raise Failure(Exit.SERVER, "it is not ready")
    process.kill()
    process.wait()
    found = "\n".join(caught.value.lines())
    assert "1 of the server's processes can't be ended" in found
    assert f"process ids: {server.pid}" in found and "it is not ready" in found


def test_what_the_user_gives_comes_first():
    given = ["--model=m", "--context-length", "8192", "--reasoning-parser=other"]
    words = serversettings.complete(given, 6)
    named = serversettings.options(words)
    assert words[: len(given)] == given
    assert named["--context-length"] == "8192"
    assert named["--reasoning-parser"] == "other"
    assert named["--tp-size"] == "4"
    assert len(words) == len(given) + 2 * (len(named) - 3)


@pytest.mark.parametrize("gpus, size", [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (9, 8)])
def test_heads_are_split_over_a_power_of_two(gpus, size):
    assert serversettings.tp_size(gpus) == size


def test_the_context_is_the_models_where_that_is_shorter(tmp_path):
    def context(text: str) -> str:
        (tmp_path / "config.json").write_text(text)
        words = serversettings.complete(["--model-path", str(tmp_path)], None)
        return serversettings.options(words)["--context-length"]

    assert context('{"max_position_embeddings": 4096}') == "4096"
    assert context('{"max_position_embeddings": 1048576}') == "131072"
    assert context("{}") == "131072"
    for bad in ("{", "[]", '{"max_position_embeddings": null}'):
        with pytest.raises(Failure, match="config.json can't be read"):
            context(bad)


def test_without_a_model_it_is_a_usage_error():
    with pytest.raises(Failure) as caught:
        serversettings.complete(["--port", "1"], 1)
    assert caught.value.code == Exit.USAGE


def smi(tmp_path, monkeypatch, script: str) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


CARD = "echo 'NVIDIA RTX PRO 6000 Blackwell, 97887, 12.0'"


def test_the_gpus_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi(tmp_path, monkeypatch, f"{CARD}; {CARD}")
    assert len(gpus.visible()) == 2
    assert gpus.visible()[0].line() == "NVIDIA RTX PRO 6000 Blackwell, 96 GiB, sm_120"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(gpus.visible()) == 1


@pytest.mark.parametrize(
    "script, said",
    [
        ("echo no driver; exit 9", "nvidia-smi failed: no driver"),
        ("exit 0", "no GPU is visible"),
        ("echo what", "in another form: 'what'"),
    ],
)
def test_no_gpus(tmp_path, monkeypatch, script, said):
    smi(tmp_path, monkeypatch, script)
    with pytest.raises(Failure, match=said) as caught:
        gpus.visible()
    assert caught.value.code == Exit.ENVIRONMENT


def test_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="no nvidia-smi"):
        gpus.visible()
