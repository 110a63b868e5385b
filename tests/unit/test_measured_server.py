"""What docs/measured.md says of real servers against the raw files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from patchset import references

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text()


def test_the_work_that_remains_is_what_the_profile_says():
    page = (ROOT / "docs/remaining.md").read_text()
    text = " ".join(page.split())
    file = "ci/checkpoints/raw/server-h200-series/128k.json"
    assert f"(../{file})" in page
    profiles = json.loads((ROOT / file).read_text())["profiles"]
    many, one = (profiles[f"0090 C={rows}"] for rows in (64, 1))

    def took(profile: dict, part: str) -> tuple[float, float]:
        """Microseconds of the kernels with these words in their names, and their share."""
        found = [time for name, time, _ in profile["by_kernel"] if part in name]
        assert found, part
        return sum(found), sum(found) / profile["busy_us"]

    busy = [f"{each['busy_us'] / 1e3:.1f} ms" for each in (many, one)]
    assert f"of {busy[0]} at 64 rows and {busy[1]} at one row" in text
    stated = re.findall(r"^\| `(.+)` \| ([\d,]+) \| (\S+) \| (.*) \|$", page, re.M)
    assert len(stated) == 8
    for part, time, share, rest in stated:
        cells = [time, share, *rest.split(" | ")[:2]]
        of_both = [took(each, part) for each in (many, one)]
        assert cells == [
            cell for time, share in of_both for cell in (f"{time:,.0f}", f"{share:.1%}")
        ], part
    for part, words in (
        ("sparse_mla_decode", "Attention is {} at 64 rows and {} at one"),
        ("_paged_mqa_logits_kernel", "our indexer {} and {}"),
        ("topk_page_indices", "top-k {} and {}"),
    ):
        shares = (f"{took(each, part)[1]:.1%}" for each in (many, one))
        assert words.format(*shares) in text
    experts = (f"{took(each, 'fused_moe_kernel')[1]:.0%}" for each in (many, one))
    assert "experts {} and {}".format(*experts) in text
    names = [name for each in (many, one) for name, *_ in each["by_kernel"]]
    assert not [name for name in names if "sgemm" in name or "f32f32" in name]


SERVER = ROOT / "ci/checkpoints/raw/server-h200"


def test_the_servers_answers_are_what_the_readme_says():
    def answers(tag):
        return json.loads((SERVER / f"res_{tag}.json").read_text())

    on, stock, broken = answers("on"), answers("stock"), answers("neg")
    for group in ("table_one", "table_list", "needles", "needles_list"):
        ours, theirs = ([item["ids"] for item in run[group]] for run in (on, stock))
        assert ours == theirs, group
    assert [item["text"] for item in on["table_one"]] == on["want"]
    assert [item["text"] for item in on["needles"]] == on["codes"]
    right = [
        item["text"] == code for item, code in zip(broken["needles"], broken["codes"])
    ]
    long = [tokens > 2_048 for tokens in broken["S"]]
    assert sum(long) == 20
    assert not any(ok for ok, is_long in zip(right, long) if is_long)
    assert all(ok for ok, is_long in zip(right, long) if not is_long)


EQUAL = ROOT / "ci/checkpoints/raw/server-h200-equal"
BROKEN = ROOT / "ci/checkpoints/raw/server-h200-broken"
EARLIER = ROOT / "ci/checkpoints/raw/server-h200-smoke"
LADDER = ROOT / "ci/checkpoints/raw/server-h200-ladder"
LENGTHS = (300, 2047, 2049, 6000, 30000)
STATED = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def servers():
    return json.loads((EQUAL / "answers.json").read_text())["servers"]


@pytest.fixture(scope="module")
def sets():
    return json.loads((EQUAL / "sets.json").read_text())


@pytest.fixture(scope="module")
def moved():
    """Rows whose sets differ, with the reference's scores of the entries that do."""
    file = EQUAL / "scores-of-entries-that-differ.json"
    return json.loads(file.read_text())["rows"]


def off(ours: list[dict], theirs: list[dict]) -> list[float]:
    """How far apart the gaps of two servers' answers are, in rising order."""
    return sorted(
        abs(a - b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one["gaps"], other["gaps"], strict=True)
    )


def quarters(gaps: list[float]) -> float:
    return gaps[int(len(gaps) * references.SHARE)]


def test_the_list_of_five_is_answered_alike(servers):
    lists = [servers[tag]["list"] for tag in ("on", "topk", "stock-c", "on-c")]
    assert [one["tokens"] for one in lists[0]] == list(LENGTHS)
    for answers in lists:
        assert [len(one["ids"]) for one in answers] == [48] * 5
        assert [one["ids"] for one in answers] == [one["ids"] for one in lists[0]]
    assert "`on`, `topk` and stock give the same token ids" in STATED
    assert off(servers["topk"]["list"], servers["stock-c"]["list"])[-1] == 0
    assert off(servers["on"]["list"], servers["on-c"]["list"])[-1] == 0


