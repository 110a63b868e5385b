"""What the patched server does at start: whose settings win, what is warned of, what is refused."""

from __future__ import annotations

import ast
import os
import re
from types import SimpleNamespace
from unittest import mock

import pytest

import sglang_tree
import stock

FORCED = {
    "SGLANG_OPT_FP8_WO_A_GEMM": "False",
    "SGLANG_OPT_USE_TOPK_V2": "False",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "False",
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM": "False",
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "True",
}
OTHERS = (
    "SGLANG_SM120_INDEXER",
    "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL",
    "SGLANG_OPT_USE_TILELANG_INDEXER",
    "SGLANG_OPT_USE_AITER_INDEXER",
)


@pytest.fixture
def startup():
    clean = {k: v for k, v in os.environ.items() if k not in {*FORCED, *OTHERS}}
    # These ask for a compiler that this Python may lack: see their hooks' tests.
    for name in ("TOPK", "DECODE", "HC_PRE"):
        clean[f"SGLANG_SM120_{name}"] = "off"
    with mock.patch.dict(os.environ, clean, clear=True):
        with sglang_tree.modules("layers.sm120.startup") as (module,):
            yield module


def server_args(fp4=False):
    return SimpleNamespace(
        enable_deepseek_v4_fp4_indexer=fp4,
        tp_size=4,
        dp_size=1,
        attn_cp_size=1,
        enable_dp_attention=False,
        enable_dsa_prefill_context_parallel=False,
        speculative_algorithm="EAGLE",
        speculative_moe_runner_backend=None,
    )


def card(major, minor=0):
    available = mock.patch("torch.cuda.is_available", return_value=True)
    capability = mock.patch(
        "torch.cuda.get_device_capability", return_value=(major, minor)
    )
    return available, capability


def forced_now():
    return {name: os.environ.get(name) for name in FORCED}


def test_with_nothing_set_the_defaults_are_upstreams(startup, caplog):
    startup.apply_sm120_defaults()
    assert forced_now() == FORCED
    assert not caplog.messages


@pytest.mark.parametrize("name", FORCED)
def test_a_users_setting_is_kept_and_a_fatal_one_warned_of(startup, caplog, name):
    value = "1" if FORCED[name] == "False" else "0"
    os.environ[name] = value
    startup.apply_sm120_defaults()
    assert forced_now() == FORCED | {name: value}
    fatal = name != "SGLANG_OPT_USE_TILELANG_MHC_PRE"
    assert len(caplog.messages) == fatal
    if fatal:
        assert caplog.messages[0].startswith(
            f"{name}={value == '1'} is kept as you set it, but on sm_120 "
        )
        assert caplog.messages[0].endswith("Unset it to get the default.")


@pytest.mark.parametrize("name", FORCED)
def test_a_users_setting_that_equals_the_default_is_not_warned_of(
    startup, caplog, name
):
    os.environ[name] = "0" if FORCED[name] == "False" else "1"
    startup.apply_sm120_defaults()
    assert not caplog.messages


def test_sparse_prefill_is_warned_of(startup, caplog):
    os.environ["SGLANG_OPT_FLASHMLA_SPARSE_PREFILL"] = "1"
    startup.apply_sm120_defaults()
    assert len(caplog.messages) == 1 and "sm_90 and sm_100 only" in caplog.messages[0]


def test_a_worker_and_a_second_engine_change_nothing(startup, caplog):
    os.environ["SGLANG_OPT_USE_TOPK_V2"] = "1"
    startup.apply_sm120_defaults()
    first = forced_now()
    with sglang_tree.modules("layers.sm120.startup") as (worker,):
        worker.apply_sm120_defaults()
        worker.apply_sm120_defaults()
    assert forced_now() == first
    assert len(caplog.messages) == 2, "one warning for each process"


