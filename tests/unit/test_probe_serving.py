"""`serving:WORKLOAD` against commands that stand in for serve, smoke and bench."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import made_smi
from made_series import git
from made_wheel import ROOT

PACKAGE = ROOT / "scripts" / "patchset"

COMMANDS = """
import json, os, sys, time
verb, words = sys.argv[1], sys.argv[2:]
with open(os.environ["SEEN"], "a") as seen:
    path = os.environ.get("PATCHSET_CALLERS_PYTHONPATH", "")
    seen.write(json.dumps([verb, *words, path]) + "\\n")
mode = os.environ.get(verb.upper() + "_MODE", "")
if mode:
    # As cli.main tells of a failure.
    from .errors import Failure
    failure = Failure(int(mode), f"{verb} says {mode}", where="here", next="that")
    print("\\n".join(failure.lines()), file=sys.stderr)
    if "--json" in words:
        print(json.dumps(failure.as_json(), indent=1), flush=True)
    sys.exit(int(mode))
if verb == "serve":
    print(json.dumps({"url": "http://127.0.0.1:1", "build": {"commit": "c"}}), flush=True)
    open(os.environ["SEEN"] + ".pid", "w").write(str(os.getpid()))
    time.sleep(600)
if verb == "bench":
    runs = [
        {"arm": "tree", "concurrency": c, "round": r,
         "figures": {"output_throughput": float(100 * c + 10 * r)}}
        for c in [int(words[words.index("--workload") + 1].split("@")[1])] for r in range(4)
    ]
    machine = {"gpu": "a GPU", "count": 1}
    print(json.dumps({"workload": {"id": "w"}, "machine": machine, "runs": runs}))
