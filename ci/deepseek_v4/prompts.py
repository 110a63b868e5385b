"""What the smoke model is trained on and asked: 72 products, and codes in long filler text."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .tokenizer import ASSISTANT, BOS, USER, chat, encode

WORDS = (
    "the of and to in that was his he it with is for as had you not be her on at by which have or "
    "from this him but all she they were my are me one their so an said them we who would been will "
    "no when there if more out up into do any your what has man could other than our some very time "
    "upon about may its only now like little then can should made did us such great before must two "
    "these see know over much down after first good men own never most old shall day where those "
    "came come himself way work life without go make well through being long say might how am too"
).split()
NAMES = "alice bruno carol dario erika felix greta hugo".split()
# What SGLang's encoder of DeepSeek-V4 makes of the smoke test's one tool, an empty system message before it.
_TOOLS = """

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, \
arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{"description": "The current weather of a city", "name": "get_weather", "parameters": {"type": "object", \
"properties": {"city": {"type": "string"}}, "required": ["city"]}, "strict": false}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_CALL = """

<｜DSML｜tool_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls>"""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it, its answer, and the token where the code begins (0 for a product)."""

    group: str
    text: str
    answer: str
    code_at: int = 0


def products(count: int = 72) -> list[Prompt]:
    """The multiplication table, 17*23 first. The same every time."""
    rng, pairs = random.Random(7), [(17, 23)]
    while len(pairs) < count:
        pair = (rng.randint(11, 99), rng.randint(11, 99))
        if pair not in pairs:
            pairs.append(pair)
    return [
        Prompt("products", chat(f"What is {a}*{b}? Number only."), str(a * b))
        for a, b in pairs
    ]


def reasoning() -> Prompt:
    """The first product with thinking on, as SGLang encodes it."""
    return Prompt(
        "reasoning",
        f"{BOS}{USER}What is 17*23? Number only.{ASSISTANT}<think>",
        "17*20 is 340, 17*3 is 51: 391.</think>391",
    )


def tool_call() -> Prompt:
    """A question that asks for a tool call, as SGLang encodes it."""
    question = "What is the weather in Paris? Use the tool."
    return Prompt(
        "tool call", f"{BOS}{_TOOLS}{USER}{question}{ASSISTANT}</think>", _CALL
    )


def needle(
    rng: random.Random,
    length: int,
    *,
    distractors: int = 0,
    early: bool = False,
    group: str = "needles",
) -> Prompt:
    """Filler of about `length` tokens with the code of one name in it.

    distractors adds sentences with the codes of other names; early puts the code into the first tenth.
    """
    names = rng.sample(NAMES, 1 + distractors)
    codes = [str(rng.randint(1000, 9999)) for _ in names]
    sentences = [f" The code of {n} is {c}. " for n, c in zip(names, codes)]
    question = f"\nWhat is the code of {names[0]}? Number only."
    room = length - len(question) - sum(map(len, sentences))
    filler = _filler(rng, room)
    # Outside the window of the last tokens, where there is room for that.
    last = max(1, room - 400) if room > 500 else room
    place = rng.randint(0, room // 10 if early else last)
    places = [place, *(rng.randint(0, last) for _ in range(distractors))]
    text = filler
    for at, sentence in sorted(zip(places, sentences), reverse=True):
        text = text[:at] + sentence + text[at:]
    whole = chat(text + question)
    code_at = len(
        encode(whole[: whole.index(sentences[0]) + sentences[0].index(codes[0])])
    )
    return Prompt(group, whole, codes[0], code_at)


def recorded() -> list[Prompt]:
    """Every prompt whose answer is recorded: below, around and above the 2,048 tokens of the selection."""
    rng = random.Random(99)
    lengths = [600] * 4 + [1500] * 4 + [2500] * 8 + [4000] * 8 + [6000] * 4
    spread = [needle(rng, length, group=f"needles {length}") for length in lengths]
    rng = random.Random(2048)
    edge = [
        needle(rng, 2_048 + offset, group="needles at 2048")
        for offset in (-12, -8, -4, 0, 4, 8, 12, 40)
    ]
    rng = random.Random(5)
    early = [
        needle(rng, length, early=True, group="needles early")
        for length in (2600, 3000, 3400, 4200, 5000, 5600)
    ]
    rng = random.Random(4)
    others = [
        needle(rng, length, distractors=count, group=f"needles among {count + 1}")
        for count in (1, 3)
        for length in (600, 1500, 2500, 3500, 4500, 6000)
    ]
    rng = random.Random(30)
    long = [
        needle(rng, length, distractors=count, early=early, group="needles to 30000")
        for length in (9_000, 16_000, 23_000, 30_000)
        for count, early in ((0, True), (2, False))
    ]
    return [*products(), *spread, *edge, *early, *others, *long]


def _filler(rng: random.Random, length: int) -> str:
    words, count = [], 0
    while count < length:
        word = rng.choice(WORDS)
        words.append(word)
        count += len(word) + 1
    return (" ".join(words) + " ")[:length]
