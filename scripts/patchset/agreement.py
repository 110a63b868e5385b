"""Agreement of two servers: what stands for a right answer when the weights are random.

Another kernel is another order of additions. With random weights the best tokens are close, and a router's
choice is too: where another expert runs, any other token may come, and the answers go apart from there. So
that they part says nothing by itself. What is compared is each place up to and with the one where they
part, as both have read the same text until there: most log-probabilities must be near, of each length of
prompts for itself, since a wrong selection shows in the long ones alone. A wrong kernel moves nearly all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .askserver import Server
from .chat import failure
from .errors import Exit, Failure
from .listing import counted
from .references import SHARE

LENGTHS = (300, 2_047, 2_049, 6_000)
PER_LENGTH = 4
NEW_TOKENS = 32
# How far SHARE of the log-probabilities of a length may be off.
NEAR = 0.1
# Ids that every DeepSeek-V4 vocabulary has; special ones are the first few and stay out.
_IDS = range(10, 320)
_BEST = 5


@dataclass(frozen=True)
class Said:
    """One answer: its tokens, and the log-probabilities of the best tokens at each place."""

    ids: tuple[int, ...]
    best: tuple[dict[int, float], ...]


def compare(server: Server, reference: Server, seed: int = 0) -> str:
    """Greedy answers of both servers to the same prompts. Raises Failure(SERVER) where they are not alike.

    A length's prompts go as one list: requests of their own would be batched by chance, and another
    batch is another order of additions.
    """
    rng = random.Random(seed)
    wrong, parted, equal, farthest = [], 0, 0, 0.0
    for length in LENGTHS:
        prompts = [rng.choices(_IDS, k=length) for _ in range(PER_LENGTH)]
        pairs = list(zip(_greedy(server, prompts), _greedy(reference, prompts)))
        leads = [first_difference(one, other) for one, other in pairs]
        equal += sum(leads)
        parted += sum(lead < NEW_TOKENS for lead in leads)
        off = sorted(d for one, other in pairs for d in differences(one, other))
        typical = off[int(len(off) * SHARE)]
        farthest = max(farthest, typical)
        if typical > NEAR:
            wrong.append(
                f"prompts of {length} tokens: {sum(d > NEAR for d in off)} of {len(off)} are off by "
                f"more than {NEAR:g}, a quarter by {_shown(typical)}; equal tokens before "
                f"the answers part: {', '.join(map(str, leads))} of {NEW_TOKENS}"
            )
    if wrong:
        raise Failure(
            Exit.SERVER,
            f"log-probabilities differ from those of {reference.url} for {len(wrong)} of "
            f"{counted(LENGTHS, 'length')} of prompts",
            where="\n".join(wrong),
            state="both servers were only asked; nothing was changed",
            next="make the selection the same in both: SGLANG_TOPK_TRANSFORM_512_TORCH=1 or "
            "SGLANG_SM120_TOPK=on; then start it with each flag off in turn",
        )
    answers = counted(range(PER_LENGTH * len(LENGTHS)), "answer")
    return (
        f"{SHARE:.0%} of the log-probabilities within {farthest:.2f}, {equal} tokens equal, {parted} of "
        f"{answers} parted (random weights: no answer is right or wrong)"
    )


def first_difference(one: Said, other: Said) -> int:
    """The place of the first token that differs; their number when none does."""
    places = enumerate(zip(one.ids, other.ids))
    return next((at for at, (a, b) in places if a != b), len(one.ids))


def differences(one: Said, other: Said) -> list[float]:
    """How far apart both are on the other's token, at each place with the same text before it.

    Infinite when that token is not among the best of the one.
    """
    compared = min(first_difference(one, other) + 1, len(other.ids))
    return [
        abs(one.best[at].get(token, float("-inf")) - other.best[at][token])
        for at, token in enumerate(other.ids[:compared])
    ]


def _shown(difference: float) -> str:
    return (
        f"{difference:.2f} or more" if difference < float("inf") else "more than shown"
    )


def _greedy(server: Server, prompts: list[list[int]]) -> list[Said]:
    body = {
        "input_ids": prompts,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": NEW_TOKENS,
            "ignore_eos": True,
        },
        "return_logprob": True,
        "top_logprobs_num": _BEST,
    }
    answers = server.post("/generate", body)
    if not isinstance(answers, list) or len(answers) != len(prompts):
        raise failure(f"{server.url} gave no list of answers to a list of prompts")
    said = [_said(server, answer) for answer in answers]
    if any(len(each.ids) != NEW_TOKENS for each in said):
        least = min(len(each.ids) for each in said)
        raise failure(f"{server.url} gave {least} of {NEW_TOKENS} tokens")
    return said


def _said(server: Server, answer: dict) -> Said:
    try:
        meta = answer["meta_info"]
        best = [
            {token: value for value, token, *_ in place}
            for place in meta["output_top_logprobs"]
        ]
        ids = [token for _, token, *_ in meta["output_token_logprobs"]]
        for at, token in enumerate(ids):
            best[at].setdefault(token, meta["output_token_logprobs"][at][0])
    except (KeyError, TypeError, ValueError, IndexError):
        raise failure(
            f"{server.url} answered without tokens and log-probabilities: {answer!r:.300}"
        ) from None
    return Said(tuple(ids), tuple(best))
