"""The average of a model's weights over its last steps of training: it answers better than any one of them."""

from __future__ import annotations

import torch

_KEEP = 0.995


class Average:
    """Follows a model's parameters."""

    def __init__(self, model):
        self._weights = [each.detach().clone() for each in model.parameters()]
        self._steps = 0

    @torch.no_grad()
    def add(self, model) -> None:
        """One more step."""
        self._steps += 1
        share = 1 - min(_KEEP, self._steps / (self._steps + 10))
        torch._foreach_lerp_(
            self._weights, [each.detach() for each in model.parameters()], share
        )

    def state(self, model) -> dict[str, torch.Tensor]:
        """The model's state with the average for its parameters."""
        names = (name for name, _ in model.named_parameters())
        return model.state_dict() | dict(zip(names, self._weights))
