"""scripts/smoke.sh against a local server: passes only where all is well, and says what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fake_server import CHAT, Fake, serving
from made_wheel import patchset
from patchset.askserver import Server, same_server
from patchset.errors import Exit, Failure
from test_server_info import SERIES, told

LAST = len(SERIES.patches)
TIP = SERIES.patches[-1].name


def patched(**options) -> Fake:
    path = "top-k: exact select in one launch (SGLANG_SM120_TOPK=on, cuda 9.0)"
    ours = {"path": path, "ours": True}
    return Fake(patches=[told(LAST, SGLANG_SM120_TOPK=ours)], **options)


def smoke(fake: Fake, *options: str):
    with serving(fake) as url:
        return patchset("smoke", "--url", url, "--timeout", "5", *options)


def failed(fake: Fake, *options: str) -> str:
    """What is said of a server that must not pass."""
    done = smoke(fake, *options)
    assert done.returncode == Exit.SERVER, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ok ")]
    assert "Traceback" not in done.stderr
    assert [line.split(":")[0] for line in lines if ":" in line and line[0] != " "][
        -1
    ] == "next"
    return "\n".join(lines)


def test_a_right_server_passes_every_check():
    fake = patched()
    done = smoke(fake)
    assert done.returncode == 0, done.stderr
    assert f"{LAST} of {LAST} patches: {TIP}" in done.stdout
    assert "path    top-k: exact select in one launch" in done.stdout
    assert "passed, 10 checks" in done.stdout
    checks = [line.split()[1] for line in done.stderr.splitlines()]
    assert checks[:5] == ["alive", "build", "model", "answer", "streamed"]
    assert fake.most_at_once > 5, "20 requests are sent at the same time"
    questions = [body for path, body in fake.asked if path == CHAT]
    assert all(body["temperature"] == 0 for body in questions)


def test_the_result_for_a_script():
    done = smoke(patched(), "--json")
    facts = json.loads(done.stdout)
    assert facts["build"]["checkpoint"] == TIP and len(facts["build"]["commit"]) == 40
    assert [check["ok"] for check in facts["checks"]] == [True] * 10


def test_a_dead_port():
    with serving(Fake()) as url:
        pass
    done = patchset("smoke", "--url", url)
    assert done.returncode == Exit.SERVER
    assert f"no server answers at {url}: Connection refused" in done.stderr
    assert "not run: build, model, answer" in done.stderr


def test_a_server_that_still_starts():
    assert "HTTP 503" in failed(patched(healthy=False))


def test_something_that_is_no_sglang():
    said = failed(patched(failing={"/server_info": "no json"}))
    assert "is not an SGLang server" in said
    assert "/server_info: HTTP 200: <html>it works</html>" in said


def test_the_page_of_another_server_is_shown_once_and_cut():
    said = failed(patched(failing={"/health": "page"}))
    assert "is not an SGLang server; not run: build" in said
    assert said.count("<!DOCTYPE") == 1 and said.count("<p>not found") < 6
    assert "check the address (--url" in said and "server's log" not in said


@pytest.mark.parametrize("path", ["/server_info", "/model_info", "/v1/models"])
def test_another_server_may_be_healthy(path):
    said = failed(patched(failing={path: "unknown"}))
    assert "is not an SGLang server" in said and f"{path}: HTTP 404" in said
    assert "check the address (--url" in said and "server's log" not in said


def test_a_page_for_a_streamed_request_is_no_stream():
    with serving(patched(failing={"/x": "page with 200"})) as url:
        with pytest.raises(Failure, match="is not an SGLang server") as caught:
            list(Server(url).stream("/x", {}))
    assert (
        caught.value.where == f"{url}/x: HTTP 200: <html> <body>a portal</body></html>"
    )


@pytest.mark.parametrize(
    "how, said",
    [
        ("cut", "100 bytes did not come"),
        ("chunk", "the rest did not come"),
    ],
)
def test_an_answer_that_breaks_off_is_told_in_words(how, said):
    with serving(patched(failing={"/x": how})) as url:
        with pytest.raises(Failure) as caught:
            Server(url).get("/x")
    assert (
        caught.value.what == f"the answer broke off: the connection ended, and {said}"
    )


def test_another_api_has_no_health():
    said = failed(patched(failing={"/health": "unknown"}))
    assert "is not an SGLang server" in said and '{"detail": "Not Found"}' in said


@pytest.mark.parametrize("option", ["--url", "--reference"])
@pytest.mark.parametrize(
    "text, why",
    [
        ("127.0.0.1:39123", "needs http:// or https://"),
        ("http://:1", "is no address"),
        ("http://h:99999", "Port out of range"),
    ],
)
def test_an_address_that_is_none(option, text, why):
    done = patchset("smoke", option, text)
    assert done.returncode == Exit.USAGE and why in done.stderr
    assert "Warning" not in done.stderr


def test_another_model():
    said = failed(patched(architecture="LlamaForCausalLM"))
    assert "wrong model: /m is LlamaForCausalLM" in said
    assert "not run: answer, streamed" in said


def test_a_name_that_is_not_served():
    assert "wrong model: big is not served here, only tiny" in failed(
        patched(), "--model", "big"
    )


def test_an_unpatched_server():
    said = failed(Fake())
    assert "not a patched build" in said and "not run: model, answer" in said
    assert smoke(Fake(), "--build", "stock").returncode == 0


def test_a_build_is_asked_for_by_the_option_that_smoke_has():
    assert "for a stock server say --build stock" in failed(Fake())
    assert f"ask for this one: --build {TIP}" in failed(patched(), "--build", "stock")


def test_a_server_of_another_patch():
    fake = Fake(patches=[told(LAST - 1)])
    before = SERIES.patches[-2].name
    assert f"stands at {before}, and {TIP} is wanted" in failed(fake)
    assert smoke(fake, "--build", before).returncode == 0


def test_an_unknown_patch_is_a_usage_error():
    done = smoke(patched(), "--build", "9999")
    assert done.returncode == Exit.USAGE and "no patch '9999'" in done.stderr
    assert "choose one of: stock, 0010" in done.stderr


def test_a_wrong_answer():
    said = failed(patched(factor=2))
    assert "answer: wrong answer: 391 was expected, and the model said '782'" in said


@pytest.mark.parametrize("how", ["empty", "refuse", "cut", "no json", "hang"])
def test_an_answer_that_is_none(how):
    said = failed(patched(failing={CHAT: how}), "--timeout", "1")
    expected = {
        "empty": "the answer is empty (finish_reason: stop)",
        "refuse": "HTTP 500: no room for this",
        "cut": "the answer broke off",
        "no json": "no JSON",
        "hang": "no whole answer in 1 s",
    }
    assert expected[how] in said


def test_bytes_that_drip_are_no_answer_in_time():
    said = failed(patched(failing={CHAT: "drip"}), "--timeout", "1")
    assert "no whole answer in 1 s" in said


@pytest.mark.parametrize(
    "how, said",
    [
        ("half", "broke off after 1 piece, without [DONE]"),
        ("error", "the streamed answer is an error: "),
    ],
)
def test_a_stream_that_is_not_whole(how, said):
    assert said in failed(patched(failing={CHAT: how}))


def test_an_answer_that_the_server_gave_up():
    said = failed(patched(finish="abort"))
    assert "the answer was not finished (finish_reason: abort)" in said


def test_reasoning_in_the_content():
    said = failed(patched(splits_reasoning=False))
    assert "smoke failed at 'reasoning': the reasoning is not split" in said
    assert "--reasoning-parser deepseek-v4" in said


def test_a_tool_call_that_is_text():
    said = failed(patched(parses_tools=False))
    assert "smoke failed at 'tool call': no tool call in the answer" in said
    assert "--tool-call-parser deepseekv4" in said


def test_a_long_prompt_that_is_too_short_for_the_selection():
    said = failed(patched(tokens_per_word=0.5))
    assert "tokens: with 2048 or fewer the selection never runs" in said


def test_paths_of_upstream_where_ours_are_wanted():
    path = "top-k: upstream's path (SGLANG_SM120_TOPK=off)"
    off = {"path": path, "ours": False}
    fake = Fake(patches=[told(LAST, SGLANG_SM120_TOPK=off)])
    assert smoke(fake).returncode == 0
    for options in (["--active"], ["--active", "SGLANG_SM120_TOPK"]):
        said = failed(fake, *options)
        assert "not every flag took the path of this series" in said and path in said


@pytest.mark.parametrize("flags", [(), ("SGLANG_SM120_TOPK",)])
def test_a_stock_server_has_no_path_to_ask_for(flags):
    fake = Fake()
    done = smoke(fake, "--build", "stock", "--active", *flags)
    assert done.returncode == Exit.USAGE and not fake.asked
    assert "leave out --active, or --build stock" in done.stderr
    assert smoke(fake, "--build", "stock").returncode == 0


def test_an_unknown_flag_is_refused_before_the_server_is_asked():
    fake = patched()
    done = smoke(fake, "--active", "SGLANG_SM120_TOPK", "NOPE")
    assert done.returncode == Exit.USAGE and not fake.asked
    assert "there is no flag NOPE" in done.stderr
    assert "SGLANG_SM120_MXFP4_DRAFT" in done.stderr
    assert "SGLANG_SM120_HC_PRE_WEIGHTS" not in done.stderr, "it has no path"


@pytest.mark.parametrize("value", ["inf", "1e12", "nan", "0", "long"])
def test_a_time_that_no_server_can_be_given(value):
    done = patchset("smoke", "--timeout", value)
    assert done.returncode == Exit.USAGE, done.stderr
    assert "argument --timeout: " in done.stderr


def test_random_weights_need_a_reference_and_nothing_else_does():
    for options in (("--weights", "random"), ("--reference", "http://x")):
        done = patchset("smoke", *options)
        assert done.returncode == Exit.USAGE
        assert "go together" in done.stderr


@pytest.mark.parametrize(
    "factor, lead, said",
    [
        (1, 1.0, "within 0.00, 512 tokens equal, 0 of 16 answers parted"),
        # Another expert at one token: any token may come there, and nothing is compared after it.
        (2, 5.0, "within 0.00, 144 tokens equal, 16 of 16 answers parted"),
    ],
)
def test_random_weights_agree_where_both_have_read_the_same(factor, lead, said):
    with serving(Fake(factor=factor, lead=lead)) as stock:
        fake = patched(lead=lead)
        done = smoke(fake, "--weights", "random", "--reference", stock)
        assert done.returncode == 0, done.stderr
        assert said in done.stderr
    lengths = [
        {len(ids) for ids in body["input_ids"]}
        for path, body in fake.asked
        if path == "/generate"
    ]
    assert lengths == [{300}, {2047}, {2049}, {6000}], "a length is one list"


@pytest.mark.parametrize(
    "shift, said",
    [
        (0.09, None),
        (
            0.2,
            "128 of 128 are off by more than 0.1, a quarter by 0.20 or more; equal tokens before "
            "the answers part: 32, 32, 32, 32 of 32",
        ),
        # Other tokens from the first on, which the reference has not among its best.
        (
            0,
            "4 of 4 are off by more than 0.1, a quarter by more than shown; equal "
            "tokens before the answers part: 0, 0, 0, 0 of 32",
        ),
    ],
)
def test_one_length_alone_that_differs_is_not_hidden_by_the_others(shift, said):
    with serving(Fake()) as stock:
        fake = patched(other_over=2049, shift=shift)
        done = smoke(fake, "--weights", "random", "--reference", stock)
    assert done.returncode == (Exit.SERVER if said else 0), done.stderr
    if said:
        what = f"differ from those of {stock} for 1 of 4 lengths of prompts"
        assert what in done.stderr
        assert f"prompts of 6000 tokens: {said}" in done.stderr


@pytest.mark.parametrize("other", ["{}", "{}/", "http://LOCALHOST:{port}"])
def test_a_server_is_not_its_own_reference(other):
    fake = patched()
    with serving(fake) as url:
        other = other.format(url, port=url.rpartition(":")[2])
        words = ("--weights", "random", "--reference", other)
        done = patchset("smoke", "--url", url, *words)
    assert done.returncode == Exit.USAGE and not fake.asked
    assert f"--reference URL is the server itself, {url}" in done.stderr


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("http://h", "http://H:80/", True),
        ("https://h/a/", "https://h:443/a", True),
        ("http://0.0.0.0:1", "http://[::1]:1", True),
        ("http://h:1", "http://h:2", False),
        ("http://h:1/a", "http://h:1/b", False),
        ("http://h:443", "https://h:443", False),
        ("http://127.0.0.1:1", "http://127.0.0.2:1", False),
    ],
)
def test_one_server_has_several_addresses(one, other, same):
    assert same_server(one, other) == same


def test_what_random_weights_were_compared_with_is_said():
    words = ("--weights", "random", "--reference")
    with serving(Fake()) as url:
        done = smoke(patched(), *words, url)
    assert f"with {url}, which is SGLang 0.5.13, unpatched or without" in done.stderr
    with serving(patched()) as url:
        done = smoke(patched(), *words, url, "--json")
    said = json.loads(done.stdout)["checks"][3]["detail"]
    assert f"with {url}, which is SGLang 0.5.13 with {LAST} of {LAST} patches" in said
    assert ", 1 flag of it active: " in said


def test_a_reference_that_is_not_there():
    said = failed(patched(), "--weights", "random", "--reference", "http://127.0.0.1:9")
    assert "no server answers at http://127.0.0.1:9" in said


RECORDED = [
    {
        "group": "table",
        "prompt": "17*23",
        "prompt_tokens": 31,
        "text": "391",
        "ids": [58, 64, 56],
        "gaps": [9.0, 8.9, 9.5],
    },
    {
        "group": "table",
        "prompt": "11*11",
        "prompt_tokens": 31,
        "text": "121",
        "ids": [56, 57, 56],
        "gaps": [7.0, 8.0, 9.0],
    },
    {
        "group": "needle",
        "prompt": "long",
        "prompt_tokens": 2500,
        "text": "4711",
        "ids": [59, 62, 56, 56],
        "gaps": [2.0, 3.0, 2.0, 1.5],
    },
]


@pytest.fixture
def expected(tmp_path):
    file = tmp_path / "expected.json"
    recording = {"checkpoint": "0" * 64, "made_by": "a test", "tolerance": 0.5}
    file.write_text(json.dumps(recording | {"references": RECORDED}))
    return ("--weights", "smoke-model", "--expected", str(file))


def trained(**options) -> Fake:
    known = {item["prompt"]: dict(item) for item in RECORDED}
    return patched(generate=known, **options)


def test_the_smoke_model_with_its_recorded_answers(expected):
    done = smoke(trained(), *expected)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 texts, 75% of the gaps within 0.00" in done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines()][5:8] == [
        "table",
        "needle",
        "at",
    ]


def test_a_smoke_model_that_can_is_asked_for_reasoning_and_a_tool_call(expected):
    file = Path(expected[-1])
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"chat": ["reasoning", "tool call"]})
    )
    done = smoke(trained(), *expected)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ok +reasoning ", done.stderr, re.MULTILINE)
    assert re.search(
        r"^ok +tool call .*get_weather\(Paris\)", done.stderr, re.MULTILINE
    )
    said = failed(trained(parses_tools=False), *expected)
    assert "no tool call in the answer" in said


def test_a_gap_that_is_arithmetic_passes(expected):
    assert smoke(trained(shift=0.4), *expected).returncode == 0


def test_a_gap_that_moved_fails_though_the_text_is_right(expected):
    said = failed(trained(shift=-0.6), *expected)
    assert "table: the texts are right, but a quarter of the gaps" in said
    assert "are off by 0.60 or more; up to 0.5 is arithmetic" in said


def test_an_older_smoke_model_is_thought_of_where_gaps_moved(expected):
    assert "next:  make sure that it serves the smoke model of this repository" in (
        failed(trained(shift=2.0), *expected)
    )


@pytest.mark.parametrize("shift", ["nan", "inf"])
def test_a_gap_that_is_no_number_fails(expected, shift):
    said = failed(trained(shift=float(shift)), *expected)
    assert "table: a log-probability of the answer is no number" in said


def test_a_gap_that_rounding_moved_far_passes_and_a_quarter_does_not(expected):
    fake = trained()
    fake.generate["17*23"]["gaps"] = [9.0, 8.9, 13.2]
    assert smoke(fake, *expected).returncode == 0
    fake.generate["17*23"]["gaps"] = [9.0, 12.0, 13.2]
    assert "half of them off by 0.00" in failed(fake, *expected)


def test_a_text_that_differs_fails(expected):
    fake = trained()
    fake.generate["long"] |= {"text": "4712", "ids": [59, 62, 56, 57]}
    said = failed(fake, *expected)
    assert "needle: 1 of 1 answers differ from the recorded ones" in said


def test_another_tokenizer_is_another_model(expected):
    fake = trained()
    fake.generate["17*23"]["prompt_tokens"] = 14
    assert "wrong model: a recorded prompt has 14 tokens there and 31" in failed(
        fake, *expected
    )


def test_an_empty_recorded_answer_fails(expected):
    fake = trained()
    fake.generate["17*23"] |= {"text": "", "ids": [], "gaps": []}
    assert "the answer to a recorded prompt is empty" in failed(fake, *expected)


def test_recorded_answers_that_are_not_there(tmp_path):
    done = smoke(
        patched(), "--weights", "smoke-model", "--expected", str(tmp_path / "none")
    )
    assert done.returncode == Exit.ENVIRONMENT
    assert "the recorded answers can't be read" in done.stderr