def test_recorded_prompts_are_answered_alike(servers):
    on, topk = servers["on"]["recorded"], servers["topk"]["recorded"]
    assert [one["ids"] for one in on] == [one["ids"] for one in topk]
    assert (
        f"{len(on)} recorded prompts: `on` and `topk` give the recorded ids" in STATED
    )
    assert off(topk[:72], servers["stock-c"]["recorded"])[-1] == 0
    for tag in ("stock", "topk", "on"):
        assert said_in(EQUAL, tag)["exit"] == 0
        assert len(words_of(EQUAL, tag, "ok", "")) >= 14


def test_the_gaps_are_as_near_as_stated(servers, sets):
    recorded = off(servers["on"]["recorded"], servers["topk"]["recorded"])
    in_list = off(servers["on"]["list"], servers["topk"]["list"])
    near = [sum(gap <= 0.1 for gap in gaps) for gaps in (recorded, in_list)]
    assert f"{near[0]} of {len(recorded)} are within 0.1 on the recorded" in STATED
    assert f"{near[1]} of {len(in_list)} on the list, three quarters" in STATED
    assert quarters(recorded) <= 0.05 and quarters(in_list) <= 0.07
    assert "three quarters within 0.05 and 0.07." in STATED
    products = sets["products_by_experts"]
    same = [gap for gap, rows in products if rows == 0]
    other = [gap for gap, rows in products if rows]
    assert (
        f"largest is {max(same):.2f} in the {len(same)} prompts where the same experts "
        f"ran and {max(other):.2f} in the other {len(other)}" in STATED
    )
    again = [off([first], [second]) for first, second, _ in radix(servers, "stock")]
    assert f"Stock moves one by {max(gaps[-1] for gaps in again):.2f} itself" in STATED


def test_how_many_sets_differ(sets):
    found = [(each["rows"], each["rows_with_another_set"]) for each in sets["sets"]]
    # Row 2,051 is the first whose 513 entries are one too many.
    above = [max(0, rows - 2051) for rows, _ in found]
    assert found[0][1] == 0
    assert all(row[0] >= 2051 for each in sets["sets"] for row in each["differ"])
    assert f"one entry in {found[1][1]} and {found[2][1]} rows of" in STATED
    most = [each["most_entries"] for each in sets["sets"]]
    assert most[:3] == [0, 1, 1]
    assert (
        f"{found[3][1]:,} of {above[3]:,} rows of 6,000 tokens (by {most[3]}" in STATED
    )
    assert f"{found[4][1]:,} of {above[4]:,} of 30,000 ({most[4]} at most)" in STATED
    shares = [each["experts_differ"] / each["expert_rows"] for each in sets["sets"]]
    assert f"other experts ran in {max(shares):.0%}".replace("%", " %") in STATED


def test_the_entries_that_differ_are_near_the_edge(sets, moved):
    far = sorted(abs(d) for row in moved for d in row["spreads_from_512th"])
    assert f"For {len(moved)} of these rows" in STATED
    assert f"the {len(far):,} entries that only one server took" in STATED
    assert f"lie {far[len(far) // 2]:.2f} spreads" in STATED
    assert far[int(len(far) * 0.95)] <= 0.08 and "95 % within 0.08" in STATED
    assert f"the farthest {far[-1]:.2f}" in STATED
    kept = {f"list {row['prompt']}": [] for row in moved}
    for row in moved:
        kept[f"list {row['prompt']}"].append(
            [row["row"], row["only_stock"], row["only_ours"]]
        )
    of_the_run = {each["prompt"]: each for each in sets["sets"]}
    assert all(of_the_run[name]["differ"] == rows for name, rows in kept.items())
    most = max(moved, key=lambda row: len(row["only_stock"]))
    experts = of_the_run[f"list {most['prompt']}"]["experts"]
    assert [layer for row, layer, *_ in experts if row == most["row"]] == [1]
    assert f"largest difference, {len(most['only_stock'])} entries" in STATED


def radix(servers: dict, tag: str) -> list[list[dict]]:
    """Each prompt of the list, asked three times of a server with a radix cache."""
    return servers[f"{tag}-radix"]["radix"]


def test_a_second_run_from_the_radix_cache_equals_the_first(servers):
    for prompt, length in zip(radix(servers, "on"), LENGTHS, strict=True):
        first, second, third = prompt
        cached = (length - 1) // 256 * 256
        assert [one["cached"] for one in prompt] == [0, cached, cached]
        assert first["ids"] == second["ids"] == third["ids"]
        assert second["gaps"] == third["gaps"]
    assert f"({cached:,} of 30,000)" in STATED


