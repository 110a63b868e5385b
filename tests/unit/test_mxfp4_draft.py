"""Patch 0100: which method the experts of a draft layer get, through upstream's own choice of it.

The server's arguments, the draft's quantization, the runner and the method are all decided by the patched
tree's code; made up are the checkpoints and the methods' kernels.
"""

from __future__ import annotations

from typing import NamedTuple, Optional
from unittest import mock

import pytest

from draft_server import CUTLASS, FLAG, MARLIN, NVFP4, PLAIN, TRTLLM, process

REFUSED = "no kernel"


class Row(NamedTuple):
    """A server's checkpoints and options, and the draft's method without the patch and with it."""

    target: str
    draft: Optional[str]
    quantization: Optional[str]
    runner: str
    speculative_runner: Optional[str]
    stock: str
    patched: str


SM120 = [
    Row("mxfp4", None, None, "auto", None, MARLIN, MARLIN),
    Row("mxfp4", None, "fp8", "auto", None, MARLIN, MARLIN),
    Row("mxfp4", None, None, "marlin", None, MARLIN, MARLIN),
    Row("mxfp4", None, None, "flashinfer_mxfp4", None, TRTLLM, MARLIN),
    Row("mxfp4", None, "fp8", "triton", None, PLAIN, MARLIN),
    Row("nvfp4", "mxfp4", None, "auto", None, MARLIN, MARLIN),
    Row("nvfp4", "mxfp4", "modelopt_fp4", "auto", None, MARLIN, MARLIN),
    Row("nvfp4", "mxfp4", "modelopt_fp4", "flashinfer_cutlass", None, PLAIN, MARLIN),
    Row("nvfp4", "mxfp4", None, "flashinfer_cutlass", None, PLAIN, MARLIN),
    Row("nvfp4", "mxfp4", "modelopt_fp4", "cutlass", None, PLAIN, MARLIN),
    Row("nvfp4", "mxfp4", "modelopt_fp4", "flashinfer_mxfp4", None, TRTLLM, MARLIN),
    # A runner that the user gives the draft comes first, and must have a kernel.
    Row("nvfp4", "mxfp4", None, "flashinfer_cutlass", "marlin", MARLIN, MARLIN),
    Row("mxfp4", None, None, "auto", "flashinfer_mxfp4", TRTLLM, REFUSED),
    Row("mxfp4", None, None, "auto", "triton", PLAIN, REFUSED),
    Row("nvfp4", "mxfp4", "modelopt_fp4", "auto", "cutlass", PLAIN, REFUSED),
    # Experts that are no MXFP4 keep their runner.
    Row("nvfp4", None, "modelopt_fp4", "flashinfer_cutlass", None, NVFP4, NVFP4),
    Row("nvfp4", None, None, "flashinfer_cutlass", None, NVFP4, NVFP4),
    Row("nvfp4", "fp8", "modelopt_fp4", "flashinfer_cutlass", None, PLAIN, PLAIN),
    Row("fp8", None, None, "triton", None, PLAIN, PLAIN),
    Row("fp8", "mxfp4", "fp8", "triton", None, PLAIN, MARLIN),
]


def start(server, row: Row):
    return server.start(
        row.target,
        speculative_draft_model_path=row.draft,
        quantization=row.quantization,
        moe_runner_backend=row.runner,
        speculative_moe_runner_backend=row.speculative_runner,
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=1,
        speculative_num_steps=1,
        speculative_num_draft_tokens=2,
    )


@pytest.mark.parametrize("row", SM120, ids=lambda row: "-".join(map(str, row[:5])))
def test_the_drafts_method_on_sm_120(row):
    with process((12, 0)) as server:
        args = start(server, row)
        if row.patched == REFUSED:
            with pytest.raises(
                ValueError,
                match="the MXFP4 experts of model.decoder.mlp.experts have no sm_120 kernel with the runner"
                f" {row.speculative_runner}: pass --moe-runner-backend marlin,"
                " or --speculative-moe-runner-backend marlin",
            ):
                server.draft_method(args)
        else:
            assert server.draft_method(args) == row.patched


@pytest.mark.parametrize("row", SM120, ids=lambda row: "-".join(map(str, row[:5])))
def test_off_is_upstream(row):
    with process((12, 0), **{FLAG: "off"}) as server:
        args = start(server, row)
        assert server.draft_method(args) == row.stock
        inherited = "marlin" if row.runner == "auto" else row.runner
        assert args.moe_runner_backend == inherited
        assert args.speculative_moe_runner_backend == (
            row.speculative_runner or inherited
        )
        assert args.speculative_moe_a2a_backend is None


def test_the_targets_runner_is_not_touched():
    row = Row("nvfp4", "mxfp4", None, "flashinfer_cutlass", None, PLAIN, MARLIN)
    with process((12, 0)) as server:
        args = start(server, row)
        assert args.moe_runner_backend == "flashinfer_cutlass"
        assert args.speculative_moe_runner_backend == "marlin"
        assert args.speculative_moe_a2a_backend == "none"
        assert server.target_method(args) == NVFP4


