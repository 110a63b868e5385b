"""Each patch alone leaves a tree whose changed modules import and whose flags can be checked."""

from __future__ import annotations

import importlib
import io
import os
import re
import subprocess
import tarfile
from types import SimpleNamespace
from unittest import mock

import sglang_stand_ins
import stock

SRT = "python/sglang/srt"
MODULES = (
    "layers.attention.dsv4.indexer",
    "layers.attention.dsv4.metadata",
    "layers.attention.flash_mla_sm120",
    "layers.attention.deepseek_v4_backend",
    "layers.quantization.fp8",
)
MODEL = "models.deepseek_v4"


def git(*command: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(stock.tree()), *command], check=True, capture_output=True
    ).stdout


def checkpoints() -> list[tuple[str, str]]:
    """The patches of the series in the tree, each with its commit."""
    log = git("log", "--reverse", "--format=%H%n%B%x00").decode().split("\0")
    found = [re.search(r"(\w{40})\n.*^Patch: (\S+)$", one, re.M | re.S) for one in log]
    return [(match[2], match[1]) for match in found if match]


def server_args() -> SimpleNamespace:
    return SimpleNamespace(
        enable_deepseek_v4_fp4_indexer=False,
        tp_size=4,
        dp_size=1,
        attn_cp_size=1,
        enable_dp_attention=False,
        enable_dsa_prefill_context_parallel=False,
        speculative_algorithm="EAGLE",
        speculative_moe_runner_backend=None,
    )


def test_every_checkpoint_has_the_headers_that_its_sources_include():
    folder = f"{SRT}/layers/sm120/"
    sources = 0
    for patch, commit in checkpoints():
        names = git("ls-tree", "--name-only", commit, folder).decode().split()
        for name in names:
            if not name.endswith((".cu", ".cuh")):
                continue
            sources += name.endswith(".cu")
            text = git("show", f"{commit}:{name}").decode()
            for header in re.findall(r'^\s*#\s*include\s*"(.+)"', text, re.M):
                assert folder + header in names, f"{patch}: {name} includes {header}"
    assert sources > 0


def test_every_checkpoint_imports_and_checks_its_flags(tmp_path, caplog):
    known: set[str] = set()
    for patch, commit in checkpoints():
        place = tmp_path / patch
        paths = [f"{SRT}/{part}" for part in ("environ.py", "layers", "models")]
        archive = tarfile.open(fileobj=io.BytesIO(git("archive", commit, *paths)))
        archive.extractall(place, filter="data")
        caplog.clear()
        with (
            mock.patch.dict(os.environ, {"PATCHSET_TREE": str(place)}),
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.get_device_capability", return_value=(12, 0)),
            mock.patch("importlib.util.find_spec", return_value="a compiler"),
            caplog.at_level("INFO"),
        ):
            flags = flags_checked()
        assert known <= flags, f"{patch} takes back {known - flags}"
        said = {m for m in caplog.messages if m.startswith("sm_120 ")}
        assert len(said) == len(flags), (patch, said)
        known = flags
    assert {"SGLANG_SM120_INDEXER", "SGLANG_SM120_DECODE"} <= known


def flags_checked() -> set[str]:
    """Import what the patches change and check the flags; the names of those that are registered."""
    given = {
        "utils.common.is_sm120_supported": lambda: True,
        "utils.common.is_sm90_supported": lambda: False,
    }
    with sglang_stand_ins.imported(MODEL, real=MODULES, given=given):
        startup = importlib.import_module("sglang.srt.layers.sm120.startup")
        startup.check_flags(server_args())
        return {
            name
            for name, field in vars(type(startup.envs)).items()
            if name.startswith("SGLANG_SM120_") and type(field).__name__ == "EnvChoice"
        }
