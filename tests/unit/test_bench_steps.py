"""scripts/bench.sh steps: arms take turns, each way to fail is told, and what was measured is kept."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import stock
from fake_server import Fake, serving
from made_wheel import ROOT, patchset
from patchset import gputrace
from patchset.errors import Exit, Failure
from patchset.verbs import bench_steps
from test_smoke import TIP, patched

SMALL = ("--rows", "1:3", "--rows", "4:5", "--reps", "2", "--timeout", "5")


def words(stack: ExitStack, out: Path, fakes, build: str = "", options=()) -> list[str]:
    """The command line for an arm for each fake: a, b, ..."""
    arms = []
    for name, fake in zip("abcd", fakes):
        url = stack.enter_context(serving(fake))
        arms += ["--arm", f"{name}={url}{build if name == 'a' else ''}"]
    return [
        *("bench", "steps", *arms, "--out", str(out)),
        *("--python", sys.executable, *SMALL, *options),
    ]


def steps(out: Path, *fakes: Fake, build: str = "", options=(), **env: str):
    with ExitStack() as stack:
        return patchset(*words(stack, out, fakes, build, options), env=env)


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "new" / "steps.json"


def raw(out: Path) -> dict:
    return json.loads(out.read_text())


def test_arms_take_turns_and_every_list_is_kept(out):
    done = steps(out, Fake(), patched(), build="@stock")
    assert done.returncode == 0, done.stderr
    found = raw(out)
    ran = [(run["rep"], run["rows"], run["arm"]) for run in found["runs"]]
    assert ran == [
        (rep, rows, arm)
        for rep, arms in enumerate(("ba", "ab", "ba"))
        for rows in (1, 4)
        for arm in arms
    ]
    assert all(run["step_ms"] > 0 for run in found["runs"])
    for run in found["runs"]:
        between = (run["whole_s"] - run["all_first_s"]) * 1e3
        tokens = found["load"]["output_tokens"][str(run["rows"])]
        assert run["step_ms"] == pytest.approx(between / (tokens - 1), abs=2e-3)
        assert run["tok_s"] == pytest.approx(run["rows"] / run["step_ms"] * 1e3, 1e-3)
    assert found["failed"] == [] and found["profiles"] == []
    assert [arm["against"] for arm in found["arms"]] == [None, "a"]
    assert list(out.parent.iterdir()) == [out]


def test_what_an_arm_is_comes_from_its_server(out, tmp_path):
    config = {"num_hidden_layers": 43, "hidden_size": 8, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = {"load_format": "dummy", "context_length": 8192}
    fake = patched(model_path=str(tmp_path), settings=told)
    done = steps(out, fake, options=("--note", "a stand-in"))
    assert done.returncode == 0, done.stderr
    found = raw(out)
    (arm,) = found["arms"]
    assert arm["build"]["checkpoint"] == TIP and len(arm["build"]["commit"]) == 40
    assert arm["build"]["paths"]["SGLANG_SM120_TOPK"]["ours"]
    assert arm["settings"]["context_length"] == 8192
    assert (arm["model"]["layers"], arm["model"]["weights"]) == (43, "random")
    assert found["notes"] == ["a stand-in"]
    assert "secret-of-the-user" not in out.read_text()
    assert str(tmp_path) not in out.read_text()


def test_paths_are_those_that_were_taken_once_it_had_decoded(out):
    fake = patched()
    (paths,) = (part["paths"] for part in fake.patches)
    taken = paths["SGLANG_SM120_TOPK"]
    paths["SGLANG_SM120_TOPK"] = None
    first = fake.streamed_rows

    def streamed_rows(body):
        paths["SGLANG_SM120_TOPK"] = taken
        return first(body)

    fake.streamed_rows = streamed_rows
    assert steps(out, fake).returncode == 0
    (arm,) = raw(out)["arms"]
    assert arm["build"]["paths"]["SGLANG_SM120_TOPK"] == taken


def test_every_arm_gets_the_same_prompts_and_each_round_others(out):
    one, other = patched(), patched()
    assert steps(out, one, other).returncode == 0
    asked = [
        [body["input_ids"] for path, body in fake.asked if path == "/generate"]
        for fake in (one, other)
    ]
    assert sorted(asked[0]) == sorted(asked[1])
    # Two numbers of rows, asked in three rounds, and once more for the tokens of 16 rows.
    assert [len(lists) for lists in asked[0]].count(1) == 3 + 16
    assert [len(lists) for lists in asked[0]].count(4) == 3 + 4
    assert len({json.dumps(ids) for ids in asked[0]}) == len(asked[0])
    assert {len(ids) for lists in asked[0] for ids in lists} == {32}


def test_the_machine_is_kept(out, path_with_a_gpu):
    done = steps(out, patched(), PATH=path_with_a_gpu)
    assert done.returncode == 0, done.stderr
    machine = raw(out)["machine"]
    assert machine["gpu"] == "NVIDIA H200" and machine["python"]


def test_the_table_for_a_person(out):
    done = steps(out, patched(), patched(), options=("--profile", "b"))
    assert done.returncode == 0, done.stderr
    head, *lines, tokens, last = done.stdout.splitlines()
    assert head.split()[:3] == ["rows", "arm", "step"]
    assert [line.split()[:2] for line in lines] == [
        ["1", "a"],
        ["1", "b"],
        ["4", "a"],
        ["4", "b"],
    ]
    assert lines[0].split()[-3:] == ["-", "-", "0"]
    # Twelve whole steps of each profile: 5 + 6 + 7 us, of which none overlap.
    assert lines[1].split()[-2:] == ["18.0", "36"]
    assert tokens == (
        "alike  b against a: 75% of the log-probabilities within 0.00, 512 tokens equal, 0 of 32 "
        "answers parted (random weights: no answer is right or wrong)"
    )
    assert last == f"raw file: {out}"


def test_profiles_take_turns_too(out):
    done = steps(out, patched(), patched(), options=("--profile",))
    assert done.returncode == 0, done.stderr
    found = raw(out)
    ran = [(each["turn"], each["rows"], each["arm"]) for each in found["profiles"]]
    assert ran == [
        (turn, rows, arm)
        for turn, arms in enumerate(("ba", "ab", "ba"))
        for rows in (1, 4)
        for arm in arms
    ]
    first = found["profiles"][0]
    assert first["busy_us"] == [18.0] * 12 and first["period_us"] == [50.0] * 12
    by_name = {found["kernel_names"][at]: rest for at, *rest in first["kernels"]}
    assert by_name == {"gemm": [5, 5, 1], "attention": [6, 6, 1], "ArgMax": [7, 7, 1]}


def test_an_arm_may_be_profiled_less_often(out):
    done = steps(out, patched(), patched(), options=("--profile", "a:1", "b"))
    assert done.returncode == 0, done.stderr
    ran = [(each["turn"], each["arm"]) for each in raw(out)["profiles"]]
    once = [(0, "b"), (0, "a")]
    assert ran == [*once, *once, (1, "b"), (1, "b"), (2, "b"), (2, "b")]


def test_an_arm_is_compared_with_the_one_that_is_named(out):
    arms = (patched(), patched(), patched())
    options = ("--against", "c=a", "--against", "b=-")
    done = steps(out, *arms, options=options)
    assert done.returncode == 0, done.stderr
    assert [arm["against"] for arm in raw(out)["arms"]] == [None, None, "a"]
    assert "c against a" in done.stdout and "b against" not in done.stdout


@pytest.mark.parametrize(
    "option, said",
    [
        (("--against", "b"), "--against b: NAME=OTHER is expected, of a, b"),
        (("--against", "b=b"), "NAME=OTHER is expected"),
        (("--against", "c=a"), "NAME=OTHER is expected"),
        (("--profile", "c"), "--profile c: choose of a, b"),
        (("--profile", "a:0"), "--profile a:0: '0' is no whole number above 0"),
        (("--rows", "4:1"), "a step lies between two tokens"),
        (("--rows", "0"), "'0' is no whole number above 0"),
        (("--profile-steps", "2"), "two of them are no figures"),
        (("--arm", "a=http://h:1"), "two arms have the same name"),
        (("--arm", "c=http://h:1", "--arm", "d=http://h:1/"), "c and d are one server"),
        (("--arm", "a b=http://h:1"), "an arm is NAME=URL"),
        (("--timeout", "0"), "must be above 0"),
        (("--timeout", "inf"), "must be at most 86,400, which is a day"),
        (("--wait", "1e12"), "must be at most 86,400, which is a day"),
        (("--reps", "1048577"), "must be at most 1,048,576"),
        (("--profile", "a:" + "9" * 5_000), "must be at most 1,048,576"),
        (("--profile-steps", "175"), "must be at most 174: no more of them lie whole"),
    ],
)
def test_wrong_usage(out, option, said):
    done = steps(out, patched(), patched(), options=option)
    assert done.returncode == Exit.USAGE and said in done.stderr
    assert not out.exists()


def test_a_file_that_is_there_is_not_written_over(out):
    out.parent.mkdir()
    out.write_text("measured before")
    done = steps(out, patched())
    assert done.returncode == Exit.USAGE and "--out needs a new file" in done.stderr
    assert out.read_text() == "measured before"


def test_a_place_that_cannot_be_written(out):
    out.parent.touch()
    done = steps(out, patched())
    assert done.returncode == Exit.ENVIRONMENT and str(out.parent) in done.stderr
    assert "state: nothing was measured" in done.stderr
    assert "next:  name another place: --out FILE" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "number, said",
    [
        (errno.EACCES, "run the same command with another file: --out "),
        (errno.ENOSPC, "free some space, then run the same command with another file"),
    ],
)
def test_a_place_that_can_no_longer_be_written(tmp_path, monkeypatch, number, said):
    kept = tmp_path / "steps.json"
    (tmp_path / "steps-2.json").touch()
    keep = bench_steps._keeper(kept)
    keep({"runs": []})

    def write(path, data):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(bench_steps.atomic, "write", write)
    with pytest.raises(Failure) as raised:
        keep({"runs": [1]})
    assert raised.value.state == "what was measured before is in it"
    assert raised.value.next.startswith(said)
    assert raised.value.next.endswith(f"--out {tmp_path}/steps-3.json")
    assert raw(kept) == {"runs": []}


def test_a_dead_arm_is_named_before_anything_is_measured(out):
    alive = patched()
    options = ("--arm", "gone=http://127.0.0.1:9")
    done = steps(out, alive, options=options)
    assert done.returncode == Exit.SERVER
    assert "gone: no server answers at http://127.0.0.1:9" in done.stderr
    assert "with --arm NAME=URL" in done.stderr
    assert not out.exists()
    assert "/generate" not in {path for path, _ in alive.asked}


def test_a_server_that_still_starts_is_waited_for(out):
    starting = patched(healthy=False)
    timer = threading.Timer(0.5, lambda: setattr(starting, "healthy", True))
    timer.start()
    done = steps(out, patched(), starting, options=("--wait", "20"))
    assert done.returncode == 0, done.stderr
    assert "waiting for b at http://127.0.0.1:" in done.stderr
    paths = [path for path, _ in starting.asked]
    assert paths.index("/server_info") > 1 and starting.healthy


def test_a_server_that_never_comes_is_not_waited_for_longer(out):
    options = ("--arm", "gone=http://127.0.0.1:9", "--wait", "0.1")
    done = steps(out, patched(), options=options)
    assert done.returncode == Exit.SERVER
    assert "gone: no server answers at http://127.0.0.1:9" in done.stderr


def test_an_unknown_build_is_refused_before_anybody_is_waited_for(out):
    options = ("--arm", "gone=http://127.0.0.1:9@0031", "--wait", "600")
    began = time.monotonic()
    done = steps(out, patched(), options=options)
    assert done.returncode == Exit.USAGE and time.monotonic() - began < 60
    assert "no patch '0031' in the series" in done.stderr
    assert "choose one of: stock, " in done.stderr
    assert "waiting for" not in done.stderr


def test_the_tree_of_a_server_that_says_nothing_is_read(out):
    """The tree's own server would tell, so this one is none of it; one that tells is believed."""
    tree = str(stock.tree())
    done = steps(out, Fake(), build="@0020", options=("--tree", f"a={tree}"))
    assert done.returncode == Exit.SERVER
    assert (
        f"a: the tree stands at {TIP}, and a server of it would say so" in done.stderr
    )
    assert not out.exists()
    done = steps(
        out, Fake(), patched(), build="@stock", options=("--tree", f"b={tree}")
    )
    assert done.returncode == 0, done.stderr
    assert [arm["told_by"] for arm in raw(out)["arms"]] == ["server", "server"]


