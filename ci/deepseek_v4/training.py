"""Training of the smoke model: the products on a CPU, then needles in long prompts on a GPU.

Not reproducible to the bit on another machine: what counts is what the model answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .average import Average
from .blocks import Seen, last_logits
from .geometry import Geometry
from .prompts import Prompt, needle, products, reasoning, tool_call
from .tensors import EXPERTS
from .reference import compute_fast, hf_config, upstream
from .tokenizer import EOS_ID, PAD_ID, encode

_SHORTEST = 130
# The score of the right entry need not lead the next best by more than this many standard deviations
# of the scores: a larger lead would hide an inexact kernel.
INDEX_LEAD = 2.0
# The logit of an answer's token need not lead the next best by more than this: how far rounding moves
# a gap does not fall with the gap, and a model that is too sure has a large one of both.
ANSWER_LEAD = 2.0
# The head's weights are this much smaller than their fan-in asks for, and so are logits and gaps.
_HEAD = 1 / 8
# Of the softmax over scores in standard deviations, in its cross entropy.
_SHARP = 3.0
# What the other logits of a row come to, in a model that was trained without: so a sink takes a
# quarter of the attention, and is missed.
SINK = 6.0
_IGNORED = -100
_SAID_EACH = 51


def new_model(geometry: Geometry, seed: int = 0):
    """A model with weights of the size that their fan-in asks for."""
    compute_fast()
    torch.manual_seed(seed)
    model = upstream.DeepseekV4ForCausalLM(hf_config(geometry)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" in name:
                parameter.normal_(0, 1)
            elif (
                parameter.dim() >= 2
                and "hc" not in name
                and "position_bias" not in name
            ):
                scale = _HEAD if "lm_head" in name else 0.5
                parameter.normal_(0, scale * parameter.shape[-1] ** -0.5)
        for layer in model.model.layers[: geometry.hash_layers]:
            # Any six of each token will do: the experts learn what they are asked.
            table = layer.mlp.gate.tid2eid
            order = torch.rand(len(table), EXPERTS).argsort(-1)
            table.copy_(order[:, : table.shape[1]])
    return model


def train_products(
    model, steps: int, seconds: float, say: Callable[[str], None], seed: int = 1
) -> float:
    """Learn the table until the loss is small for 25 steps; the last loss."""
    rng, table, start, good = random.Random(seed), products(), time.monotonic(), 0
    optimizer = _optimizer(model)
    for step in range(steps):
        tail = max(0.05, 1 - (step - steps * 0.6) / (steps * 0.4))
        rate = 2e-3 * min(1, (step + 1) / 20) * (1 if step < steps * 0.6 else tail)
        loss = products_loss(model, rng.sample(table, 24))
        _step(model, optimizer, loss, rate)
        if step % 10 == 0:
            say(f"step {step}: loss {loss.item():.4f}")
        good = good + 1 if loss.item() < 0.02 else 0
        if good > 25 or time.monotonic() - start > seconds:
            break
    return loss.item()


def train_needles(
    model,
    seconds: float,
    say: Callable[[str], None],
    keep: Callable[[int, dict], None],
    *,
    each: float,
    longest: int,
    tokens: int,
    rate: float = 1e-3,
    seed: int = 11,
) -> None:
    """Learn to find codes, in prompts up to `longest` tokens, without forgetting what is learnt.

    A step takes prompts of `tokens` tokens together, or one longer prompt. keep takes the seconds spent and
    a state, averaged over the last steps: each so many seconds, and at the end, which may be the same second
    as the one before. rate: the largest learning rate.
    """
    rng, start, step = random.Random(seed), time.monotonic(), 0
    sinks = sinks_of(model)
    as_begun = [each.clone() for each in sinks]
    optimizer, average = _optimizer(model), Average(model)
    table, said = products(), (reasoning(), tool_call())
    kept, weight, right, lead = 0.0, 0.3, *torch.zeros(2)
    while (spent := (time.monotonic() - start) / seconds) < 1:
        # Full rounds of Sinkhorn only at the end: they are slow, and change little.
        _sinkhorn_rounds(model, 20 if spent > 0.8 else 4)
        for each_sink, begun in zip(sinks, as_begun):
            each_sink.copy_(
                begun.lerp(torch.full_like(begun, SINK), min(1, spent / 0.2))
            )
        share = min(1, (step + 1) / 50, max(0.02, (1 - spent) / 0.4))
        if step % 3 == 2:
            loss = products_loss(model, table)
            loss = loss + last_tokens_loss(model, said[step % 2])
        else:
            # Up to the longest by half of the time.
            reach = max(_SHORTEST, longest * min(1.0, 0.1 + 2 * spent))
            made = needle_losses(model, _batch(rng, reach, tokens))
            loss = made.text + 0.3 * made.index + weight * made.attention
            right = 0.98 * right + 0.02 * made.right
            lead = made.lead
        _step(model, optimizer, loss, share * rate)
        average.add(model)
        if step % _SAID_EACH == 0 or step % _SAID_EACH == 2:
            # Not at each step: these figures wait for the GPU.
            weight = 0.3 if right < 0.9 else 0.05
            say(
                f"{spent * seconds:.0f} s, step {step}: loss {loss.item():.3f}, "
                f"{right.item():.2f} of the needles right, lead {lead.item():.1f}"
            )
        step += 1
        if spent * seconds - kept > each:
            kept = spent * seconds
            keep(round(kept), average.state(model))
    _sinkhorn_rounds(model, 20)
    keep(round(seconds), average.state(model))


def sinks_of(model) -> list[torch.Tensor]:
    """Each layer's sinks, which are not learnt from here: training would move them back to nothing."""
    return [layer.self_attn.sinks.requires_grad_(False) for layer in model.model.layers]