def test_the_memory_of_a_long_prompt_is_within_its_bound():
    memory = json.loads((EQUAL / "answers.json").read_text())["memory"]
    long, failed = memory["100000"]
    short = max(each["more"] for each in memory["8192"])
    pages = -(-100_000 // 256)
    bound = short + 512 * 2**20 + 24 * 8192 * pages
    assert failed["peak"] == 0 and long["more"] <= bound == memory["bound"]
    stated = [f"{value / 2**20:.1f}" for value in (long["more"], short, bound)]
    assert f"is {stated[0]} MiB for 100,000 tokens and {stated[1]} for 8,192" in STATED
    assert f"is {stated[2]}." in STATED


def said_in(room: Path, tag: str) -> dict:
    """What the smoke test of that run said of a server."""
    return json.loads((room / "smoke.json").read_text())[tag]


def words_of(room: Path, tag: str, word: str, group: str) -> list[str]:
    """The lines about the groups that begin so."""
    said = said_in(room, tag)["said"]
    lines = [re.sub(r"^(\w+) +", r"\1 ", line) for line in said]
    return [line for line in lines if line.startswith(f"{word} {group}")]


def amounts(lines: list[str], pattern: str) -> list[float]:
    found = [re.search(pattern, line) for line in lines]
    return sorted(float(each[1]) for each in found if each)


@pytest.mark.parametrize("tag", ["stock", "on"])
def test_the_right_servers_pass(tag):
    assert said_in(BROKEN, tag)["exit"] == 0
    typical = [
        value
        for room in (EQUAL, BROKEN)
        for value in amounts(words_of(room, tag, "ok", ""), r"gaps within (\S+)$")
    ]
    assert len(typical) == 16 and max(typical) <= 0.16
    assert "three quarters of each group's gaps are within 0.16" in STATED


@pytest.mark.parametrize(
    "room, tag",
    [(BROKEN, "b-sign"), (BROKEN, "b-page"), (EARLIER, "b-entry")],
)
def test_errors_that_are_named_by_their_texts(room, tag):
    assert said_in(room, tag)["exit"] == 6
    failed = words_of(room, tag, "FAILED", "needles")
    differ = [line for line in failed if "answers differ" in line]
    names = {re.match(r"FAILED needles (\w+)", line)[1] for line in differ}
    assert names >= {"2500", "4000", "6000", "early"}
    assert not names & {"600", "1500"}


def test_errors_that_are_named_by_their_gaps():
    off_by = r"off by (\S+) or more"
    scale = amounts(words_of(BROKEN, "b-scale", "FAILED", ""), off_by)
    sink = amounts(words_of(BROKEN, "b-sink", "FAILED", "products"), off_by)
    assert [said_in(BROKEN, tag)["exit"] for tag in ("b-scale", "b-sink")] == [6, 6]
    assert len(scale) == 8
    stated = f"all eight groups, off by {scale[0]:.2f} to {scale[-1]:.2f} where 0.3"
    assert stated in STATED
    assert f"gaps of the products, off by {sink[0]:.2f}" in STATED


def test_what_passes_and_proves_nothing():
    assert said_in(BROKEN, "b-entry")["exit"] == 0
    assert "`b-entry` there, passes and proves nothing" in STATED


def test_each_step_of_the_ladder_is_what_the_raw_file_says():
    runs = json.loads((LADDER / "ladder.json").read_text())["runs"]
    arms = ("stock-8k", "stock", "indexer", "+metadata")
    for rows in (1, 16, 64):
        medians = [
            statistics.median(
                run["step_ms"]
                for run in runs
                if (run["arm"], run["n"]) == (arm, rows) and run["rep"]
            )
            for arm in arms
        ]
        cells = " | ".join(f"{value:.3f}" for value in medians)
        assert f"| {rows} | {cells} |\n" in PAGE


@pytest.mark.parametrize("name, stated", [("stock", "69 %"), ("metadata", "88 %")])
def test_the_share_of_attention_is_what_the_profile_says(name, stated):
    kernels = json.loads((LADDER / f"profile-{name}.json").read_text())
    share = kernels[0][1] / sum(time for _, time in kernels)
    assert kernels[0][0] == "_tiled_sparse_decode_kernel"
    assert f"{share:.0%}".replace("%", " %") == stated and stated in PAGE


ENDS = json.loads((ROOT / "ci/checkpoints/raw/server-h200-1m/shake.json").read_text())


def of_arm(arm: str, rows: int) -> dict[int, dict]:
    """The runs of an arm at so many rows, by repetition; the first warms up."""
    runs = ((run["arm"], run["n"], run) for run in ENDS["runs"])
    return {run["rep"]: run for of, n, run in runs if (of, n) == (arm, rows)}


def steps_of(arm: str, rows: int) -> list[float]:
    return [run["step_ms"] for rep, run in of_arm(arm, rows).items() if rep]


def test_the_steps_at_both_ends_of_the_context():
    arms = ("stock-det@8k", "0100@8k", "stock@1m", "0100@1m")
    for rows in (1, 16, 64):
        cells = []
        for times in (steps_of(arm, rows) for arm in arms):
            assert len(times) in (5, 6)
            median, ends = statistics.median(times), (min(times), max(times))
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(median, *ends))
        assert f"| {rows} | {' | '.join(cells)} |\n" in PAGE
    stock8, ours8, stock1, ours1 = (statistics.median(steps_of(a, 64)) for a in arms)
    assert (
        f"{stock8 / ours8:.1f} times as fast at 8K, and {stock1 / ours1:.0f} times"
        in STATED
    )
    assert f"takes {stock1 / stock8:.1f} times its time at 8K" in STATED
    profile = ENDS["profiles"]["0100@1m C=1"]
    (steps,) = (n for name, _, n in profile["by_kernel"] if "ArgMax" in name)
    busy, whole = (profile[part] / steps / 1e3 for part in ("busy_us", "span_us"))
    assert f"the GPU works {busy:.2f} ms of {whole:.2f}" in STATED


