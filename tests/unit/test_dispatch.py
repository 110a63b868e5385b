"""The choice of path: a pure function of flag, device and conflict."""

from __future__ import annotations

import itertools
import logging

import pytest

from kernels.dispatch import (
    Choice,
    Device,
    FlagError,
    Route,
    choose,
    current_device,
    log_once,
)

NAME = "SGLANG_SM120_INDEXER"
CUDA = {
    c: Device("cuda", c)
    for c in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1))
}
CPU, HIP = Device("cpu", None), Device("hip", None)


def decide(flag, device, conflict=None):
    return choose(
        NAME,
        flag,
        device,
        minimum=(8, 9),
        why_minimum="older GPUs have no fp8 tensor cores",
        conflict=conflict,
    )


@pytest.mark.parametrize("device", [*CUDA.values(), CPU, HIP], ids=str)
def test_auto_is_on_for_capability_12_only(device):
    choice = decide("auto", device)
    assert choice.active == (device.kind == "cuda" and device.capability[0] == 12)
    assert str(device) in choice.reason and NAME in choice.reason


@pytest.mark.parametrize("device", [*CUDA.values(), CPU, HIP], ids=str)
def test_off_is_off_everywhere(device):
    assert decide("off", device, "X=1") == Choice(False, f"{NAME}=off")


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (12, 0), (12, 1)])
def test_on_works_from_sm_89(capability):
    assert decide("on", CUDA[capability]).active


@pytest.mark.parametrize(
    "device,why",
    [
        (CUDA[8, 0], "8.9 or newer.*fp8 tensor cores.*cuda 8.0"),
        (CUDA[8, 6], "cuda 8.6"),
        (CPU, "needs a CUDA GPU, this is cpu"),
        (HIP, "needs a CUDA GPU, this is hip"),
    ],
    ids=str,
)
def test_on_where_it_cannot_work_says_why(device, why):
    with pytest.raises(FlagError, match=f"{NAME}=on needs .*{why.split('needs ')[-1]}"):
        decide("on", device)


def test_an_explicit_choice_of_the_user_wins_over_auto_and_refuses_on():
    choice = decide("auto", CUDA[12, 0], "SGLANG_OPT_USE_TILELANG_INDEXER=1")
    assert (
        not choice.active
        and "yields to SGLANG_OPT_USE_TILELANG_INDEXER=1" in choice.reason
    )
    with pytest.raises(
        FlagError, match=f"{NAME}=on conflicts with SGLANG_OPT_USE_TILELANG_INDEXER=1"
    ):
        decide("on", CUDA[12, 0], "SGLANG_OPT_USE_TILELANG_INDEXER=1")


def test_what_a_path_lacks_is_said_and_refuses_on():
    missing = "it builds on SGLANG_SM120_OTHER, which is not in use"
    card = CUDA[12, 0]
    assert choose(NAME, "auto", card, missing=missing) == Choice(
        False, f"{NAME}=auto: {missing}"
    )
    assert choose(NAME, "off", card, missing=missing) == Choice(False, f"{NAME}=off")
    with pytest.raises(
        FlagError,
        match=f"{NAME}=on cannot work: {missing}. Give it what it needs, or set {NAME}=off or auto",
    ):
        choose(NAME, "on", card, missing=missing)


@pytest.mark.parametrize("word", ["", "1", "ON", "true"])
def test_another_word_is_an_error(word):
    with pytest.raises(ValueError, match=f"{NAME}: expected auto, on or off, got"):
        decide(word, CUDA[12, 0])


def test_the_same_question_has_the_same_answer():
    for flag, device in itertools.product(("auto", "off"), (*CUDA.values(), CPU, HIP)):
        assert decide(flag, device) == decide(flag, device)


def test_a_route_logs_its_path_and_reason_once_for_each_setting(caplog, monkeypatch):
    monkeypatch.setattr("kernels.dispatch.current_device", lambda: CUDA[12, 0])
    route = Route(NAME, "indexer", "our kernel", minimum=(8, 9))
    with caplog.at_level(logging.INFO):
        route.choice("auto")
        assert not caplog.messages
        assert [route.active("auto") for _ in range(3)] == [True] * 3
        assert [route.active("off") for _ in range(3)] == [False] * 3
        assert not route.active("auto", "X=1")
    assert caplog.messages == [
        f"sm_120 indexer: our kernel ({NAME}=auto, cuda 12.0)",
        f"sm_120 indexer: upstream's path ({NAME}=off)",
        f"sm_120 indexer: upstream's path ({NAME}=auto yields to X=1)",
    ]


def test_a_route_names_the_other_path_and_asks_again_when_something_is_missing(
    caplog, monkeypatch
):
    monkeypatch.setattr("kernels.dispatch.current_device", lambda: CUDA[12, 0])
    route = Route(NAME, "split-K", "several blocks", instead="one block")
    with caplog.at_level(logging.INFO):
        assert route.active("auto") and not route.active("auto", missing="no kernel")
    assert caplog.messages == [
        f"sm_120 split-K: several blocks ({NAME}=auto, cuda 12.0)",
        f"sm_120 split-K: one block ({NAME}=auto: no kernel)",
    ]


def test_what_has_no_route_is_logged_once(caplog):
    with caplog.at_level(logging.INFO):
        for path in ("split", "split", "bf16"):
            log_once("weights of this test", path)
    assert caplog.messages == [
        f"sm_120 weights of this test: {path}" for path in ("split", "bf16")
    ]


def test_a_route_says_once_that_there_is_nothing_to_choose(caplog):
    route = Route(NAME, "heads", "fewer")
    with caplog.at_level(logging.INFO):
        route.idle("one rank")
        route.idle("one rank")
    assert caplog.messages == ["sm_120 heads: nothing to do (one rank)"]


def test_the_device_of_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert current_device() == CPU