@dataclass(frozen=True)
class NeedleLosses:
    """Of the answer's text, of the index scores, of the attention.

    right: the share that is answered so. lead: of the right entry, in standard deviations.
    """

    text: torch.Tensor
    index: torch.Tensor
    attention: torch.Tensor
    right: torch.Tensor
    lead: torch.Tensor


def products_loss(model, prompts: list[Prompt]) -> torch.Tensor:
    """How far the answers are from being the best by ANSWER_LEAD."""
    ids, labels = _padded(prompts)
    logits = model(input_ids=ids.to(model.device), use_cache=False).logits[:, :-1]
    wanted = labels[:, 1:].to(model.device)
    return _answer_loss(logits[wanted >= 0], wanted[wanted >= 0])


def last_tokens_loss(model, prompt: Prompt) -> torch.Tensor:
    """The same for one prompt, however long."""
    ids = torch.tensor([_tokens(prompt)], device=model.device)
    count = len(encode(prompt.answer)) + 1
    logits = last_logits(model, ids, count + 1)[0, :-1]
    return _answer_loss(logits, ids[0, -count:])


def needle_losses(model, prompts: list[Prompt]) -> NeedleLosses:
    """Losses of prompts of one length.

    The top-k passes no gradient to the indexer, so its scores are taught directly: the entry with the
    code must lead, and by INDEX_LEAD only.
    """
    ids = torch.tensor([_tokens(prompt) for prompt in prompts], device=model.device)
    entry = torch.tensor([p.code_at // 4 + 1 for p in prompts], device=model.device)
    seen = Seen()
    logits = last_logits(model, ids, 6, seen)[:, :-1]
    wanted = ids[:, -5:]
    text = _answer_loss(logits.flatten(0, 1), wanted.flatten())
    index, lead = _lead_loss(seen.scores[0][:, :4], entry[:, None].expand(-1, 4))
    weights = seen.attention[0][:, :, :4]
    place = entry[:, None, None, None].expand(-1, weights.shape[1], 4, 1)
    mass = weights.gather(3, place).mean((1, 3))
    right = (logits.argmax(-1) == wanted).all(1).float().mean()
    return NeedleLosses(text, index, -(mass + 1e-5).log().mean(), right, lead)


def _answer_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross entropy, less of it the nearer the right token's lead is to ANSWER_LEAD, and what is more."""
    logits, place = logits.float(), wanted[:, None]
    others = logits.scatter(1, place, float("-inf"))
    lead = logits.gather(1, place)[:, 0] - others.amax(1)
    missed = F.cross_entropy(logits, wanted, reduction="none")
    short = (1 - lead.detach() / ANSWER_LEAD).clamp(0, 1)
    return (missed * short + F.relu(lead - ANSWER_LEAD).square()).mean()


def _lead_loss(
    scores: torch.Tensor, entry: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy over entries where the right one leads too little, its lead where that is too large."""
    place = entry[..., None]
    right = scores.gather(-1, place)
    others = scores.scatter(-1, place, float("-inf"))
    seen = others.isfinite()
    count = seen.sum(-1, keepdim=True)
    known = others.masked_fill(~seen, 0)
    mean = known.sum(-1, keepdim=True) / count
    spread = (
        (known - mean).masked_fill(~seen, 0).square().sum(-1) / count[..., 0] + 1e-9
    ).sqrt()
    lead = (right - others.amax(-1, keepdim=True))[..., 0] / spread
    sharp = scores * (_SHARP / spread[..., None].detach())
    missed = F.cross_entropy(
        sharp.flatten(0, -2), entry.flatten(), reduction="none"
    ).view(entry.shape)
    loss = (missed * (lead < INDEX_LEAD)).mean() + F.relu(lead - INDEX_LEAD).mean()
    return loss, lead.mean().detach()


def _batch(rng: random.Random, reach: float, tokens: int) -> list[Prompt]:
    """Prompts of one length up to `reach`: short ones as often as long ones."""
    length = round(_SHORTEST * (reach / _SHORTEST) ** rng.random())
    if reach > 2_100 and rng.random() < 0.2:
        # Around the 2,048 tokens from which the selection runs.
        length = 2_048 + rng.randint(-16, 48)
    others = 0 if length < 220 or rng.random() < 0.4 else rng.randint(1, 3)
    return [
        needle(rng, length, distractors=others, early=rng.random() < 0.3)
        for _ in range(max(1, min(64, tokens // length)))
    ]


def _tokens(prompt: Prompt) -> list[int]:
    return [*encode(prompt.text), *encode(prompt.answer), EOS_ID]


def _padded(prompts: list[Prompt]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [(encode(p.text), [*encode(p.answer), EOS_ID]) for p in prompts]
    width = max(len(before) + len(after) for before, after in rows)
    ids = torch.full((len(rows), width), PAD_ID)
    labels = torch.full((len(rows), width), _IGNORED)
    for row, (before, after) in enumerate(rows):
        ids[row, : len(before) + len(after)] = torch.tensor(before + after)
        labels[row, len(before) : len(before) + len(after)] = torch.tensor(after)
    return ids, labels


def _optimizer(model) -> torch.optim.Optimizer:
    head = model.lm_head.weight
    learning = [p for p in model.parameters() if p.requires_grad and p is not head]
    groups = [{"params": learning, "share": 1.0}, {"params": [head], "share": _HEAD}]
    return torch.optim.AdamW(groups, lr=1, betas=(0.9, 0.98), weight_decay=0.0)


def _step(model, optimizer, loss: torch.Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _sinkhorn_rounds(model, rounds: int) -> None:
    for module in model.modules():
        if isinstance(module, upstream.DeepseekV4HyperConnection):
            module.hc_sinkhorn_iters = rounds
