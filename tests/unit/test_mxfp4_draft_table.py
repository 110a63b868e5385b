"""Patch 0100 in every combination of checkpoints, --quantization and MoE runners that a server accepts.

What is expected follows from what can run on sm_120, not from the code:

* Experts packed as MXFP4 have one method with a kernel there, Marlin's, which takes Triton on this card. The
  TensorRT-LLM method is for sm_100, the CUTLASS one for sm_90, and the FP8 method would read packed bytes as FP8.
* Experts of another format keep the method of their own format, whatever the runner.
* A runner that is named for the draft comes first; only without one may another be chosen for it. "auto" names
  none. For experts of another format it stays, as upstream settles it for the target alone.
* --quantization describes the target, so it says nothing of a draft that has a checkpoint of its own.
"""

from __future__ import annotations

import logging
import os
from itertools import product
from typing import NamedTuple, Optional
from unittest import mock

import pytest

from draft_server import FLAG, MARLIN, NVFP4, PLAIN, process

ONLY_RUNNER = "marlin"
OTHERS = {"fp8": PLAIN, "nvfp4": NVFP4}
# Behind these upstream makes the layer a DeepEPMoE, whose kernels are DeepGEMM's: none for sm_120.
DEEP_GEMM_ALL_TO_ALL = ("deepep", "mooncake", "nixl", "mori")
QUANTIZATIONS = (None, "fp8", "modelopt_fp4")
CHECKPOINTS = [
    (target, None if draft == target else draft)
    for target, draft in product(("mxfp4", "nvfp4", "fp8"), repeat=2)
]


class Options(NamedTuple):
    quantization: Optional[str]
    runner: str
    draft_runner: Optional[str]


def refusal(layer: str, runner: str) -> str:
    """The error's words: what has no kernel with what, and the option to pass."""
    what = (
        f"the MXFP4 experts of {layer} have no sm_120 kernel with the runner {runner}"
    )
    return f"{what}: pass --moe-runner-backend {ONLY_RUNNER}"


def behind(all_to_all: Optional[str], layer: str) -> str:
    """The method of MXFP4 experts behind an all-to-all, or the error's words."""
    if all_to_all not in DEEP_GEMM_ALL_TO_ALL:
        return MARLIN
    return f"the MXFP4 experts of {layer} have no sm_120 kernel behind the all-to-all {all_to_all}"


def expected_target(target: str, options: Options) -> str:
    if target in OTHERS:
        return OTHERS[target]
    if options.runner in ("auto", ONLY_RUNNER):
        return MARLIN
    return refusal("model.layers.3.mlp.experts", options.runner)


def expected_draft(target: str, draft: Optional[str], options: Options) -> str:
    experts = draft or target
    if experts in OTHERS:
        return OTHERS[experts]
    if options.draft_runner in (None, "auto", ONLY_RUNNER):
        return MARLIN
    return refusal("model.decoder.mlp.experts", options.draft_runner)


def expected_runner(target: str, draft: Optional[str], options: Options) -> str:
    """The draft's: the user's, the one with a kernel for MXFP4, or the target's."""
    if options.draft_runner not in (None, "auto"):
        return options.draft_runner
    if (draft or target) == "mxfp4":
        return ONLY_RUNNER
    if options.draft_runner == "auto":
        return "auto"
    return ONLY_RUNNER if options.runner == "auto" else options.runner


def every_option(server, quantizations=QUANTIZATIONS) -> list[Options]:
    runners = server.module("server_args").MOE_RUNNER_BACKEND_CHOICES
    assert {"auto", "triton", "flashinfer_mxfp4", ONLY_RUNNER} < set(runners)
    return [Options(*one) for one in product(quantizations, runners, (None, *runners))]


def start(server, target: str, draft: Optional[str], options: Options, **more):
    return server.start(
        target,
        speculative_draft_model_path=draft,
        quantization=options.quantization,
        moe_runner_backend=options.runner,
        speculative_moe_runner_backend=options.draft_runner,
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=1,
        speculative_num_steps=1,
        speculative_num_draft_tokens=2,
        **more,
    )


def method(chosen) -> str:
    """The class that is chosen, or the error's first words."""
    try:
        return chosen()
    except ValueError as error:
        return str(error).split(",")[0]


def outcomes(server, target, draft, every) -> dict:
    """For each of the options: the target's method, the draft's, and the draft's runner."""
    found = {}
    for options in every:
        args = start(server, target, draft, options)
        found[options] = (
            method(lambda: server.target_method(args)),
            method(lambda: server.draft_method(args)),
            args.speculative_moe_runner_backend,
        )
    return found


@pytest.fixture(autouse=True)
def quiet():
    """Thousands of servers say the same."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target,draft", CHECKPOINTS)
def test_every_combination_has_a_kernel_or_a_clear_error(target, draft):
    with process((12, 0)) as server:
        every = every_option(server)
        found = outcomes(server, target, draft, every)
    wrong = {
        options: (got, want)
        for options, got in found.items()
        if got
        != (
            want := (
                expected_target(target, options),
                expected_draft(target, draft, options),
                expected_runner(target, draft, options),
            )
        )
    }
    assert len(found) == len(every) and not wrong


@pytest.mark.parametrize("target,draft", CHECKPOINTS)
def test_off_is_the_release_in_every_combination(release, target, draft):
    with process((12, 0), **{FLAG: "off"}) as server:
        every = every_option(server, quantizations=(None,))
        ours = outcomes(server, target, draft, every)
    with (
        mock.patch.dict(os.environ, PATCHSET_TREE=str(release)),
        process((12, 0)) as server,
    ):
        assert every_option(server, quantizations=(None,)) == every
        theirs = outcomes(server, target, draft, every)
    assert ours == theirs
    # What the patch is for is not right without it.
    if "mxfp4" == (draft or target):
        assert any(
            expected_draft(target, draft, options) == MARLIN != one[1]
            for options, one in theirs.items()
        )


@pytest.mark.parametrize("runner", [None, ONLY_RUNNER])
def test_an_all_to_all_of_the_user_is_kept_or_refused(runner):
    """And where none is named, a draft that doesn't inherit its runner doesn't inherit one either."""
    options = Options(None, "triton", runner)
    with process((12, 0)) as server:
        for named in (None, *server.module("server_args").MOE_A2A_BACKEND_CHOICES):
            args = start(
                server, "nvfp4", "mxfp4", options, speculative_moe_a2a_backend=named
            )
            chosen = "none" if runner is None and named is None else named
            assert args.speculative_moe_a2a_backend == chosen
            said = method(lambda: server.draft_method(args))
            assert said == behind(named, "model.decoder.mlp.experts")


@pytest.mark.parametrize("all_to_all", ["none", "deepep", "mooncake", "nixl", "mori"])
def test_an_all_to_all_of_the_target_needs_a_kernel_too(all_to_all):
    with process((12, 0)) as server:
        args = start(
            server,
            "mxfp4",
            None,
            Options(None, ONLY_RUNNER, None),
            moe_a2a_backend=all_to_all,
        )
        said = method(lambda: server.target_method(args))
    assert said == behind(all_to_all, "model.layers.3.mlp.experts")


@pytest.mark.parametrize("all_to_all", DEEP_GEMM_ALL_TO_ALL)
def test_off_refuses_no_all_to_all(all_to_all):
    with process((12, 0), **{FLAG: "off"}) as server:
        args = start(
            server,
            "mxfp4",
            None,
            Options(None, ONLY_RUNNER, None),
            moe_a2a_backend=all_to_all,
        )
        assert server.target_method(args) == MARLIN
