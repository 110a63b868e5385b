"""What a peer compiles before the first measurement: which variants, within what time, and what is left of it."""

from __future__ import annotations

import importlib.util
import sys
import time
import types

import pytest
import torch

from cases import IndexerCase, make_indexer
from patchset import (
    bench,
    bench_indexer,
    benchnames,
    kernelbench,
    peer_compile,
    peers,
    processes,
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch):
    monkeypatch.setattr(peers, "_left_out", set())


@pytest.fixture
def with_tilelang(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name == "tilelang" or found(name)
    )


def test_the_shapes_of_the_bench_are_five_variants():
    shapes = [
        (len(case.lens), case.cap)
        for cases in bench_indexer.SHAPES.values()
        for case in cases
    ]
    variants = peer_compile.tilelang_variants(shapes)
    splits = [max(1, min(width // 64, 256 // rows)) for rows, width in variants]
    assert splits == [1, 4, 16, 32, 256]
    assert peer_compile.tilelang_variants([(64, 2_048), (64, 32_768)]) == [(64, 32_768)]


def test_all_commands_run(tmp_path):
    commands = [
        python(f"open({str(tmp_path / name)!r}, 'w').close()") for name in "abc"
    ]
    peer_compile.run_all(commands, 60, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_one_that_fails_is_told_and_stops_the_others():
    slow = python("import time; time.sleep(60)")
    broken = python("import sys; print('x' * 2**17); sys.exit('no wgmma here')")
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="exit 1: no wgmma here"):
        peer_compile.run_all([slow, broken], 50, 2)
    assert time.monotonic() - start < 30


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path):
    child = tmp_path / "child"
    start = (
        "import subprocess, sys, time, pathlib;"
        " p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f" pathlib.Path({str(child)!r}).write_text(str(p.pid)); time.sleep(60)"
    )
    with pytest.raises(TimeoutError, match="1 of 3 variants were compiled within 3 s"):
        peer_compile.run_all([python(""), python(start), python(start)], 3, 2)
    assert int(child.read_text()) not in {each.id for each in processes.live()}


def test_tilelang_is_left_out_where_it_does_not_get_done(
    with_tilelang, monkeypatch, capsys
):
    asked = []

    def never(shapes, seconds):
        asked.append((shapes, seconds))
        raise TimeoutError("0 of 1 variants were compiled within 7 s")

    monkeypatch.setattr(peer_compile, "compile_tilelang", never)
    bench_indexer.BENCH.compile_peers(["skewed"], 7)
    assert asked == [([(64, 32_768)], 7)]
    assert capsys.readouterr().err == (
        "note: TileLang is left out: 0 of 1 variants were compiled within 7 s\n"
    )
    called = []
    tilelang = ("TileLang", lambda inputs: called.append(inputs))
    assert peers.arms([tilelang], [1], "skewed") == {} and called == []


@pytest.mark.parametrize("rows", (1, 2))
def test_tilelang_gets_tensors_with_the_strides_that_it_demands(
    rows, with_tilelang, monkeypatch
):
    """Its kernel takes the strides that follow from the shapes, also of a dimension of one."""
    seen = []
    name = "sglang.srt.layers.attention.dsa.tilelang_kernel"
    for at, letter in enumerate(name + "."):
        if letter == ".":
            monkeypatch.setitem(sys.modules, name[:at], types.ModuleType(name[:at]))
    sys.modules[name].tilelang_fp8_paged_mqa_logits = lambda *given: seen.append(given)
    case = IndexerCase("strides", (65,) * rows, 192, tail="valid")
    dict(peers.logits_peers(rows, 192, 0))["TileLang"](make_indexer(case))()
    (given,) = seen
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    assert len(tensors) == 5
    for tensor in tensors:
        assert tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


def test_one_that_nobody_wants_is_not_compiled(with_tilelang, monkeypatch):
    monkeypatch.setattr(peer_compile, "compile_tilelang", None)
    peers.leave_out("TileLang")
    bench_indexer.BENCH.compile_peers(["skewed"], 7)


def test_the_command_line_says_which_and_how_long(monkeypatch):
    seen = []
    monkeypatch.setattr(kernelbench, "run", lambda *words: seen.append(words) or 0)
    line = ["kernel", "--case", "indexer", "--without", "stock"]
    assert bench.main([*line, "--without", "TileLang", "--peer-seconds", "40"]) == 0
    assert bench.main(["kernel"]) == 0
    assert seen == [
        (["indexer"], None, 25, ["stock", "TileLang"], 40.0),
        (None, None, 25, [], 120),
    ]


def test_an_unknown_peer_is_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        bench.main(["kernel", "--without", "tilelang"])
    assert refused.value.code == 2
    assert "DeepGEMM" in capsys.readouterr().err


def test_every_peer_has_its_name_on_the_command_line(with_tilelang, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    names = [name for name, _ in peers.logits_peers(1, 64, 1e12)]
    names += [name for name, _ in peers.topk_peers([1_024], 512)]
    names += [name for name, _ in peers.stock_attention()]
    names += [name for name, _ in peers.flash_mla(64)]
    assert set(names) == set(benchnames.PEERS)