@pytest.mark.parametrize("flag,method", [("auto", REFUSED), ("off", TRTLLM)])
def test_a_target_without_a_kernel_is_refused_too(flag, method):
    with process((12, 0), **{FLAG: flag}) as server:
        args = server.start("mxfp4", moe_runner_backend="flashinfer_mxfp4")
        if method != REFUSED:
            assert server.target_method(args) == method
            return
        with pytest.raises(ValueError, match="experts of model.layers.3.mlp.experts"):
            server.target_method(args)


@pytest.mark.parametrize("runner", ["flashinfer_mxfp4", "triton"])
def test_on_against_the_users_runner_stops_the_server(runner):
    with process((12, 0), **{FLAG: "on"}) as server:
        with pytest.raises(
            RuntimeError,
            match=f"{FLAG}=on conflicts with --speculative-moe-runner-backend {runner}",
        ):
            start(server, Row("mxfp4", None, None, "auto", runner, "", ""))


@pytest.mark.parametrize(
    "capability,flag,method",
    [
        ((9, 0), "auto", CUTLASS),
        ((9, 0), "off", CUTLASS),
        ((9, 0), "on", MARLIN),
        ((10, 0), "auto", TRTLLM),
        ((10, 0), "off", TRTLLM),
    ],
)
def test_other_cards(capability, flag, method):
    row = Row("mxfp4", None, None, "flashinfer_mxfp4", None, "", "")
    with process(capability, **{FLAG: flag}) as server:
        assert server.draft_method(start(server, row)) == method


@pytest.mark.parametrize(
    "capability,why",
    [
        ((10, 0), "takes sm_90 and sm_120 only"),
        ((8, 9), "needs compute capability 9.0 or newer"),
    ],
)
def test_on_where_no_kernel_exists_stops_the_server(capability, why):
    row = Row("mxfp4", None, None, "flashinfer_mxfp4", None, "", "")
    with process(capability, **{FLAG: "on"}) as server:
        with pytest.raises(RuntimeError, match=f"{FLAG}=on .*{why}"):
            start(server, row)


CHOICE = f"the runner marlin, for a draft's too ({FLAG}=auto, cuda 12.0)"


def lines(caplog):
    start = "sm_120 MXFP4 experts: "
    return [m.removeprefix(start) for m in caplog.messages if m.startswith(start)]


@pytest.mark.parametrize(
    "row,said",
    [
        (SM120[0], []),
        (SM120[7], ["marlin for the draft instead of flashinfer_cutlass"]),
        (SM120[15], ["the draft has none, its own keep flashinfer_cutlass"]),
    ],
)
def test_what_is_logged(row, said, caplog):
    with caplog.at_level("INFO"), process((12, 0)) as server:
        server.draft_method(start(server, row))
    assert lines(caplog) == [CHOICE, *said]


def test_a_layer_of_the_target_leaves_what_was_chosen_for_the_draft(caplog):
    row = Row("mxfp4", None, None, "auto", "triton", PLAIN, REFUSED)
    chosen = f"upstream's path ({FLAG}=auto yields to --speculative-moe-runner-backend triton)"
    with caplog.at_level("INFO"), process((12, 0)) as server:
        args = start(server, row)
        assert server.target_method(args) == MARLIN
        with pytest.raises(ValueError, match="have no sm_120 kernel"):
            server.draft_method(args)
        assert server.hook.ROUTE.taken == {
            "path": f"MXFP4 experts: {chosen}",
            "ours": False,
        }
    assert lines(caplog) == [chosen]


@pytest.mark.parametrize(
    "row,flag,said",
    [
        (SM120[0], "auto", [CHOICE]),
        (SM120[7], "auto", [CHOICE]),
        (SM120[0], "off", [f"upstream's path ({FLAG}=off)"]),
        # The user's own runner for a draft that it suits.
        (Row("mxfp4", "fp8", None, "auto", "triton", PLAIN, PLAIN), "auto", []),
    ],
)
def test_a_worker_logs_what_its_arguments_still_tell(row, flag, said, caplog):
    with process((12, 0), **{FLAG: flag}) as server:
        args = start(server, row)
        # A process of its own has no log of the one that settled the arguments.
        route = server.hook.ROUTE
        worker = mock.patch.multiple(route, taken=None, _logged=set())
        caplog.clear()
        with caplog.at_level("INFO"), worker:
            server.target_method(args)
            server.draft_method(args)
            assert (route.taken is not None) == bool(said)
    assert lines(caplog) == said


def test_without_a_draft_no_runner_is_chosen(caplog):
    with caplog.at_level("INFO"), process((12, 0)) as server:
        args = server.start("mxfp4")
        assert server.target_method(args) == MARLIN
    assert args.speculative_moe_runner_backend is None
    assert lines(caplog) == [CHOICE]


def test_a_bad_word_stops_the_server():
    with process((12, 0), **{FLAG: "yes"}) as server:
        with pytest.raises(RuntimeError, match=f"{FLAG}='yes': expected one of"):
            server.start("mxfp4")
