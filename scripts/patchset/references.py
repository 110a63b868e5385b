"""Recorded answers of the smoke model, and the comparison of a server's answers with them.

Text alone is a coarse test: many broken kernels still give 391. They move the gap between the two best
log-probabilities of most tokens, so gaps are compared too. Rounding moves most gaps hardly and a few by
more: so most gaps of a group must be near, and some may be off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .askserver import Server
from .chat import failure
from .errors import Exit, Failure
from .listing import listed

MOST_TOKENS = 12
SHARE = 0.75


@dataclass(frozen=True)
class Reference:
    """One prompt with the reference model's greedy answer.

    gaps: best minus second-best log-probability of each token of the answer.
    """

    group: str
    prompt: str
    prompt_tokens: int
    text: str
    ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    """The recorded answers of one checkpoint, and how far SHARE of the gaps of a group may be off.

    chat: which of "reasoning" and "tool call" it can do beside them.
    """

    checkpoint: str
    made_by: str
    tolerance: float
    references: tuple[Reference, ...]
    chat: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups, in their order."""
        return tuple(dict.fromkeys(each.group for each in self.references))

    def of(self, group: str) -> list[Reference]:
        """The references of one group."""
        return [each for each in self.references if each.group == group]


@dataclass(frozen=True)
class Heard:
    """What a server answered to the prompt of a reference."""

    text: str
    ids: tuple[int, ...]
    gaps: tuple[float, ...]
    prompt_tokens: int


def load(path: Path) -> Recording:
    """Read a file that `ci/smoke_model.py expect` wrote. Raises Failure(ENVIRONMENT)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        references = tuple(
            Reference(
                **{**item, "ids": tuple(item["ids"]), "gaps": tuple(item["gaps"])}
            )
            for item in data["references"]
        )
        return Recording(
            data["checkpoint"],
            data["made_by"],
            data["tolerance"],
            references,
            tuple(data.get("chat", ())),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(
            Exit.ENVIRONMENT,
            f"the recorded answers can't be read: {error}",
            where=str(path),
            state="nothing was asked",
            next="restore the file, or make it again: python ci/smoke_model.py expect",
        ) from None


def compare(server: Server, recording: Recording, group: str) -> str:
    """Ask one group's prompts one by one. Raises Failure(SERVER) where text or a gap differs."""
    wanted = recording.of(group)
    heard = [_ask(server, each) for each in wanted]
    return require_alike(wanted, heard, recording.tolerance)


def compare_at_once(server: Server, recording: Recording, number: int) -> str:
    """Ask prompts of all groups at the same time, taken evenly from the recording; texts only.

    What else is in a batch moves a gap legitimately.
    """
    step = max(1, len(recording.references) // number)
    wanted = recording.references[::step][:number]
    with ThreadPoolExecutor(number) as pool:
        heard = list(pool.map(lambda each: _ask(server, each), wanted))
    require_alike(wanted, heard, float("inf"))
    return f"{len(wanted)} of {len(wanted)}"


def require_alike(
    wanted: Sequence[Reference], heard: Sequence[Heard], tolerance: float
) -> str:
    """Raise Failure(SERVER) where a text differs, or a gap by more than the tolerance."""
    for one, answer in zip(wanted, heard, strict=True):
        if answer.prompt_tokens != one.prompt_tokens:
            raise failure(
                f"wrong model: a recorded prompt has {answer.prompt_tokens} tokens there and "
                f"{one.prompt_tokens} with the smoke model's tokenizer",
                "serve the smoke model: ci/smoke_model.py unpack DIR",
            )
        if not answer.ids:
            raise failure("the answer to a recorded prompt is empty")
    texts = [
        f"{one.group}, {one.prompt_tokens} tokens: {one.text!r} was expected, {answer.text!r} came"
        for one, answer in zip(wanted, heard)
        if answer.ids != one.ids
    ]
    if texts:
        raise Failure(
            Exit.SERVER,
            f"{len(texts)} of {len(wanted)} answers differ from the recorded ones",
            where=listed(texts),
            state="the server was only asked; nothing was changed",
            next="start it with each flag off in turn, to see which path answers wrongly",
        )
    off = differences(wanted, heard)
    typical = off[int(len(off) * SHARE)]
    if typical > tolerance:
        raise Failure(
            Exit.SERVER,
            f"the texts are right, but a quarter of the gaps between the two best tokens are off by "
            f"{typical:.2f} or more; up to {tolerance:g} is arithmetic, more is a wrong kernel",
            where=f"{wanted[0].group}: {len(off)} tokens, half of them off by {off[len(off) // 2]:.2f}",
            state="the server was only asked; nothing was changed",
            next="make sure that it serves the smoke model of this repository and no older one "
            "(python3 ci/smoke_model.py unpack DIR), then start it with each flag off in turn, to see "
            "which path moves the gaps",
        )
    return f"{len(wanted)} of {len(wanted)} texts, {SHARE:.0%} of the gaps within {typical:.2f}"


def differences(wanted: Sequence[Reference], heard: Sequence[Heard]) -> list[float]:
    """How far each gap is off, in rising order."""
    return sorted(
        abs(found - recorded)
        for one, answer in zip(wanted, heard)
        for recorded, found in zip(one.gaps, answer.gaps, strict=True)
    )


def heard_of(item: dict) -> Heard:
    """One item of /generate's answer. Raises Failure(SERVER) when it is not a whole one."""
    try:
        meta = item["meta_info"]
        reason = (meta.get("finish_reason") or {}).get("type")
        if reason not in ("stop", "length"):
            raise failure(f"the answer was not finished (finish_reason: {reason})")
        gaps = tuple(best[0][0] - best[1][0] for best in meta["output_top_logprobs"])
        # No bound holds NaN back: it is neither near nor far.
        if not all(map(math.isfinite, gaps)):
            raise failure("a log-probability of the answer is no number")
        return Heard(
            text=item["text"],
            ids=tuple(token[1] for token in meta["output_token_logprobs"]),
            gaps=gaps,
            prompt_tokens=meta["prompt_tokens"],
        )
    except (KeyError, TypeError, IndexError, AttributeError):
        raise failure(
            f"/generate answered without tokens and log-probabilities: {item!r:.300}"
        ) from None


def _ask(server: Server, reference: Reference) -> Heard:
    return heard_of(
        server.post(
            "/generate",
            {
                "text": reference.prompt,
                "sampling_params": {"temperature": 0, "max_new_tokens": MOST_TOKENS},
                "return_logprob": True,
                "top_logprobs_num": 2,
            },
        )
    )
