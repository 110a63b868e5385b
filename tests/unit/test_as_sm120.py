"""What made an H200 serve as sm_120 does: that it does so, fits the release, and gave the ladder's answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import stock
from kernel_arms import ROOT

FOLDER = ROOT / "ci/checkpoints/raw/server-h200-as-sm120"
HOOKS = FOLDER / "hooks"
STEPS = ROOT / "ci/checkpoints/raw/server-h200-steps"

# Module, what is replaced in it, the variable, and what a module made for the test says before and after.
PIECES = [
    (
        "sglang.srt.utils.common",
        "is_sm120_supported",
        "ROUND_FORCE_SM120=1",
        "def is_sm120_supported(device=None):\n    return False\n",
        "is_sm120_supported()",
        ("False", "True"),
    ),
    (
        "sglang.srt.layers.attention.flash_mla_sm120_triton",
        "_tiled_sparse_decode_kernel",
        "ROUND_FMLA_CFG=0",
        "class _tiled_sparse_decode_kernel:\n    configs = ['first', 'second']\n",
        "_tiled_sparse_decode_kernel.configs",
        ("['first', 'second']", "['first']"),
    ),
    (
        "sglang.srt.model_loader.weight_utils",
        "initialize_dummy_weights",
        "ROUND_INIT=scaled",
        "def initialize_dummy_weights(model, low=-1e-3, high=1e-3, seed=1234):\n    'upstream'\n",
        "initialize_dummy_weights.__doc__",
        ("upstream", "None"),
    ),
]
IDS = [piece[1] for piece in PIECES]


@pytest.mark.parametrize("module, _, variable, source, shown, said", PIECES, ids=IDS)
def test_a_piece_is_put_in_where_its_variable_asks(
    module, _, variable, source, shown, said, tmp_path
):
    *folders, name = module.split(".")
    place = tmp_path
    for folder in folders:
        place /= folder
        place.mkdir()
        (place / "__init__.py").touch()
    (place / f"{name}.py").write_text(source)
    key, value = variable.split("=")
    command = [sys.executable, "-c", f"import {module} as m; print(m.{shown})"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROUND_")}
    env["PYTHONPATH"] = f"{HOOKS}{os.pathsep}{tmp_path}"
    for more, want in (({}, said[0]), ({key: value}, said[1])):
        done = subprocess.run(command, env=env | more, capture_output=True, text=True)
        assert done.stdout.strip() == want, done.stderr


@pytest.mark.parametrize("module, name", [each[:2] for each in PIECES], ids=IDS)
def test_the_release_has_what_a_piece_replaces(module, name):
    source = stock.tree() / "python" / f"{module.replace('.', '/')}.py"
    assert re.search(
        rf"^(?:def )?{name}\b|^@.*\n(?:.*\n)*?def {name}\(", source.read_text(), re.M
    )


def test_what_stands_in_for_flashinfer_raises():
    command = "import flashinfer.sampling as s; s.top_k_renorm_prob(1)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | {"PYTHONPATH": str(HOOKS)},
        capture_output=True,
        text=True,
    )
    assert "flashinfer.sampling.top_k_renorm_prob was called" in done.stderr


def test_it_gave_the_answers_of_the_ladder():
    made, before = (
        json.loads(file.read_text())
        for file in (FOLDER / "try.json", STEPS / "8k.json")
    )
    settings = [
        {each["name"]: each["settings"] for each in run["arms"]}
        for run in (made, before)
    ]
    assert made["notes"] == before["notes"]
    for arm in ("stock", "0100-whole"):
        assert settings[0][arm] == settings[1][arm]
        now, then = (
            next(
                each["said"]
                for each in run["answers"]
                if each["arm"] == arm and each["rows"] == 1
            )
            for run in (made, before)
        )
        tokens = [
            [token for said in run for token in said["ids"]] for run in (now, then)
        ]
        assert tokens[0] == tokens[1] and len(tokens[0]) == 256
        assert [each["best"][0] for each in now] == [each["best"][0] for each in then]
    text = (FOLDER / "README.md").read_text()
    assert "**256 of 256 tokens of each are those of" in text
    assert "the same 256 tokens each" in (ROOT / "docs/ladder.md").read_text()