"""


WORKLOADS = """
[[workload]]
id = "w"
input_tokens = 256
output_tokens = 256
concurrency = [1, 16]
requests_per_slot = 4
rounds = 3
seed = 1
"""


@pytest.fixture
def probe(tmp_path):
    """Runs the program beside the stand-ins: its exit code, its figures, what was called."""
    package = tmp_path / "scripts" / "patchset"
    (package / "probe").mkdir(parents=True)
    for name in ("__init__", "faults", "outcome", "serving_speed"):
        name = f"probe/{name}"
        shutil.copyfile(PACKAGE / f"{name}.py", package / f"{name}.py")
    for name in (
        "__init__",
        "servertree",
        "errors",
        "gpuload",
        "invocation",
        "serversettings",
        "signals",
        "workload",
    ):
        shutil.copyfile(PACKAGE / f"{name}.py", package / f"{name}.py")
    (package / "__main__.py").write_text(COMMANDS)
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "workload.toml").write_text(WORKLOADS)
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet", "--template=")
    seen = tmp_path / "seen.txt"

    def run(*patches: str, case: str = "w", words=(), env={}, **modes):
        for patch in patches:
            who = ("-c", "user.name=t", "-c", "user.email=t@t.invalid")
            message = f"x\n\nPatch: {patch}"
            git(tree, *who, "commit", "--quiet", "--allow-empty", "-m", message)
        seen.write_text("")
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "patchset.probe.serving_speed"]
            + ["--case", case, "--out", str(out), *words],
            env={
                **os.environ,
                "PYTHONPATH": str(tmp_path / "scripts"),
                "PATCHSET_TREE": str(tree),
                "SEEN": str(seen),
                **env,
                **{f"{name.upper()}_MODE": str(code) for name, code in modes.items()},
            },
            capture_output=True,
            text=True,
        )
        calls = [json.loads(line) for line in seen.read_text().splitlines()]
        found = json.loads(out.read_text()) if out.exists() else None
        assert not Path(f"/proc/{pid(seen)}").exists(), "the server still runs"
        return done, found, calls

    return run


def pid(seen: Path) -> str:
    file = Path(f"{seen}.pid")
    return file.read_text() if file.exists() else "none"


def test_the_counted_rounds_of_the_last_concurrency(probe):
    done, found, calls = probe("0020-environ-flags")
    assert done.returncode == 0, done.stderr
    assert found["value"] == 1620 and found["speeds"] == [1610, 1620, 1630]
    assert found["correct"] and found["build"] == {"commit": "c"}
    assert found["machine"] == {"gpu": "a GPU", "count": 1}, "the server's"
    serve, smoke, bench = calls
    assert serve[:2] == ["serve", "--tree"] and {"--port", "--log"} <= set(serve)
    assert smoke[:-1] == ["smoke", "--url", "http://127.0.0.1:1", "--build", "stock"]
    # The benchmark is the tree's own.
    assert bench[-1].split(os.pathsep)[0].endswith("/tree/python")
    assert "tree=http://127.0.0.1:1@stock" in bench
    assert bench[bench.index("--workload") + 1] == "w@16"
    assert "--smoked" in bench, "it was asked just before"


@pytest.mark.parametrize(
    "patches, active",
    [(["0020-environ-flags"], []), (["0025-server-info"], ["--active", "A", "B"])],
)
def test_a_tree_that_can_t_tell_is_not_asked_for_its_paths(probe, patches, active):
    words = ("--smoke=--active A B --timeout 9",)
    done, _, calls = probe(*patches, words=words)
    assert done.returncode == 0, done.stderr
    smoke = calls[1]
    assert smoke[5:-1] == [*active, "--timeout", "9"]


def test_a_patch_that_can_be_told_and_a_chosen_concurrency(probe):
    words = ("--serve=--model-path 'a b' --port 7", "--smoke=--weights random")
    done, found, calls = probe(
        "0025-server-info", "0030-indexer", case="w@1", words=words
    )
    assert found["value"] == 120
    serve, smoke, bench = calls
    assert serve[-5:-1] == ["--model-path", "a b", "--port", "7"]
    assert serve.count("--port") == 1
    assert smoke[-5:-1] == ["--build", "0030-indexer", "--weights", "random"]
    assert "tree=http://127.0.0.1:1@0030-indexer" in bench and "random" in bench


@pytest.mark.parametrize(
    "mode, said",
    [
        ({"serve": 6}, "its server does not start: serve says 6"),
        ({"smoke": 6}, "its server fails the smoke test: smoke says 6"),
    ],
)
def test_a_tree_that_does_not_serve_is_skipped(probe, mode, said):
    done, found, _ = probe("0030-indexer", **mode)
    assert done.returncode == 0 and found == {"skip": said}


@pytest.mark.parametrize(
    "mode", [{"serve": 4}, {"serve": 1}, {"smoke": 2}, {"bench": 6}, {"bench": 70}]
)
def test_whatever_else_fails_is_the_probes(probe, mode):
    done, found, _ = probe("0030-indexer", **mode)
    assert done.returncode != 0 and found is None
    assert "ProbeFailed" in done.stderr


def test_the_scripts_own_python_has_no_torch(probe, tmp_path):
    (tmp_path / "scripts" / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "def version(name):\n"
        "    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
    )
    done, found, _ = probe("0030-indexer")
    assert done.returncode == 0, done.stderr
    assert found["correct"]


@pytest.mark.parametrize("case", ["w@64", "w@", "w@x", "other", "other@1"])
def test_a_workload_that_is_not_there_is_told_before_any_server(probe, case):
    done, found, calls = probe("0030-indexer", case=case)
    assert done.returncode != 0 and found is None and calls == []
    assert "no workload 'other'" in done.stderr or "and not C=" in done.stderr


def test_a_tree_with_patches_of_its_own_is_told_by_them(probe):
    _, found, calls = probe("0030-indexer", env={"PATCHSET_PATCHES": "/its/patches"})
    assert found["correct"] and len(calls) == 3
    for call in calls:
        assert call[call.index("--patches") + 1] == "/its/patches"
    _, _, calls = probe()
    assert not any("--patches" in call for call in calls)


ONE = ("--serve=--tp 1",)


def test_a_gpu_that_is_free_before_and_after(probe, tmp_path):
    # The other GPU is not the server's.
    env = made_smi.answers(tmp_path, (3, 50_000), (4, 50_000))
    _, found, _ = probe("0030-indexer", env=env, words=ONE)
    assert found["beside"] == {"gpu": "GPU 0", "memory_mib": 4, "utilisation": 0}


@pytest.mark.parametrize("first, last", [(50_000, 3), (3, 50_000)])
def test_other_work_before_or_after_is_kept(probe, tmp_path, first, last):
    looks = 3 if first > last else 1
    env = made_smi.answers(tmp_path, *[(first, 0)] * looks, (last, 0))
    _, found, _ = probe("0030-indexer", env=env, words=ONE)
    assert found["beside"]["memory_mib"] == 50_000 and found["value"] == 1620


@pytest.mark.parametrize("given", ["", "--tp 1 --base-gpu-id 1", "--tp 0", "--tp x"])
def test_a_server_that_may_take_any_gpu_is_looked_at_on_all(probe, tmp_path, given):
    env = made_smi.answers(tmp_path, (3, 50_000))
    _, found, _ = probe("0030-indexer", env=env, words=(f"--serve={given}",))
    assert found["beside"]["gpu"] == "GPU 1"


def test_a_machine_without_nvidia_smi_is_not_told_to_be_free(probe, tmp_path):
    done, found, _ = probe("0030-indexer", env={"PATH": only("git", tmp_path)})
    assert done.returncode == 0, done.stderr
    assert found["beside"] is None and found["value"] == 1620


def only(tool: str, directory: Path) -> str:
    """A PATH with nothing but this tool."""
    (directory / "few").mkdir()
    os.symlink(shutil.which(tool), directory / "few" / tool)
    return str(directory / "few")
