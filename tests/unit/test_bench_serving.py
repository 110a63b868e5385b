"""scripts/bench.sh serving: arms take turns, a bad server is refused, a bad run is no figure."""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fake_server import CHAT, Fake, serving
from made_wheel import ROOT, patchset
from patchset import serverfacts, servingbench, workload
from patchset.errors import Exit, Failure
from patchset.servingbench import Arm, Run, order, parse_arm, summary
from test_smoke import TIP, patched

# What stands for sglang.bench_serving.
BENCH = Path(__file__).with_name("fake_bench_serving.py")
WORK = """
[[workload]]
id = "small"
input_tokens = 8
output_tokens = 4
concurrency = [1, 2]
requests_per_slot = 3
rounds = 2
seed = 7
"""


@pytest.fixture
def place(tmp_path) -> Path:
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(BENCH, package / "bench_serving.py")
    (tmp_path / "workload.toml").write_text(WORK)
    return tmp_path


def bench(place: Path, *fakes: Fake, build: str = "", options=(), **env: str):
    """`bench serving` against an arm for each fake: a, b, ..."""
    with ExitStack() as stack:
        arms = []
        for name, fake in zip("abc", fakes):
            url = stack.enter_context(serving(fake))
            arms += ["--arm", f"{name}={url}{build if name == 'a' else ''}"]
        words = ["bench", "serving", *arms, "--out", str(place / "out")]
        words += ["--workloads", str(place / "workload.toml"), "--timeout", "5"]
        words += ["--python", str(place / "python"), *options]
        # The tree of this checkout would come before the package of the test.
        (place / "python").write_text(
            f'#!/bin/sh\nPYTHONPATH="{place}/site" exec "{sys.executable}" "$@"\n'
        )
        (place / "python").chmod(0o755)
        return patchset(*words, env=env)


def rows(place: Path, arm: str) -> list[dict]:
    text = (place / "out" / f"small-{arm}.jsonl").read_text()
    return [json.loads(row) for row in text.splitlines()]