def first_tokens(arm: str, other: str) -> tuple[int, int, int]:
    """Rows of both arms: with the same first token, with the same kept ones, all."""
    rows = [
        pair
        for n in (1, 16, 64)
        for rep, run in of_arm(arm, n).items()
        if (its := of_arm(other, n).get(rep))
        for pair in zip(run["ids"], its["ids"], strict=True)
    ]
    whole = (a[: len(b)] == b[: len(a)] for a, b in rows)
    return sum(a[0] == b[0] for a, b in rows), sum(whole), len(rows)


def test_the_tokens_at_both_ends_of_the_context():
    for arm, name in (("0100", "the series"), ("stock", "stock")):
        other = "stock-det@8k" if arm == "stock" else "0100@8k"
        _, equal, rows = first_tokens(f"{arm}@1m", other)
        assert f"of {name} ({equal} of {rows}" in STATED and equal == rows
    first, _, rows = first_tokens("0100@1m", "stock@1m")
    assert f"the first token is the same in {first} of {rows} rows" in STATED


def test_the_flag_of_the_torch_indexer():
    gains = [
        statistics.median(steps_of("0095-off", rows))
        / statistics.median(steps_of("0095-on", rows))
        for rows in (64, 16, 1)
    ]
    words = "{:.2f} times at 64 rows, {:.2f} at 16, {:.2f} at one"
    assert words.format(*gains) in STATED


BUNDLE = ROOT / "ci/checkpoints/raw/server-h200-bundle"


def test_what_was_served_from_a_bundle():
    said = (BUNDLE / "run.txt").read_text()
    for words in (
        "[6] install exit 0",
        "install again, exit 4",
        "a damaged part, exit 4",
        "ready  http://127.0.0.1:33900 after 49 s",
        "23 of 23 patches",
        "left: 0",
    ):
        assert words in said
    assert "\n0\n" in said  # modules of SGLang that the server compiled
    for words in ("needed 6 s", "ready after 49 s", "`23 of 23 patches`"):
        assert words in STATED
    told = json.loads((BUNDLE / "smoke.json").read_text())
    checks = {check["check"]: check for check in told["checks"]}
    assert all(check["ok"] for check in checks.values())
    needles = [
        tuple(map(int, re.match(r"(\d+) of (\d+) texts", check["detail"]).groups()))
        for name, check in checks.items()
        if name.startswith("needles")
    ]
    right, asked = map(sum, zip(*needles))
    assert (
        f"passed {len(checks)} checks: 72 of 72 products, {right} of {asked}" in STATED
    )
    assert checks["products"]["detail"].startswith("72 of 72")


def test_the_whole_series_passed_todays_rule_twice():
    details = [
        check["detail"]
        for check in json.loads((BUNDLE / "smoke.json").read_text())["checks"]
    ]
    (command,) = (c for c in ENDS["commands"] if c["tag"] == "smoke-m-ours")
    assert command["exit"] == 0 and "smoke   passed, 15 checks" in command["stdout"]
    details += command["stderr"].splitlines()
    within = re.findall(r"75% of the gaps within (\d\.\d+)", "\n".join(details))
    assert len(within) == 16
    assert f"each group's gaps within {max(map(float, within)):.2f}" in STATED
