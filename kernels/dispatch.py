"""Which path runs: one pure choice from a flag and a device, and the log line that says so."""

from __future__ import annotations

import logging
from typing import NamedTuple, Optional

import torch

logger = logging.getLogger(__name__)

Capability = Optional[tuple[int, int]]


class Device(NamedTuple):
    """What the choice needs to know: ``kind`` is cuda, hip or cpu; ``capability`` only for cuda."""

    kind: str
    capability: Capability

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.capability[0]}.{self.capability[1]}"
            if self.capability
            else self.kind
        )


class Choice(NamedTuple):
    """Whether our path runs, and why, in words for the log."""

    active: bool
    reason: str


class FlagError(RuntimeError):
    """A flag is ``on`` where it cannot work."""


def current_device() -> Device:
    """The device of this process, without creating a CUDA context where there is no GPU."""
    if not torch.cuda.is_available():
        return Device("cpu", None)
    if torch.version.hip is not None:
        return Device("hip", None)
    return Device("cuda", torch.cuda.get_device_capability())


def choose(
    name: str,
    flag: str,
    device: Device,
    *,
    minimum: tuple[int, int],
    conflict: Optional[str] = None,
) -> Choice:
    """Decide for one flag.

    ``auto`` takes our path on compute capability 12.x. ``on`` takes it on any CUDA GPU from
    ``minimum`` up. ``conflict`` names an explicit setting of the user that asks for another path:
    ``auto`` yields to it. Pure: the same arguments, the same answer, no device is touched.

    Raises FlagError where ``on`` cannot work, ValueError for another word.
    """
    if flag == "off":
        return Choice(False, f"{name}=off")
    if flag == "auto":
        if device.kind != "cuda" or device.capability[0] != 12:
            return Choice(
                False,
                f"{name}=auto takes it on compute capability 12.x, this is {device}",
            )
        if conflict:
            return Choice(False, f"{name}=auto yields to {conflict}")
        return Choice(True, f"{name}=auto, {device}")
    if flag == "on":
        if device.kind != "cuda":
            raise FlagError(
                f"{name}=on needs a CUDA GPU, this is {device}: set {name}=off or auto"
            )
        if device.capability < minimum:
            raise FlagError(
                f"{name}=on needs compute capability {minimum[0]}.{minimum[1]} or newer (older GPUs have no"
                f" fp8 tensor cores), this is {device}: set {name}=off or auto"
            )
        if conflict:
            raise FlagError(
                f"{name}=on conflicts with {conflict}: unset one of the two"
            )
        return Choice(True, f"{name}=on, {device}")
    raise ValueError(f"{name}: expected auto, on or off, got {flag!r}")


def report(what: str, choice: Choice, ours: str) -> None:
    """Log which path ``what`` takes. A hook calls this once for each choice: one line per process."""
    path = ours if choice.active else "upstream's"
    logger.info("sm_120 %s: %s path (%s)", what, path, choice.reason)
