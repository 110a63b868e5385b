"""Token agreement of two servers: what stands for a right answer when the weights are random."""

from __future__ import annotations

import random

from .askserver import Server
from .chat import failure
from .errors import Exit, Failure
from .listing import listed

LENGTHS = (300, 2_047, 2_049, 6_000)
PER_LENGTH = 4
NEW_TOKENS = 32
# Ids that every DeepSeek-V4 vocabulary has; special ones are the first few and stay out.
_IDS = range(10, 320)


def compare(server: Server, reference: Server, seed: int = 0) -> str:
    """Greedy tokens of both servers on the same prompts. Raises Failure(SERVER) where they differ.

    A length's prompts go as one list: requests of their own would be batched by chance, and another
    batch is another order of additions.
    """
    rng = random.Random(seed)
    differing, compared = [], 0
    for length in LENGTHS:
        prompts = [rng.choices(_IDS, k=length) for _ in range(PER_LENGTH)]
        for one, other in zip(_greedy(server, prompts), _greedy(reference, prompts)):
            compared += len(other)
            if one != other:
                at = _first_difference(one, other)
                differing.append(
                    f"prompt of {length} tokens: token {at} of {len(other)}"
                )
    if differing:
        raise Failure(
            Exit.SERVER,
            f"{len(differing)} of {PER_LENGTH * len(LENGTHS)} answers differ from those of "
            f"{reference.url}",
            where=listed(differing),
            state="both servers were only asked; nothing was changed",
            next="make the selection the same in both: SGLANG_TOPK_TRANSFORM_512_TORCH=1 or "
            "SGLANG_SM120_TOPK=on; then look at the sets that differ",
        )
    return f"{compared} tokens equal (random weights: no answer is right or wrong)"


def _greedy(server: Server, prompts: list[list[int]]) -> list[list[int]]:
    body = {
        "input_ids": prompts,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": NEW_TOKENS,
            "ignore_eos": True,
        },
    }
    answers = server.post("/generate", body)
    if not isinstance(answers, list) or len(answers) != len(prompts):
        raise failure(f"{server.url} gave no list of answers to a list of prompts")
    found = [answer.get("output_ids") or [] for answer in answers]
    if any(len(ids) != NEW_TOKENS for ids in found):
        raise failure(
            f"{server.url} gave {min(map(len, found))} of {NEW_TOKENS} tokens"
        )
    return found


def _first_difference(one: list[int], other: list[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
