"""Token agreement of two servers: what stands for a right answer when the weights are random.

Another kernel is another order of additions, and with random weights the best two tokens are often
close. So answers may part where they were level; everything before must be equal, token by token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .askserver import Server
from .chat import failure
from .decodelist import greedily
from .errors import Exit, Failure
from .listing import counted, listed

LENGTHS = (300, 2_047, 2_049, 6_000)
PER_LENGTH = 4
NEW_TOKENS = 32
# Log-probability by which a token may lead in one server and not in the other.
LEVEL = 0.1
# Ids that every DeepSeek-V4 vocabulary has; special ones are the first few and stay out.
_IDS = range(10, 320)
_BEST = 5


@dataclass(frozen=True)
class Said:
    """One answer: its tokens, and the log-probabilities of the best tokens at each place."""

    ids: tuple[int, ...]
    best: tuple[dict[int, float], ...]


def compare(server: Server, reference: Server, seed: int = 0) -> str:
    """Greedy tokens of both servers on the same prompts. Raises Failure(SERVER) where they differ.

    A length's prompts go as one list: requests of their own would be batched by chance, and another
    batch is another order of additions.
    """
    rng = random.Random(seed)
    differing, equal, parted = [], 0, 0
    for length in LENGTHS:
        prompts = [rng.choices(_IDS, k=length) for _ in range(PER_LENGTH)]
        ours, theirs = (
            greedy(each, prompts, NEW_TOKENS) for each in (server, reference)
        )
        for one, other in zip(ours, theirs):
            at = first_difference(one, other)
            equal += at
            if at == NEW_TOKENS:
                continue
            lead = lead_at(one, other, at)
            if lead <= LEVEL:
                parted += 1
            else:
                differing.append(
                    f"prompt of {length} tokens: token {at} of {NEW_TOKENS}, by {lead:.2f}"
                )
    if differing:
        raise Failure(
            Exit.SERVER,
            f"{len(differing)} of {PER_LENGTH * len(LENGTHS)} answers differ from those of "
            f"{reference.url} where no two tokens were level",
            where=listed(differing),
            state="both servers were only asked; nothing was changed",
            next="make the selection the same in both: SGLANG_TOPK_TRANSFORM_512_TORCH=1 or "
            "SGLANG_SM120_TOPK=on; then look at the sets that differ",
        )
    ties = (
        f", {counted(range(parted), 'answer')} parted at level tokens" if parted else ""
    )
    return f"{equal} tokens equal{ties} (random weights: no answer is right or wrong)"


def first_difference(one: Said, other: Said) -> int:
    """The place of the first token that differs; their number when none does."""
    places = enumerate(zip(one.ids, other.ids))
    return next((at for at, (a, b) in places if a != b), len(one.ids))


def lead_at(one: Said, other: Said, at: int) -> float:
    """By how much each server prefers its own token there to the other's, at most.

    Infinite when the other's is not among the best.
    """
    mine, theirs = one.ids[at], other.ids[at]
    return max(
        one.best[at][mine] - one.best[at].get(theirs, float("-inf")),
        other.best[at][theirs] - other.best[at].get(mine, float("-inf")),
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
            best[at].setdefault(token, meta["output_token_logprobs"][at][0])
    except (KeyError, TypeError, ValueError, IndexError):
        raise failure(
            f"{server.url} answered without tokens and log-probabilities: {answer!r:.300}"
        ) from None
    return Said(tuple(ids), tuple(best))