def test_a_tree_of_a_release_is_its_servers_word(out, tmp_path):
    stock.unpack_release(tmp_path / "tree")
    options = ("--tree", f"a={tmp_path / 'tree'}")
    done = steps(out, Fake(), build="@stock", options=options)
    assert done.returncode == 0, done.stderr
    (arm,) = raw(out)["arms"]
    assert (arm["told_by"], arm["build"]["checkpoint"]) == ("tree", "stock")
    other = out.with_stem("other")
    done = steps(other, Fake(), build="@0020", options=options)
    assert done.returncode == Exit.SERVER and "not a patched build" in done.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        ("b=.", "--tree b=.: NAME=DIR is expected, of a"),
        ("a", "--tree a: NAME=DIR is expected, of a"),
        ("a=nowhere", "this is no SGLang tree: it has no python/sglang"),
    ],
)
def test_what_is_no_tree(out, words, said):
    done = steps(out, Fake(), options=("--tree", words))
    assert done.returncode == Exit.USAGE and said in done.stderr


@pytest.mark.parametrize(
    "build, fake, said",
    [
        ("@stock", patched(), f"the server is patched ({TIP}), and a stock one"),
        ("@0030", patched(), f"a: the server stands at {TIP}, and 0030-indexer"),
        ("", Fake(), "a: this server is not a patched build"),
    ],
)
def test_a_wrong_build_is_not_measured(out, build, fake, said):
    done = steps(out, fake, build=build)
    assert done.returncode == Exit.SERVER and said in done.stderr
    # "steps" has no option --build.
    right = TIP if "stands at" in said or "is patched" in said else "stock"
    assert re.search(
        rf"next: .* --arm a=http://127\.0\.0\.1:\d+@{right}\n", done.stderr
    )
    assert not out.exists() and "/generate" not in {path for path, _ in fake.asked}


