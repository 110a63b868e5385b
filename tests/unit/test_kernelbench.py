"""The benchmark's runner without a GPU: what is chosen, what a red gate does, what is kept."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

from patchset import bench as bench_program
from patchset import (
    bench_decode,
    bench_indexer,
    bench_topk,
    benchcase,
    benchnames,
    gputime,
    kernelbench,
    peers,
)
from patchset.benchcase import Bench, BenchCase, Prepared
from patchset.errors import Exit, Failure


def case(name, *, error=None, arms=("ours",), moved=4_000_000, flop=0):
    def gate():
        if error:
            raise AssertionError(error)
        return {"checked_rows": 3}

    def prepare():
        return Prepared(
            gate,
            arms=lambda: {arm: [lambda: None] for arm in arms},
            facts=lambda: {"recall": {"ours": 1.0}},
        )

    return BenchCase(name, 1, moved, flop, prepare)


@pytest.fixture
def timed(monkeypatch):
    """Each arm takes 10 us, each later one twice that; yields the arms that were timed."""
    seen = []

    def time_arms(arms, samples):
        seen.extend(arms)
        return {
            arm: gputime.Timing(10.0 * 2**i, 9.0, 12.0, samples, True)
            for i, arm in enumerate(arms)
        }

    monkeypatch.setattr(gputime, "time_arms", time_arms)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    facts = {"gpu": "none", "capability": "9.0", "copy_bytes_per_s": 4e12}
    monkeypatch.setattr(kernelbench, "machine_facts", lambda: facts)
    return seen


def bench(*cases, kernel="k", **more):
    return Bench(kernel, {"first": list(cases[:1]), "rest": list(cases[1:])}, **more)


def test_a_group_or_a_kernel_chooses_and_nothing_chooses_all():
    one, two = bench(case("a"), case("b")), Bench("other", {"third": []})
    names = lambda chosen: [  # noqa: E731
        (bench.kernel, group) for bench, group in kernelbench.choose(chosen, (one, two))
    ]
    assert names(["rest"]) == [("k", "rest")]
    assert names(["k"]) == [("k", "first"), ("k", "rest")]
    assert names(["rest", "k", "rest"]) == [("k", "rest"), ("k", "first")]
    assert names(None) == [("k", "first"), ("k", "rest"), ("other", "third")]


def test_an_unknown_name_is_refused_with_those_that_there_are():
    with pytest.raises(Failure) as refused:
        kernelbench.choose(["rest", "nothing"], (bench(case("a"), case("b")),))
    assert refused.value.code == Exit.USAGE
    text = "\n".join(refused.value.lines())
    assert "nothing" in text and "k, first, rest" in text


@pytest.fixture
def bare(tmp_path):
    """bench.sh with a Python that has no torch, and nothing that our other commands need."""
    for name in ("torch", "git", "platformdirs", "urllib3"):
        (tmp_path / f"{name}.py").write_text(
            f"raise ModuleNotFoundError('none', name={name!r})"
        )

    def run(*words: str):
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable}
        command = [str(kernelbench.ROOT / "scripts" / "bench.sh"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True)

    return run


def test_the_names_are_known_without_torch(bare):
    groups = {each.kernel: tuple(each.groups) for each in kernelbench.BENCHES}
    assert benchnames.GROUPS == groups
    done = bare("kernel", "--case", "nothing")
    assert done.returncode == Exit.USAGE and "no case nothing" in done.stderr
    assert "topk-lengths" in done.stderr
    done = bare("kernel", "--case", "topk")
    assert done.returncode == Exit.ENVIRONMENT and "has no torch" in done.stderr
    shown = "".join(bare("--help").stdout.split())
    assert all(name in shown for name in [*groups, *sum(groups.values(), ())])


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ("foo",),
            "'foo' can't be measured: choose of kernel, roofline, serving, steps",
        ),
        ((), "required: {kernel,roofline,serving,steps}"),
        (
            ("--samples", "3", "steps"),
            "name steps before its options: scripts/bench.sh",
        ),
    ],
)
def test_what_is_not_to_be_measured_here(bare, words, said):
    done = bare(*words)
    assert done.returncode == Exit.USAGE and said in done.stderr


def test_a_file_that_is_there_is_not_written_over(bare, tmp_path):
    out = tmp_path / "raw.json"
    out.write_text("evidence")
    done = bare("kernel", "--out", str(out))
    assert done.returncode == Exit.USAGE and out.read_text() == "evidence"
    assert "--out needs a new file, and this one is there" in done.stderr
    assert f"--out {tmp_path / 'raw-2.json'}" in done.stderr


@pytest.mark.parametrize("folder", ["gone", "raw.json"])
def test_a_place_that_cannot_be_written_is_told_first(bare, tmp_path, folder):
    (tmp_path / "raw.json").write_text("evidence")
    done = bare("kernel", "--out", str(tmp_path / folder / "new.json"))
    assert done.returncode in (Exit.USAGE, Exit.ENVIRONMENT)
    assert "--out can't be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "option", [("--out", "x.json"), ("--samples", "3"), ("--without", "TileLang")]
)
def test_roofline_refuses_the_options_of_kernel(capsys, monkeypatch, option):
    monkeypatch.setattr("patchset.roofline.write", lambda: pytest.fail("written"))
    with pytest.raises(SystemExit) as ended:
        bench_program.main(["roofline", *option])
    assert ended.value.code == Exit.USAGE
    assert f"roofline takes no {option[0]}" in capsys.readouterr().err


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("written", [True, False])
def test_an_interrupted_run_says_what_it_keeps(
    monkeypatch, tmp_path, capsys, number, written
):
    out = tmp_path / "raw.json"

    def interrupted(*_):
        if written:
            out.write_text("{}")
        signal.raise_signal(number)

    monkeypatch.setattr(kernelbench, "run", interrupted)
    before = {each: signal.getsignal(each) for each in ENDING}
    hook = sys.unraisablehook
    # Under nohup it is ignored, and a command leaves it so.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        code = bench_program.main(["kernel", "--out", str(out)])
    finally:
        sys.unraisablehook = hook
        for each, handler in before.items():
            signal.signal(each, handler)
    assert code == 128 + number
    said = capsys.readouterr().err
    kept = "it keeps the groups that were measured"
    assert (kept in said and str(out) in said) if written else "nothing is kept" in said


def test_a_full_disk_is_told_and_leaves_what_was_written(
    timed, monkeypatch, tmp_path, capsys
):
    groups = {"first": [case("a")], "second": [case("b")]}
    monkeypatch.setattr(kernelbench, "BENCHES", (Bench("k", groups),))
    out = tmp_path / "raw.json"
    replaced = []

    def full(*names):
        if replaced:
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced.append(names)
        os.rename(*names)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Failure) as met:
        kernelbench.run(None, out, 5)
    assert met.value.code == Exit.ENVIRONMENT and str(out) in met.value.where
    assert json.loads(out.read_text())["left"] == ["second"]
    assert list(tmp_path.iterdir()) == [out]
    shown = capsys.readouterr().out
    assert "\na  " in f"\n{shown}" and "\nb  " in shown


def test_every_name_is_one_kernel_or_group():
    names = [b.kernel for b in kernelbench.BENCHES]
    names += [group for b in kernelbench.BENCHES for group in b.groups]
    assert len(names) == len(set(names))
    for each in kernelbench.BENCHES:
        cases = [case.name for group in each.groups.values() for case in group]
        assert len(cases) == len(set(cases)), "a record names a case, not its group"


def test_without_a_gpu_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Failure) as refused:
        kernelbench.run(None, None, 3)
    assert refused.value.code == Exit.ENVIRONMENT


def test_a_red_gate_gets_no_time_and_exit_code_1(timed, monkeypatch, tmp_path, capsys):
    cases = case("right", arms=("ours", "peer")), case("wrong", error="row 3 differs")
    monkeypatch.setattr(kernelbench, "BENCHES", (bench(*cases),))
    out = tmp_path / "raw.json"
    assert kernelbench.run(None, out, 5) == 1
    assert timed == [("right", "ours"), ("right", "peer")]
    right, wrong = json.loads(out.read_text())["cases"]
    assert right["correct"] and right["timings"]["peer"]["median"] == 20.0
    assert right["facts"] == {"checked_rows": 3, "recall": {"ours": 1.0}}
    assert not wrong["correct"] and wrong["timings"] == {}
    assert wrong["why"] == "row 3 differs"
    table = capsys.readouterr().out
    assert "WRONG, not timed: row 3 differs" in table
    assert "ours    10.00 us   400 GB/s  10% of floor  peer 20.00 (2.00x)" in table


def test_the_raw_file_names_kernel_group_and_ratios(timed, monkeypatch, tmp_path):
    summarize = lambda rows: {  # noqa: E731
        "b / a": benchcase.ratios(rows, "b", "a"),
        "nothing measured": benchcase.ratios(rows, "c", "a"),
    }
    made = Bench("k", {"first": [case("a"), case("b")]}, summarize)
    monkeypatch.setattr(kernelbench, "BENCHES", (made,))
    out = tmp_path / "raw.json"
    assert kernelbench.run(["k"], out, 5) == 0
    record = json.loads(out.read_text())
    assert {(row["kernel"], row["group"]) for row in record["cases"]} == {
        ("k", "first")
    }
    assert record["ratios"] == {"k": {"b / a": {"ours": 2.0}}} and not record["left"]


def test_a_run_that_is_cut_off_leaves_what_it_measured(timed, monkeypatch, tmp_path):
    def cut_off():
        raise KeyboardInterrupt

    second = replace(case("b"), prepare=cut_off)
    groups = {"first": [case("a")], "second": [second], "third": [case("c")]}
    monkeypatch.setattr(kernelbench, "BENCHES", (Bench("k", groups),))
    out = tmp_path / "raw.json"
    with pytest.raises(KeyboardInterrupt):
        kernelbench.run(None, out, 5)
    record = json.loads(out.read_text())
    assert [row["case"] for row in record["cases"]] == ["a"]
    assert record["left"] == ["second", "third"]
    assert list(tmp_path.iterdir()) == [out]


def test_tflops_stand_only_where_there_are_any():
    timing = {"ours": asdict(gputime.Timing(10.0, 9.0, 12.0, 3, True))}
    row = dict(
        case="c", correct=True, bytes=10**7, floor_us=5.0, facts={}, timings=timing
    )
    assert "TFLOP" not in kernelbench.line(row | {"flop": 0})
    assert " 400 TFLOP/s" in kernelbench.line(row | {"flop": 4 * 10**9})


def test_the_hashes_cover_cuda_sources_too(tmp_path):
    for name in ("a.py", "b.cu", "c.cuh", "d.txt"):
        (tmp_path / name).write_text("x")
    assert list(kernelbench.source_hashes(tmp_path)) == ["a.py", "b.cu", "c.cuh"]
    assert {"indexer.py", "topk.cu"} <= set(
        kernelbench.source_hashes(kernelbench.ROOT / "kernels")
    )


def test_a_peer_that_fails_is_named_once_and_left_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def broken(_inputs):
        raise ImportError("no module named far_away\nmore")

    two = [("good", lambda inputs: lambda: None), ("bad", broken)]
    for name in ("first", "second"):
        assert set(peers.arms(two, [1, 2], name)) == {"good"}
    assert capsys.readouterr().err == "note: bad on first: no module named far_away\n"


def test_the_stock_logits_are_left_out_where_they_do_not_fit():
    names = lambda room: [
        name for name, _ in peers.logits_peers(2, 100, room)
    ]  # noqa: E731
    assert "stock" in names(2 * 100 * 1160 + 1)
    assert "stock" not in names(2 * 100 * 1160)


def test_the_work_of_a_topk_case():
    even = bench_topk._even(2, 1_000)
    assert bench_topk.moved(even) == 4 * 2 * (1_000 + 512 + 512 + 1)
    short = bench_topk._even(2, 512)
    assert bench_topk.moved(short) == 4 * 2 * (512 + 512 + 1)


def test_the_recall_counts_what_is_among_the_largest():
    inputs = bench_topk.make_topk(bench_topk._even(1, 1_024, cap=2_048))
    best = inputs.scores[0, :1_024].topk(512).indices
    page = inputs.page_table[0].long()
    inputs.out_page_indices[0] = page[best // 64] * 64 + best % 64
    assert bench_topk._recall_of_row(inputs, 0) == 1.0
    inputs.out_page_indices[0, :256] = inputs.out_page_indices[0, 256]
    assert bench_topk._recall_of_row(inputs, 0) == 256 / 512
    inputs.out_page_indices.fill_(-7)
    assert bench_topk._recall_of_row(inputs, 0) == 0.0


def test_the_recall_is_of_as_many_as_the_case_asks_for():
    case = bench_topk._twice(1, 2_048)
    assert bench_topk.moved(case) == 4 * (2_048 + 1_024 + 1_025)
    inputs = bench_topk.make_topk(case)
    best = inputs.scores[0].topk(1_024).indices
    inputs.out_page_indices[0] = (
        inputs.page_table[0].long()[best // 64] * 64 + best % 64
    )
    assert bench_topk._recall_of_row(inputs, 0) == 1.0
    inputs.out_page_indices[0, :256] = inputs.out_page_indices[0, 256]
    assert bench_topk._recall_of_row(inputs, 0) == 768 / 1_024


def test_the_work_of_an_indexer_case():
    few = bench_indexer.decode_case(2, 512, 8_192)
    keys = 2 * 128
    assert bench_indexer.work(few) == (
        keys * 136 + 2 * 64 * 132,
        keys * 64 * 256,
    )


def test_the_work_of_an_attention_case():
    case = bench_decode._rows(2, 8, 512)
    assert bench_decode.work(case) == (
        2 * 640 * 588 + 2 * 8 * 2_048,
        2 * 640 * 8 * 2_048,
    )


def test_the_rows_that_the_gate_compares_are_those_of_the_inputs():
    inputs = bench_decode.make_decode(bench_decode._rows(3, 2, 512))
    some = bench_decode._some(inputs, [2, 0])
    assert some.q.equal(inputs.q[[2, 0]]) and some.q.shape[0] == 2
    assert some.extra_indices.equal(inputs.extra_indices[[2, 0]])
    assert some.k_cache is inputs.k_cache
