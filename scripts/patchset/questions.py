"""What the smoke test asks a real model, and what it must answer."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

from .chat import Answer, Chat, failure

QUESTION = "What is 17*23? Number only."
PRODUCT = "391"
AT_ONCE = 20

# Up to here the top-512 of the entries (one for 4 tokens) takes all: no selection happens.
SELECTION_FROM = 2_048

_THINK_TAGS = re.compile(r"</?think>")
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_FILLER = (
    "the ship left harbour at dawn and nobody on the quay said a word about the cargo "
    "that had been carried aboard during the night while the town was asleep"
).split()


def answers(chat: Chat) -> str:
    """The campaign's question, whole."""
    return _require_number(chat.ask(QUESTION), PRODUCT)


def answers_streamed(chat: Chat) -> str:
    """The same question, streamed."""
    return _require_number(chat.ask_streamed(QUESTION), PRODUCT)


def reasons(chat: Chat) -> str:
    """Thinking on: the reasoning is split from the content, which has the answer."""
    answer = chat.ask(QUESTION, tokens=2048, chat_template_kwargs={"thinking": True})
    hint = "start the server with --reasoning-parser deepseek-v4"
    if not answer.reasoning.strip():
        raise failure("the reasoning is not split from the content", hint)
    if _THINK_TAGS.search(answer.content):
        raise failure(f"a think tag is in the content: {answer.content!r:.200}", hint)
    _require_number(answer, PRODUCT)
    return f"{len(answer.reasoning)} characters of reasoning apart"


def calls_a_tool(chat: Chat) -> str:
    """A tool call comes as one, with arguments that are JSON."""
    answer = chat.ask(
        "What is the weather in Paris? Use the tool.", tokens=512, tools=[_TOOL]
    )
    hint = "start the server with --tool-call-parser deepseekv4"
    if not answer.tool_calls:
        raise failure(f"no tool call in the answer: {answer.content!r:.200}", hint)
    function = answer.tool_calls[0].get("function", {})
    try:
        city = json.loads(function.get("arguments") or "").get("city", "")
    except (ValueError, AttributeError):
        raise failure(
            f"the tool call's arguments are no JSON object: {function!r:.200}", hint
        ) from None
    if function.get("name") != "get_weather" or "paris" not in str(city).lower():
        raise failure(f"another tool call than the one asked for: {function!r:.200}")
    return f"get_weather({city})"


def finds_in_a_long_prompt(chat: Chat, seed: int = 0) -> str:
    """A code early in a prompt that is long enough for the selection to run."""
    prompt, code = long_prompt(seed)
    answer = chat.ask(prompt)
    if answer.prompt_tokens <= SELECTION_FROM:
        raise failure(
            f"the long prompt had {answer.prompt_tokens} tokens: with {SELECTION_FROM} or fewer "
            "the selection never runs",
            "report it: the prompt of scripts/patchset/questions.py is too short for this tokenizer",
        )
    _require_number(answer, code)
    return f"{answer.prompt_tokens} tokens"


def answers_many_at_once(chat: Chat) -> str:
    """Mixed requests at once: short and long, whole and streamed."""

    def one(index: int) -> str:
        kind = index % 5
        if kind == 4:
            return finds_in_a_long_prompt(chat, seed=index)
        a, b = 11 + index, 12 + index % 7
        ask = chat.ask_streamed if kind % 2 else chat.ask
        return _require_number(ask(f"What is {a}*{b}? Number only."), str(a * b))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(AT_ONCE)))
    return f"{AT_ONCE} of {AT_ONCE}"


def long_prompt(seed: int, words: int = 3_500) -> tuple[str, str]:
    """A prompt with a code in its first tenth, and the code. The same for the same seed."""
    rng = random.Random(seed)
    code = str(rng.randint(100_000, 999_999))
    text = [rng.choice(_FILLER) for _ in range(words)]
    place = words // 20 + rng.randrange(words // 20)
    text[place:place] = f". The code of the vault is {code}. Then".split()
    return (" ".join(text) + ".\n\nWhat is the code of the vault? Number only."), code


def _require_number(answer: Answer, number: str) -> str:
    if not answer.content.strip():
        raise failure(
            f"the content of the answer is empty (finish_reason: {answer.finish})"
        )
    if not re.fullmatch(rf"\W*{number}\W*", answer.content.replace(",", "")):
        raise failure(
            f"wrong answer: {number} was expected, and the model said {answer.content!r:.200}",
            "see whether the unpatched paths answer: start the server with each flag off",
        )
    return number