def test_an_arm_that_dies_in_the_middle_is_left_out_and_the_rest_is_measured(out):
    # Two lists to warm up, 16 and 4 for the tokens, three of those that count.
    dying = patched(lives_for=25)
    done = steps(out, patched(), dying, patched(), options=("--profile",))
    assert done.returncode == Exit.SERVER
    assert "b FAILED and is left out" in done.stderr
    assert "error: b failed and could not be measured whole" in done.stderr
    found = raw(out)
    (failed,) = found["failed"]
    assert failed["arm"] == "b" and failed["what"]
    assert len([run for run in found["runs"] if run["arm"] == "b"]) == 5
    for arm in "ac":
        assert len([run for run in found["runs"] if run["arm"] == arm]) == 6
        assert len([each for each in found["profiles"] if each["arm"] == arm]) == 6
    # The table has what there is of it.
    assert [line.split()[1] for line in done.stdout.splitlines()[1:7]] == list("abcabc")


@pytest.mark.parametrize(
    "fails, said",
    [
        ({"failing": {"/generate": "half"}}, "broke off after 2 pieces"),
        ({"failing": {"/generate": "error"}}, "is an error"),
        ({"failing": {"/generate": "refuse"}}, "HTTP 500: no room for this"),
        ({"rows_end": "short"}, "gave 2 of 3 tokens of a row"),
        ({"rows_end": "at once"}, "streamed 3 tokens of a row at once"),
        ({"rows_end": "one row"}, "ended 0 of 1 rows"),
        ({"rows_end": "no index"}, "something else than rows of tokens"),
        ({"tells_logprobs": False}, "without tokens and log-probabilities"),
        ({"failing": {"/start_profile": "refuse"}}, "HTTP 500: no room for this"),
        ({"trace": "no steps"}, "is empty: 39 kernels in the trace, and 0 choices"),
        ({"trace": "half"}, "its trace can't be read: EOFError"),
        ({"trace": "none"}, "no trace was written to this machine's disk"),
    ],
)
def test_an_answer_that_is_no_figure_is_told(out, fails, said):
    options = ("--profile", "--timeout", "2")
    done = steps(out, patched(), patched(**fails), options=options)
    assert done.returncode == Exit.SERVER and "Traceback" not in done.stderr
    (failed,) = raw(out)["failed"]
    assert failed["arm"] == "b" and said in failed["what"]
    assert said in done.stderr
    assert "None" not in map(str.strip, done.stderr.splitlines())
    last = "       then measure all arms together again, into a new file: --out FILE"
    assert done.stderr.endswith(f"next:  b: {failed['next']}\n{last}\n")