def test_arms_take_turns_and_every_line_is_kept(place):
    done = bench(place, Fake(), patched(), build="@stock", options=["--json"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((place / "out" / "result.json").read_text())
    ran = [(run["concurrency"], run["round"], run["arm"]) for run in result["runs"]]
    assert ran == [
        *[
            (c, n, arm)
            for c in (1, 2)
            for n, arms in enumerate(("ba", "ab", "ba"))
            for arm in arms
        ]
    ]
    for arm in "ab":
        kept = rows(place, arm)
        assert len(kept) == 6 and {row["ratio"] for row in kept} == {"1.0"}
        assert {row["seed"] for row in kept} == {"7", "1007", "2007"}
    assert [arm["build"]["state"] for arm in result["arms"]] == ["stock", "applied"]
    assert [row["ratio"] for row in result["summary"]] == [1.0] * 4


def test_the_table_for_a_person(place):
    done = bench(place, patched(), patched())
    assert done.returncode == 0, done.stderr
    head, *lines, last = done.stdout.splitlines()
    assert head.split() == "C arm tok/s least..most TTFT ms TPOT ms ratio".split()
    assert lines[0].split() == [
        "1",
        "a",
        "100.0",
        "100.0..100.0",
        "20.0",
        "5.00",
        "1.000",
    ]
    assert len(lines) == 4 and last == f"raw files: {place}/out/"


def test_one_concurrency_of_a_workload(place):
    done = bench(place, patched(), options=["--workload", "small@2", "--json"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {run["concurrency"] for run in result["runs"]} == {2}
    assert result["workload"]["concurrency"] == [2]
    (place / "out").rename(place / "first")
    done = bench(place, patched(), options=["--workload", "small@3"])
    assert done.returncode == Exit.USAGE
    assert "C=1, 2, and not C='3'" in done.stderr
    assert "--workload ID[@C]" in done.stderr


def test_a_server_that_was_just_smoked_is_asked_what_it_is_and_no_more(place):
    fake = patched(factor=2)
    done = bench(place, fake, options=["--smoked"])
    assert done.returncode == 0, done.stderr
    assert not [path for path, _ in fake.asked if "generate" in path or "chat" in path]
    (place / "out").rename(place / "first")
    done = bench(place, patched(), build="@stock", options=["--smoked"])
    assert done.returncode == Exit.SERVER and "stock" in done.stderr


def test_a_server_that_fails_the_smoke_is_not_measured(place):
    done = bench(place, patched(), patched(factor=2))
    assert done.returncode == Exit.SERVER and "wrong answer" in done.stderr
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    "other, said",
    [
        ({"architecture": "LlamaForCausalLM"}, "wrong model: /m is LlamaForCausalLM"),
        ({"failing": {CHAT: "empty"}}, "the answer is empty"),
        ({"failing": {CHAT: "half"}}, "broke off after 1 piece,"),
        ({"failing": {CHAT: "hang"}}, "no whole answer in 1 s"),
    ],
)
def test_what_the_smoke_finds_in_any_arm_stops_the_benchmark(place, other, said):
    done = bench(place, patched(), patched(**other), options=("--timeout", "1"))
    assert done.returncode == Exit.SERVER and said in done.stderr
    assert "smoke test of b" in done.stderr
    assert not (place / "out").exists()


def test_a_server_that_does_not_answer_is_named_as_an_arm(place):
    gone = ("--arm", "b=http://127.0.0.1:9")
    done = bench(place, patched(), options=gone)
    assert done.returncode == Exit.SERVER and "127.0.0.1:9" in done.stderr
    assert "with --arm NAME=URL" in done.stderr and "--url" not in done.stderr


def test_an_unpatched_server_is_not_measured_as_ours(place):
    done = bench(place, Fake(), patched())
    assert done.returncode == Exit.SERVER and "not a patched build" in done.stderr
    assert re.search(r"say --arm a=http://127.0.0.1:\d+@stock\n", done.stderr)
    assert not (place / "out").exists()
    done = bench(place, patched(), build="@stock")
    assert done.returncode == Exit.SERVER and "a stock one is wanted" in done.stderr
    assert re.search(
        rf"ask for this one: --arm a=http://127.0.0.1:\d+@{TIP}\n", done.stderr
    )


def test_something_that_is_no_sglang_is_not_measured(place):
    page = {"/health": "page"}
    done = bench(place, patched(failing=page), patched())
    assert done.returncode == Exit.SERVER
    assert "is not an SGLang server" in done.stderr and "--arm" in done.stderr
    assert not (place / "out").exists()


def test_random_weights_are_compared_with_the_first_arm(place):
    options = ("--weights", "random")
    done = bench(place, patched(), patched(other_over=0), options=options)
    assert done.returncode == Exit.SERVER
    assert "differ from those of" in done.stderr
    assert bench(place, patched(), patched(), options=options).returncode == 0


def test_random_weights_are_compared_with_a_reference_instead(place):
    with serving(patched()) as url:
        options = ("--weights", "random", "--reference", url)
        # The first arm selects otherwise in each run: nothing could agree with it.
        done = bench(place, patched(other_over=0), patched(), options=options)
        assert done.returncode == 0, done.stderr
        (place / "out").rename(place / "first")
        done = bench(place, patched(), patched(other_over=0), options=options)
    assert done.returncode == Exit.SERVER
    assert (
        f"log-probabilities differ from those of {url} for 4 of 4 lengths"
        in done.stderr
    )


def test_a_reference_that_does_not_answer(place):
    options = ("--weights", "random", "--reference", "http://127.0.0.1:9")
    done = bench(place, patched(), patched(), options=options)
    assert done.returncode == Exit.SERVER and "--reference URL" in done.stderr
    assert not (place / "out").exists()


def test_an_arm_is_not_its_own_reference(place):
    with serving(patched()) as url:
        options = ("--arm", f"b={url}", "--weights", "random", "--reference", url + "/")
        done = bench(place, patched(), options=options)
    assert done.returncode == Exit.USAGE and "smoke test" not in done.stderr
    assert f"--reference URL is b itself, {url}" in done.stderr


def test_a_reference_for_weights_that_have_right_answers(place):
    done = bench(place, patched(), options=("--reference", "http://127.0.0.1:9"))
    assert done.returncode == Exit.USAGE
    assert "--reference URL goes with --weights random" in done.stderr


def test_what_the_figures_depend_on_is_kept(place, path_with_a_gpu):
    done = bench(place, patched(), PATH=path_with_a_gpu)
    assert done.returncode == 0, done.stderr
    text = (place / "out" / "result.json").read_text()
    result = json.loads(text)
    assert result["machine"] == {"gpu": "NVIDIA H200", "count": 2}
    (arm,) = result["arms"]
    assert arm["settings"] == {"tp_size": 2}
    assert [check["check"] for check in arm["smoke"]][:2] == ["alive", "build"]
    assert len(result["date"]) == 10
    assert "secret-of-the-user" not in text and "/home/user" not in text


@pytest.mark.parametrize(
    "name, kept",
    [
        ("tiny", True),
        ("a-lab/tiny", True),
        ("models/tiny", False),
        ("/home/user/tiny", False),
        (None, True),
    ],
)
def test_a_served_name_is_kept_unless_it_is_a_path(name, kept):
    info = {"model_path": "models/tiny", "served_model_name": name, "tp_size": 2}
    named = {"served_model_name": name} if kept else {}
    assert serverfacts.settings(info) == {"tp_size": 2} | named


def test_the_gpus_of_another_machine_are_not_known(path_with_a_gpu, monkeypatch):
    monkeypatch.setenv("PATH", path_with_a_gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = ["http://127.0.0.1:1", "http://localhost:2"]
    one = {"gpu": "NVIDIA H200", "count": 1}
    assert serverfacts.machine(here, 1) == one
    assert serverfacts.machine([here[0], "http://gpu-host:1"], 1) is None


@pytest.mark.parametrize(
    "how, said",
    [
        ("fails", "sglang.bench_serving failed (exit code 1)"),
        ("silent", "sglang.bench_serving failed (exit code 0)"),
        ("loses", "2 of 3 requests came through"),
        ("short", "11 of 12 tokens came"),
        (
            "no figures",
            "sglang.bench_serving wrote no figures: KeyError('median_tpot_ms')",
        ),
        ("hangs", "no result in 2 s"),
    ],
)
def test_a_run_that_is_none(place, how, said):
    done = bench(place, patched(), options=["--run-timeout", "2"], FAKE=how)
    assert done.returncode == Exit.SERVER and done.stdout == ""
    assert f"a: {said}" in done.stderr
    wrote = how not in ("fails", "silent", "hangs")
    before = f"what was measured before is in {place}/out"
    assert (before if wrote else "nothing was measured") in done.stderr
    assert (place / "out").exists() == wrote, "no empty folder stays"
    if how == "fails":
        assert "ValueError: Warmup failed" in done.stderr


def test_a_python_without_sglang(place):
    (place / "site" / "sglang" / "bench_serving.py").write_text("import nothing_there")
    done = bench(place, patched())
    assert done.returncode == Exit.ENVIRONMENT
    assert "can't be started: No module named 'nothing_there'" in done.stderr
    assert "--python PY" in done.stderr and "nothing was measured" in done.stderr
    assert "smoke test" not in done.stderr, "it would take minutes"
    assert not (place / "out").exists()


def test_a_module_that_was_not_needed(place):
    done = bench(place, patched(), FAKE="warns")
    assert done.returncode == 0, done.stderr


def test_the_tokenizer_is_where_the_server_says_not_under_its_served_name(place):
    (place / "model").mkdir()
    local = patched(tokenizer=str(place / "model"))
    done = bench(place, local, patched())
    assert done.returncode == 0, done.stderr
    assert {row["model"] for row in rows(place, "a")} == {str(place / "model")}
    assert {row["model"] for row in rows(place, "b")} == {"a-hub/a-model"}


def test_a_tokenizer_of_another_machine(place):
    far = patched(tokenizer="/another/machine")
    done = bench(place, patched(), far)
    assert done.returncode == Exit.ENVIRONMENT and "Traceback" not in done.stderr
    said = "b: the server's tokenizer is not on this machine: /another/machine"
    assert said in done.stderr and "--tokenizer PATH" in done.stderr
    assert not (place / "out").exists()
    done = bench(place, far, options=("--tokenizer", "a-hub/its-name"))
    assert done.returncode == 0, done.stderr
    assert {row["model"] for row in rows(place, "a")} == {"a-hub/its-name"}


def test_a_server_that_tells_no_tokenizer_has_its_models():
    assert serverfacts.tokenizer({"model_path": "/m", "tokenizer_path": None}) == "/m"
    assert serverfacts.tokenizer({}) is None


def test_the_benchmark_gets_the_key_of_the_server(place):
    done = bench(place, patched(), options=["--api-key", "k-1"], OPENAI_API_KEY="other")
    assert done.returncode == 0, done.stderr
    assert {row["key"] for row in rows(place, "a")} == {"k-1"}
    assert "k-1" not in (place / "out" / "result.json").read_text() + done.stderr


def test_without_a_key_the_callers_stays(place):
    assert bench(place, patched(), OPENAI_API_KEY="other").returncode == 0
    assert {row["key"] for row in rows(place, "a")} == {"other"}


def test_a_folder_that_is_there_is_not_written_into(place):
    (place / "out").mkdir()
    done = bench(place, patched())
    assert done.returncode == Exit.USAGE and "smoke test" not in done.stderr
    assert "--out needs a new folder" in done.stderr and not list(
        (place / "out").iterdir()
    )


@pytest.mark.parametrize(
    "arms, said",
    [
        (["a=http://x", "a=http://y"], "two arms have the same name"),
        (["a=http://x", "b=http://y", "c=http://X:80/"], "a and c are one server"),
        (["http://x"], "an arm is NAME=URL"),
        (["a=ftp://x"], "'ftp://x' needs http:// or https://"),
        (["a=127.0.0.1:30000"], "'127.0.0.1:30000' needs http:// or https://"),
        (["a=http://"], "is no address"),
        (["a b=http://x"], "an arm is NAME=URL"),
    ],
)
def test_arms_that_mean_nothing(arms, said):
    words = [word for arm in arms for word in ("--arm", arm)]
    done = patchset("bench", "serving", *words)
    assert done.returncode == Exit.USAGE and said in done.stderr


def test_an_arm():
    assert parse_arm("stock=http://h:1@stock") == Arm("stock", "http://h:1", "stock")
    assert parse_arm("on-8k=http://h:1") == Arm("on-8k", "http://h:1", None)


def test_the_summary_leaves_the_warm_up_out_and_takes_medians():
    def run(arm, turn, tokens):
        figures = dict.fromkeys(servingbench.FIGURES, 1.0)
        return Run(arm, 4, turn, figures | {"output_throughput": tokens})

    runs = [run("a", 0, 1.0), run("b", 0, 1.0)]
    runs += [run("a", n + 1, value) for n, value in enumerate((10.0, 30.0, 11.0))]
    runs += [run("b", n + 1, value) for n, value in enumerate((22.0, 21.0, 90.0))]
    first, second = summary(runs, [Arm("a", "u"), Arm("b", "u")])
    assert (first["output_throughput"], first["least"], first["most"]) == (11, 10, 30)
    assert second["ratio"] == 2.0 and second["runs"] == 3


def test_every_arm_goes_first_as_often():
    work = workload.load(ROOT / "ci" / "workload.toml")
    arms = [Arm("a", "u"), Arm("b", "u")]
    ran = [one for one in order(arms, work) if one[1]]
    assert len(ran) == len(work.concurrency) * work.rounds * 2
    assert work.concurrency == (1, 16, 64)
    assert (work.input_tokens, work.output_tokens) == (256, 256)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "can't be read"),
        ("[[workload]]\nid = 'x'", "can't be read"),
        (WORK.replace("rounds = 2", "rounds = 0"), "above 0"),
        (WORK.replace("[1, 2]", "[]"), "above 0"),
        (WORK.replace("seed", "sede"), "can't be read"),
        (WORK, "no workload 'big'; there are: small"),
    ],
)
def test_workloads_that_are_none(tmp_path, text, said):
    file = tmp_path / "workload.toml"
    file.write_text(text)
    with pytest.raises(Failure, match=said) as caught:
        workload.load(file, "big")
    assert caught.value.code == Exit.USAGE
