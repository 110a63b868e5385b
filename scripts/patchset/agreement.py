"""Agreement of two servers: what stands for a right answer when the weights are random.

Another kernel is another order of additions. With random weights the best tokens are close, and a router's
choice is too: where another expert runs, any other token may come, and the answers go apart from there. So
that they part says nothing by itself. What is compared is each place up to and with the one where they
part, as both have read the same text until there: most log-probabilities must be near, of each kind of
prompts for itself (their length, or how many are decoded at once), since a wrong kernel may show in one
alone, and moves nearly all of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from .askserver import Server
from .chat import failure
from .decodelist import IDS, greedily
from .errors import Exit, Failure
from .listing import counted
from .references import SHARE

LENGTHS = (300, 2_047, 2_049, 6_000)
PER_LENGTH = 4
NEW_TOKENS = 32
# How far SHARE of the log-probabilities of a kind of prompts may be off.
NEAR = 0.1
_BEST = 5
# Answers of which a message tells how far they are equal.
_TOLD = 16


@dataclass(frozen=True)
class Said:
    """One answer: its tokens, and the log-probabilities of the best tokens at each place."""

    ids: tuple[int, ...]
    best: tuple[dict[int, float], ...]

    def as_json(self) -> dict:
        """For a raw file; each place has [token, log-probability] of its best tokens."""
        best = [[[id, round(value, 4)] for id, value in at.items()] for at in self.best]
        return {"ids": list(self.ids), "best": best}

    @classmethod
    def of_json(cls, data: Mapping) -> Self:
        """What as_json made."""
        return cls(tuple(data["ids"]), tuple(map(dict, data["best"])))


@dataclass(frozen=True)
class Alike:
    """Answers of two servers to prompts of one kind.

    Attributes:
        tokens: of an answer. leads: of each answer, how many are equal before it parts.
        off: how far the log-probabilities of the places up to there are off, in rising order.
    """

    tokens: int
    leads: tuple[int, ...]
    off: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Said, Said]]) -> Self:
        """The answers of a server, each with that of the reference."""
        every = list(pairs)
        off = sorted(each for pair in every for each in differences(*pair))
        leads = tuple(first_difference(*pair) for pair in every)
        return cls(len(every[0][1].ids), leads, tuple(off))

    @property
    def typical(self) -> float:
        """How far SHARE of them are off at most."""
        return self.off[int(len(self.off) * SHARE)]

    @property
    def parted(self) -> int:
        return sum(lead < self.tokens for lead in self.leads)

    def why(self) -> str:
        """What tells that they are not alike."""
        return (
            f"{sum(not each <= NEAR for each in self.off)} of {len(self.off)} are off by more than "
            f"{NEAR:g}, a quarter by {_shown(self.typical)}; equal tokens before the answers part: "
            f"{', '.join(map(str, self.leads[:_TOLD]))}{', ...' * (len(self.leads) > _TOLD)} "
            f"of {self.tokens}"
        )


def wrong(found: Mapping[str, Alike]) -> list[str]:
    """A line for each kind of prompts whose answers are not alike."""
    return [
        f"{kind}: {each.why()}"
        for kind, each in found.items()
        if not each.typical <= NEAR
    ]


def line(found: Mapping[str, Alike]) -> str:
    """What is said of all kinds of prompts together."""
    leads = [lead for each in found.values() for lead in each.leads]
    farthest = max(each.typical for each in found.values())
    parted = sum(each.parted for each in found.values())
    return (
        f"{SHARE:.0%} of the log-probabilities within {farthest:.2f}, {sum(leads)} tokens equal, "
        f"{parted} of {counted(leads, 'answer')} parted (random weights: no answer is right or wrong)"
    )


def compare(server: Server, reference: Server, seed: int = 0) -> str:
    """Greedy answers of both servers to the same prompts. Raises Failure(SERVER) where they are not alike.

    A length's prompts go as one list: requests of their own would be batched by chance, and another
    batch is another order of additions.
    """
    rng = random.Random(seed)
    found = {}
    for length in LENGTHS:
        prompts = [rng.choices(IDS, k=length) for _ in range(PER_LENGTH)]
        ours, theirs = (
            greedy(each, prompts, NEW_TOKENS) for each in (server, reference)
        )
        found[f"prompts of {length} tokens"] = Alike.of(zip(ours, theirs))
    if told := wrong(found):
        raise Failure(
            Exit.SERVER,
            f"log-probabilities differ from those of {reference.url} for {len(told)} of "
            f"{counted(LENGTHS, 'length')} of prompts",
            where="\n".join(told),
            state="both servers were only asked; nothing was changed",
            next="make the selection the same in both: SGLANG_TOPK_TRANSFORM_512_TORCH=1 or "
            "SGLANG_SM120_TOPK=on; then start it with each flag off in turn",
        )
    return line(found)


def first_difference(one: Said, other: Said) -> int:
    """The place of the first token that differs; their number when none does."""
    places = enumerate(zip(one.ids, other.ids))
    return next((at for at, (a, b) in places if a != b), len(one.ids))


def differences(one: Said, other: Said) -> list[float]:
    """How far apart both are on the other's token, at each place with the same text before it.

    Infinite when that token is not among the best of the one, or when either has no number for it.
    """
    compared = min(first_difference(one, other) + 1, len(other.ids))
    return [
        _apart(one.best[at].get(token, -math.inf), other.best[at][token])
        for at, token in enumerate(other.ids[:compared])
    ]


def _apart(one: float, other: float) -> float:
    # NaN has no place in an order, and stands between any two infinite ones.
    apart = abs(one - other)
    return math.inf if math.isnan(apart) else apart


def _shown(difference: float) -> str:
    return (
        f"{difference:.2f} or more" if difference < float("inf") else "more than shown"
    )


def greedy(server: Server, prompts: list[list[int]], tokens: int) -> list[Said]:
    """So many of the likeliest tokens after each prompt of one list. Raises Failure(SERVER)."""
    body = {
        "input_ids": prompts,
        "sampling_params": greedily(tokens),
        "return_logprob": True,
        "top_logprobs_num": _BEST,
    }
    answers = server.post("/generate", body)
    if not isinstance(answers, list) or len(answers) != len(prompts):
        raise failure(f"{server.url} gave no list of answers to a list of prompts")
    said = [_said(server, answer) for answer in answers]
    if any(len(each.ids) != tokens for each in said):
        least = min(len(each.ids) for each in said)
        raise failure(f"{server.url} gave {least} of {tokens} tokens")
    return said


def _said(server: Server, answer: dict) -> Said:
    try:
        meta = answer["meta_info"]
        best = [
            {token: float(value) for value, token, *_ in place}
            for place in meta["output_top_logprobs"]
        ]
        ids = [token for _, token, *_ in meta["output_token_logprobs"]]
        for at, token in enumerate(ids):
            value = float(meta["output_token_logprobs"][at][0])
            best[at].setdefault(token, value)
    except (KeyError, TypeError, ValueError, IndexError):
        raise failure(
            f"{server.url} answered without tokens and log-probabilities: {answer!r:.300}"
        ) from None
    return Said(tuple(ids), tuple(best))
