"""What a patched server tells about itself, and which build a client reads from it."""

from __future__ import annotations

import ast
import hashlib
import shutil
from pathlib import Path

import pytest

import sglang_tree
import stock
from made_wheel import ROOT
from patchset import gitenv, serverbuild, state
from patchset.errors import Exit, Failure
from patchset.series import load_series

SERIES = load_series(ROOT / "patches" / "0.5.13")
CHECKPOINTS = ROOT / "CHECKPOINTS.md"


def files_at(step: int) -> dict[str, str]:
    """The files that a server at a step of the series tells."""
    blobs = state._blobs(SERIES)
    return {
        path.removeprefix("python/sglang/"): ids[step]
        for path, ids in blobs.items()
        if ids[step]
    }


def told(step: int, **paths) -> dict:
    return {"files": files_at(step), "paths": paths}


def info(*parts: dict | None) -> dict:
    states = [{} if part is None else {"sm120_patches": part} for part in parts]
    return {"version": "0.5.13", "internal_states": states}


def build(*parts) -> serverbuild.Build:
    return serverbuild.build_of(info(*parts), SERIES, CHECKPOINTS)


@pytest.fixture(scope="module")
def server_info():
    with sglang_tree.modules("layers.sm120.server_info") as (module,):
        yield module


def test_the_tree_tells_the_last_patch_of_the_series(server_info):
    found = build(server_info.describe())
    assert found.state.kind == "applied" and not found.state.foreign
    assert found.checkpoint == SERIES.patches[-1].name
    assert found.commit and found.commit in CHECKPOINTS.read_text()
    serverbuild.require(found, SERIES.patches[-1].name, SERIES)


def test_each_path_that_a_patch_touches_is_told(server_info):
    own = "srt/layers/sm120/"
    touched = {path.removeprefix("python/sglang/") for path in SERIES.paths}
    hooked = {path for path in touched if not path.startswith(own)}
    assert hooked <= set(server_info.HOOKED), "add them to kernels/server_info.py"
    assert touched <= set(server_info.describe()["files"])


def test_an_id_is_gits_own(server_info):
    tree = stock.tree()
    for name, blob in server_info.describe()["files"].items():
        path = f"python/sglang/{name}"
        assert gitenv.text(tree, "hash-object", "--no-filters", path) == blob


def test_a_file_changed_after_the_start_is_told_as_it_was(tmp_path):
    package = tmp_path / "sglang" / "srt" / "layers" / "sm120"
    shutil.copytree(stock.tree() / "python/sglang/srt/layers/sm120", package)
    source = (package / "server_info.py").read_text()
    space = {"__file__": str(package / "server_info.py"), "__name__": "x"}
    body = source.replace("from . import startup", "")
    exec(compile(body, "server_info", "exec"), space)
    config = "srt/layers/sm120/config.py"
    before = space["_FILES"][config]
    (tmp_path / "sglang" / config).write_text("changed")
    assert space["_FILES"][config] == before
    assert space["_blob_ids"]()[config] == hashlib.sha1(b"blob 7\0changed").hexdigest()


def test_paths_are_those_that_the_hooks_took():
    with sglang_tree.modules(
        "layers.sm120.server_info", "layers.sm120.metadata_hook"
    ) as (module, hook):
        paths = module.describe()["paths"]
        assert {"SGLANG_SM120_INDEXER", "SGLANG_SM120_TOPK"} <= set(paths)
        assert set(paths.values()) == {None}, "no step has asked yet"
        hook.ROUTE.active("off")
        told = module.describe()["paths"]["SGLANG_SM120_METADATA"]
        assert told["path"].endswith("upstream's path (SGLANG_SM120_METADATA=off)")
        assert told["ours"] is False
        hook.ROUTE.idle("nothing is here")
        assert module.describe()["paths"]["SGLANG_SM120_METADATA"]["ours"] is None


def test_the_scheduler_tells_it():
    source = (stock.tree() / "python/sglang/srt/managers/scheduler.py").read_text()
    (function,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "get_internal_state"
    ]
    lines = [ast.unparse(statement) for statement in function.body]
    assert "ret['sm120_patches'] = sm120_server_info.describe()" in lines


def test_a_stock_server_says_nothing():
    found = build(None)
    assert found.state is None and found.checkpoint == "stock"
    serverbuild.require(found, "stock", SERIES)
    with pytest.raises(Failure, match="not a patched build") as caught:
        serverbuild.require(found, SERIES.patches[-1].name, SERIES)
    assert caught.value.code == Exit.SERVER


@pytest.mark.parametrize("step", range(4, len(SERIES.patches) + 1))
def test_each_checkpoint_is_told_from_the_others(step):
    name = SERIES.patches[step - 1].name
    found = build(told(step))
    assert (found.checkpoint, found.state.applied) == (name, step)
    serverbuild.require(found, name.partition("-")[0], SERIES)
    other = SERIES.patches[step - 2].name
    with pytest.raises(Failure, match=f"stands at {name}, and {other} is wanted"):
        serverbuild.require(found, other, SERIES)


@pytest.fixture
def tree_at(tmp_path):
    """A function that writes the files of the series as they are at a checkpoint."""

    def at(checkpoint: str) -> Path:
        tree = tmp_path / checkpoint
        commit = serverbuild._commits(CHECKPOINTS)[checkpoint]
        for path in SERIES.paths:
            there = gitenv.text(stock.tree(), "ls-tree", commit, path)
            if there:
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                data = gitenv.run(stock.tree(), "cat-file", "blob", there.split()[2])
                (tree / path).write_bytes(data)
        return tree

    return at


