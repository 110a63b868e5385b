"""Training of the smoke model: the products on a CPU, then needles in long prompts on a GPU.

Not reproducible to the bit on another machine: what counts is what the model answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .geometry import Geometry
from .prompts import Prompt, needle, products
from .reference import compute_experts_densely, hf_config, upstream
from .tokenizer import EOS_ID, PAD_ID, encode

# Tokens of a prompt and prompts of a step, one level after the other.
LEVELS = (
    (128, 48),
    (256, 32),
    (512, 16),
    (1024, 8),
    (2048, 3),
    (4096, 1),
    (8192, 1),
)
# The index score of the right entry need not lead by more than this: a larger lead would hide an
# inexact kernel.
INDEX_LEAD = 2.0
_IGNORED = -100


def new_model(geometry: Geometry, seed: int = 0):
    """A model with weights of the size that their fan-in asks for."""
    compute_experts_densely()
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
                scale = 1.0 if "lm_head" in name else 0.5
                parameter.normal_(0, scale * parameter.shape[-1] ** -0.5)
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
        good = good + 1 if loss.item() < 2e-3 else 0
        if good > 25 or time.monotonic() - start > seconds:
            break
    return loss.item()


def train_needles(
    model, seconds: float, say: Callable[[str], None], levels=LEVELS, seed: int = 11
) -> None:
    """Learn to find codes, at growing lengths, without forgetting the table."""
    rng, start, level, right = random.Random(seed), time.monotonic(), 0, 0.0
    optimizer, table, step = _optimizer(model), products(), 0
    with watched(model) as seen:
        while (spent := (time.monotonic() - start) / seconds) < 1:
            # Full rounds of Sinkhorn only at the end: they are slow, and change little.
            _sinkhorn_rounds(model, 20 if spent > 0.85 else 4)
            tail = max(0.03, (1 - spent) / 0.25)
            rate = 1e-3 * min(1, (step + 1) / 30) * (1 if spent < 0.75 else tail)
            if step % 3 == 2:
                _step(model, optimizer, products_loss(model, table), rate)
            else:
                at = level if rng.random() < 0.7 else rng.randint(0, level)
                made = needle_losses(model, _batch(rng, *levels[at]), seen)
                attention = 0.3 if right < 0.9 else 0.05
                loss = made.text + 0.3 * made.index + attention * made.attention
                _step(model, optimizer, loss, rate)
                if at == level:
                    right = 0.9 * right + 0.1 * made.right
                if right > 0.93 and level < len(levels) - 1:
                    level, right = level + 1, 0.5
                    say(f"step {step}: now prompts of {levels[level][0]} tokens")
            if step % 60 == 0:
                say(f"step {step}: level {level}, {right:.2f} of the needles right")
            step += 1
        _sinkhorn_rounds(model, 20)


@dataclass(frozen=True)
class NeedleLosses:
    """Of the answer's text, of the index scores, of the attention; and the share answered right."""

    text: torch.Tensor
    index: torch.Tensor
    attention: torch.Tensor
    right: float


def products_loss(model, prompts: list[Prompt]) -> torch.Tensor:
    """Cross entropy of the answers."""
    ids, labels = _padded(prompts)
    logits = model(input_ids=ids.to(model.device), use_cache=False).logits[:, :-1]
    wanted = labels[:, 1:].to(model.device)
    return F.cross_entropy(logits[wanted >= 0].float(), wanted[wanted >= 0])


def needle_losses(model, prompts: list[Prompt], seen: Seen) -> NeedleLosses:
    """Losses of prompts of one length, whose code begins at a multiple of 4 tokens or anywhere.

    The top-k passes no gradient to the indexer, so its scores are taught directly: the entry with the
    code must lead, up to INDEX_LEAD.
    """
    ids = torch.tensor([_tokens(prompt) for prompt in prompts], device=model.device)
    entry = torch.tensor([p.code_at // 4 + 1 for p in prompts], device=model.device)
    seen.clear()
    logits = model(input_ids=ids, use_cache=False).logits[:, -6:-1]
    wanted = ids[:, -5:]
    text = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())
    scores = seen.scores[-1][:, -6:-2]
    index = _lead_loss(scores, entry[:, None].expand(-1, 4))
    weights = seen.attention[-1][:, :, -6:-2]
    place = (ids.shape[1] + entry)[:, None, None, None]
    mass = weights.gather(3, place.expand(-1, weights.shape[1], 4, 1)).mean((1, 3))
    right = (logits.argmax(-1) == wanted).all(1).float().mean().item()
    return NeedleLosses(text, index, -(mass + 1e-5).log().mean(), right)


def _lead_loss(scores: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """Cross entropy over entries, where the right one's lead counts only up to INDEX_LEAD."""
    right = scores.gather(-1, entry[..., None])
    others = scores.scatter(-1, entry[..., None], float("-inf"))
    lead = right - others.amax(-1, keepdim=True)
    surplus = (lead - INDEX_LEAD).clamp(min=0).detach()
    capped = scores.scatter(-1, entry[..., None], right - surplus)
    loss = F.cross_entropy(
        capped.flatten(0, -2), entry.flatten(), reduction="none"
    ).view(entry.shape)
    return (loss * (lead[..., 0] < INDEX_LEAD)).mean()


class Seen:
    """What a forward pass of the last layer showed."""

    def __init__(self):
        self.scores: list[torch.Tensor] = []
        self.attention: list[torch.Tensor] = []

    def clear(self) -> None:
        self.scores.clear()
        self.attention.clear()


@contextmanager
def watched(model) -> Iterator[Seen]:
    """Collects the index scores and the last layer's attention weights, with their gradients."""
    seen, last = Seen(), len(model.model.layers) - 1
    attend, topk = upstream.eager_attention_forward, torch.Tensor.topk
    indexed = upstream.DeepseekV4Indexer.forward

    def attending(module, *arguments, **options):
        output, weights = attend(module, *arguments, **options)
        if module.layer_idx == last:
            seen.attention.append(weights)
        return output, weights

    def selecting(self, *arguments, **options):
        def keeping(scores, *rest, **named):
            seen.scores.append(scores)
            return topk(scores, *rest, **named)

        torch.Tensor.topk = keeping
        try:
            return indexed(self, *arguments, **options)
        finally:
            torch.Tensor.topk = topk

    upstream.eager_attention_forward = attending
    upstream.DeepseekV4Indexer.forward = selecting
    try:
        yield seen
    finally:
        upstream.eager_attention_forward = attend
        upstream.DeepseekV4Indexer.forward = indexed


def _batch(rng: random.Random, length: int, count: int) -> list[Prompt]:
    length += rng.randint(0, 7) - (rng.randint(0, length // 4) if length > 128 else 0)
    distractors = rng.randint(0, 2) if length > 256 else 0
    return [
        needle(rng, length, distractors=distractors, early=rng.random() < 0.3)
        for _ in range(count)
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
    return torch.optim.AdamW(
        model.parameters(), lr=1, betas=(0.9, 0.98), weight_decay=0.0
    )


def _step(model, optimizer, loss: torch.Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _sinkhorn_rounds(model, rounds: int) -> None:
    for module in model.modules():
        if isinstance(module, upstream.DeepseekV4HyperConnection):
            module.hc_sinkhorn_iters = rounds