def test_a_profile_that_left_nothing_is_stopped(out):
    fake = patched(trace="none")
    steps(out, fake, options=("--profile", "--timeout", "2"))
    assert [path for path, _ in fake.asked][-1] == "/stop_profile"


def test_ctrl_c_keeps_what_there_is(out):
    with ExitStack() as stack:
        command = words(stack, out, (patched(), patched()), options=("--reps", "9999"))
        env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
        running = subprocess.Popen(
            [sys.executable, "-P", "-m", "patchset", *command],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + 30
        while not (out.exists() and any(run["rep"] for run in raw(out)["runs"])):
            assert time.monotonic() < end and running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        said, errors = running.communicate(timeout=30)
        assert running.returncode == 130, errors
        assert "Traceback" not in errors and f"{out} keeps what was measured" in errors
        assert "raw file" in said and any(run["rep"] for run in raw(out)["runs"])
        assert list(out.parent.iterdir()) == [out]
        (told,) = re.findall(r"^next: .*|.*another.*|.*again.*", errors, re.M)
        assert told.startswith("next:  run the same command with another file: --out ")
        named = shlex.split(told)[-2:]
        done = patchset(*command, *named, "--reps", "1")
    assert done.returncode == 0, done.stderr
    assert any(run["rep"] for run in raw(Path(named[1]))["runs"])


@pytest.mark.parametrize("shift, wrong", [(0.09, False), (0.11, True)])
def test_one_number_of_rows_that_is_not_alike_is_not_hidden_by_the_others(
    out, shift, wrong
):
    other = patched(shift=shift)
    answers = other.generated

    def generated(body):
        other.other_over = 0 if len(body["input_ids"]) == 1 else None
        return answers(body)

    other.generated = generated
    done = steps(out, patched(), other)
    assert done.returncode == (Exit.NO if wrong else 0), done.stderr
    if wrong:
        why = "256 of 256 are off by more than 0.1, a quarter by 0.11 or more"
        assert f"WRONG  b against a: lists of 1 row: {why}" in done.stdout
        assert "lists of 4 rows" not in done.stdout and "alike" not in done.stdout
    else:
        assert "alike  b against a: 75% of the log-probabilities within 0.09" in (
            done.stdout
        )


def test_other_tokens_than_those_of_the_arm_below_are_wrong(out):
    done = steps(out, patched(), patched(other_over=0))
    assert done.returncode == Exit.NO
    for rows in ("1 row", "4 rows"):
        assert f"lists of {rows}: 16 of 16 are off by more than 0.1" in done.stdout


def event(name: str, begin: float, lasts: float, kind: str = "kernel") -> dict:
    return {"cat": kind, "name": name, "ts": begin, "dur": lasts}


def test_what_runs_side_by_side_is_counted_once():
    found = gputrace.steps(
        [
            event("ArgMax", 0, 1),
            event("gemm", 10, 10),
            event("other stream", 15, 10),
            event("gpu copy", 16, 2, "gpu_memcpy"),
            event("cudaGraphLaunch", 0, 90, "cuda_runtime"),
            event("ArgMax", 30, 1),
        ]
    )
    assert found.busy_us == (16.0,) and found.period_us == (30.0,)
    assert found.kernels["other stream"] == (10, 5, 1)
    assert found.kernels["gpu copy"] == (2, 0, 1)
    assert sum(added for _, added, _ in found.kernels.values()) == 16
