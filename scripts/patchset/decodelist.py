"""One list of prompts of random ids, decoded by a server: how long its steps take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .askserver import Server
from .chat import failure

# Ids that every DeepSeek-V4 vocabulary has; special ones are the first few and stay out.
IDS = range(10, 320)


@dataclass(frozen=True)
class Timed:
    """Seconds from the request to the first row's first token, to the last row's, and to the end.

    A step is the time from the last row's first token to the last row's last, over the tokens between:
    all rows are decoded together there.
    """

    rows: int
    tokens: int
    first_s: float
    all_first_s: float
    whole_s: float

    @property
    def step_s(self) -> float:
        return (self.whole_s - self.all_first_s) / (self.tokens - 1)

    def as_json(self) -> dict:
        """The times, and what follows from them."""
        return {
            "first_s": round(self.first_s, 6),
            "all_first_s": round(self.all_first_s, 6),
            "whole_s": round(self.whole_s, 6),
            "step_ms": round(self.step_s * 1e3, 6),
            "tok_s": round(self.rows / self.step_s, 3),
        }


def prompts(rows: int, length: int, seed: int) -> list[list[int]]:
    """A list of prompts, the same for the same numbers."""
    rng = random.Random(f"{seed} {rows} {length}")
    return [rng.choices(IDS, k=length) for _ in range(rows)]


def decode(
    server: Server,
    asked: Sequence[Sequence[int]],
    tokens: int,
    on_first: Callable[[], None] = lambda: None,
) -> Timed:
    """Decode so many tokens, two or more, after each prompt of one list.

    on_first is called when every row has its first token. Raises Failure(SERVER), also for an answer
    that lacks a row, a token, or the first token on its own.
    """
    body = {
        "input_ids": asked,
        # The first token comes alone, then all others: a client that reads each would time itself.
        "sampling_params": {**greedily(tokens), "stream_interval": tokens},
    }
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    start = time.perf_counter()
    for event in server.stream("/generate", body):
        now = time.perf_counter() - start
        row, made, ended = _told(server, event)
        if row not in first:
            if made != 1:
                raise failure(
                    f"{server.url} streamed {made} tokens of a row at once, and the first was "
                    "expected alone"
                )
            first[row] = now
            if len(first) == len(asked):
                on_first()
        if ended:
            if made != tokens:
                raise failure(f"{server.url} gave {made} of {tokens} tokens of a row")
            last[row] = now
    if last.keys() != set(range(len(asked))):
        raise failure(f"{server.url} ended {len(last)} of {len(asked)} rows")
    return Timed(
        len(asked), tokens, min(first.values()), max(first.values()), max(last.values())
    )


def greedily(tokens: int) -> dict:
    """Sampling parameters for so many of the likeliest tokens."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


def _told(server: Server, event: dict) -> tuple[int, int, bool]:
    """The row of an event, the tokens that it has so far, and whether it has ended."""
    try:
        meta = event["meta_info"]
        return event["index"], meta["completion_tokens"], bool(meta["finish_reason"])
    except (KeyError, TypeError):
        raise failure(
            f"{server.url} streamed something else than rows of tokens: {event!r:.300}"
        ) from None