@pytest.mark.parametrize("step", range(1, 4))
def test_the_tree_of_a_server_that_cannot_tell_is_read(tree_at, step):
    name = SERIES.patches[step - 1].name
    assert not serverbuild.tells(name)
    found = serverbuild.build_in(tree_at(name), "0.5.13", SERIES, CHECKPOINTS)
    assert (found.checkpoint, found.state.applied) == (name, step)
    assert gitenv.text(stock.tree(), "show", "-s", "--format=%s", found.commit) == (
        SERIES.patches[step - 1].subject
    )
    serverbuild.require(found, name, SERIES)
    with pytest.raises(Failure, match=f"is patched .{name}., and a stock one"):
        serverbuild.require(found, "stock", SERIES)


def test_the_tree_of_the_release_is_stock(tree_at):
    tree = tree_at("0000-stock")
    found = serverbuild.build_in(tree, "0.5.13", SERIES, CHECKPOINTS)
    assert found == build(None)


def test_a_tree_whose_server_would_tell_is_another_servers(tree_at):
    name = SERIES.patches[3].name
    assert serverbuild.tells(name)
    with pytest.raises(Failure, match=f"stands at {name}, and a server of it would"):
        serverbuild.build_in(tree_at(name), "0.5.13", SERIES, CHECKPOINTS)


def test_a_changed_tree_is_not_taken_for_a_checkpoint(tree_at):
    name = SERIES.patches[2].name
    tree = tree_at(name)
    (tree / "python/sglang/srt/environ.py").write_text("changed")
    found = serverbuild.build_in(tree, "0.5.13", SERIES, CHECKPOINTS)
    assert found.commit is None
    with pytest.raises(Failure, match="neither the release's nor of this series"):
        serverbuild.require(found, name, SERIES)


def test_a_server_that_cannot_tell_is_said_to_need_its_tree():
    with pytest.raises(Failure) as caught:
        serverbuild.require(build(None), "0020", SERIES)
    assert "bench.sh steps reads its tree, --tree NAME=DIR" in caught.value.next


def test_a_patched_server_is_not_stock():
    with pytest.raises(Failure, match="is patched .*, and a stock one is wanted"):
        serverbuild.require(build(told(5)), "stock", SERIES)


def test_a_foreign_file_is_named():
    part = told(len(SERIES.patches))
    part["files"]["srt/environ.py"] = "0" * 40
    found = build(part)
    assert found.commit is None
    with pytest.raises(
        Failure, match="neither the release's nor of this series"
    ) as caught:
        serverbuild.require(found, SERIES.patches[-1].name, SERIES)
    assert caught.value.where == "python/sglang/srt/environ.py"


def test_files_of_different_steps_are_named():
    last = len(SERIES.patches)
    part = told(last)
    indexer = "srt/layers/attention/dsv4/indexer.py"
    part["files"][indexer] = files_at(4)[indexer]
    with pytest.raises(Failure, match="stand at different patches") as caught:
        serverbuild.require(build(part), SERIES.patches[-1].name, SERIES)
    assert indexer in caught.value.where


def test_parts_that_run_different_files_are_refused():
    last = len(SERIES.patches)
    assert build(told(last), told(last)).state.kind == "applied"
    for other in (told(last - 1), None):
        with pytest.raises(Failure, match="run different files"):
            build(told(last), other)


OURS = {"path": "top-k: exact select (A=on, cuda 9.0)", "ours": True}
OTHER = {"path": "indexer: upstream's path (B=off)", "ours": False}
IDLE = {"path": "heads: nothing to do (--tp-size 1)", "ours": None}


@pytest.mark.parametrize(
    "paths, flags, where",
    [
        ({"A": OURS}, (), None),
        ({"A": OURS, "C": None, "D": IDLE}, (), None),
        ({"A": OURS, "C": None, "B": OTHER}, ("A",), None),
        ({"A": OURS, "B": OTHER}, (), ["B: indexer: upstream's path (B=off)"]),
        ({"A": OURS, "C": None}, ("A", "C"), ["C: no step has asked for it"]),
        ({"A": OURS, "D": IDLE}, ("D",), [f"D: {IDLE['path']}"]),
        ({"C": None, "D": IDLE}, (), ["no step has asked for any flag"]),
    ],
)
def test_paths_that_are_not_ours_are_named(paths, flags, where):
    found = build(told(len(SERIES.patches), **paths))
    if where is None:
        return serverbuild.require_ours_active(found, flags)
    with pytest.raises(Failure, match="not every flag") as caught:
        serverbuild.require_ours_active(found, flags)
    assert caught.value.where.splitlines() == where


def test_a_flag_that_the_server_does_not_have():
    with pytest.raises(Failure, match="has no flag X") as caught:
        serverbuild.require_ours_active(build(told(4, A=OURS)), ["X"])
    assert caught.value.code == Exit.USAGE


def test_without_the_page_of_checkpoints_no_commit_is_made_up(tmp_path):
    last = len(SERIES.patches)
    found = serverbuild.build_of(info(told(last)), SERIES, tmp_path / "none.md")
    assert found.commit is None and found.checkpoint == SERIES.patches[-1].name


def test_the_ids_of_the_kernel_folder_and_of_the_tree_are_equal(server_info):
    files = server_info.describe()["files"]
    for file in (ROOT / "kernels").glob("*.py"):
        name = f"srt/layers/sm120/{file.name}"
        if name in files:
            data = Path(file).read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            assert files[name] == blob