def test_a_setting_for_the_second_engine_is_the_users(startup, caplog):
    startup.apply_sm120_defaults()
    os.environ["SGLANG_OPT_USE_TILELANG_MHC_PRE"] = "1"
    os.environ["SGLANG_OPT_USE_TOPK_V2"] = "1"
    startup.apply_sm120_defaults()
    assert os.environ["SGLANG_OPT_USE_TILELANG_MHC_PRE"] == "1"
    assert os.environ["SGLANG_OPT_USE_TOPK_V2"] == "1"
    (message,) = caplog.messages
    assert message.startswith("SGLANG_OPT_USE_TOPK_V2=True is kept as you set it")


def check(startup, flag, *, major=12, fp4=False):
    os.environ["SGLANG_SM120_INDEXER"] = flag
    available, capability = card(major)
    with available, capability:
        startup.check_flags(server_args(fp4))


@pytest.mark.parametrize(
    "flag,major", [("auto", 8), ("auto", 12), ("on", 9), ("off", 8)]
)
def test_flags_that_can_work_pass(startup, flag, major):
    check(startup, flag, major=major)


def test_on_for_an_old_card_stops_the_server(startup):
    with pytest.raises(
        RuntimeError, match="SGLANG_SM120_INDEXER=on needs compute capability 8.9"
    ):
        check(startup, "on", major=8)


def test_on_with_the_fp4_indexer_stops_the_server(startup):
    with pytest.raises(
        RuntimeError, match="conflicts with --enable-deepseek-v4-fp4-indexer"
    ):
        check(startup, "on", fp4=True)
    check(startup, "auto", fp4=True)


@pytest.mark.parametrize("other", ["TILELANG", "AITER"])
def test_on_with_another_indexer_of_the_user_stops_the_server(startup, other):
    os.environ[f"SGLANG_OPT_USE_{other}_INDEXER"] = "1"
    with pytest.raises(
        RuntimeError, match=f"conflicts with SGLANG_OPT_USE_{other}_INDEXER=1"
    ):
        check(startup, "on")
    check(startup, "auto")


def test_each_flag_says_its_path_once_when_the_server_starts(startup, caplog):
    with caplog.at_level("INFO"):
        check(startup, "auto")
        check(startup, "auto")
    paths = [m for m in caplog.messages if m.startswith("sm_120 ")]
    flags = [re.search(r"\((SGLANG_SM120_\w+)=", line).group(1) for line in paths]
    registered = [
        name
        for name, field in vars(type(startup.envs)).items()
        if name.startswith("SGLANG_SM120_") and "auto" in getattr(field, "choices", ())
    ]
    # This one has no path to choose, and a line at start nevertheless.
    assert sorted(flags) == sorted([*registered, "SGLANG_SM120_TORCH_INDEXER_BF16"])


def test_a_hook_that_nothing_calls_yet_is_not_asked(startup, monkeypatch):
    """At the checkpoint between a kernel's patch and its hook's, the flag is not registered."""
    os.environ["SGLANG_SM120_INDEXER"] = "yes"
    monkeypatch.delattr(type(startup.envs), "SGLANG_SM120_INDEXER")
    startup.check_flags(server_args())


def test_a_word_that_is_none_stops_the_server(startup):
    with pytest.raises(
        RuntimeError, match="SGLANG_SM120_INDEXER='yes': expected one of"
    ):
        check(startup, "yes")


def test_the_server_calls_both_in_its_deepseek_v4_branch():
    """The flags are checked on every card, the defaults set on sm_120 only."""
    source = (stock.tree() / "python/sglang/srt/server_args.py").read_text()
    calls = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If):
            for statement in node.body:
                call = ast.unparse(statement)
                if call.startswith("sm120_startup."):
                    calls[call] = ast.unparse(node.test)
    assert calls == {
        "sm120_startup.check_flags(self)": "model_arch in ['DeepseekV4ForCausalLM']",
        "sm120_startup.apply_sm120_defaults()": "is_sm120_supported()",
    }
