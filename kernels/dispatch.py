"""Which path runs: one pure choice from a flag and a device, and the log line that says so."""

from __future__ import annotations

import logging
from functools import lru_cache
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
    minimum: tuple[int, int] = (8, 0),
    why_minimum: str = "",
    conflict: Optional[str] = None,
    missing: Optional[str] = None,
) -> Choice:
    """Decide for one flag.

    ``auto`` takes our path on compute capability 12.x. ``on`` takes it on any CUDA GPU from
    ``minimum`` up; ``why_minimum`` says in the error what older GPUs lack. ``conflict`` names an
    explicit setting of the user that asks for another path: ``auto`` yields to it. ``missing`` says, as
    a sentence, what our path builds on and lacks here. Pure: the same arguments, the same answer, no
    device is touched.

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
        if missing:
            return Choice(False, f"{name}=auto: {missing}")
        return Choice(True, f"{name}=auto, {device}")
    if flag == "on":
        if device.kind != "cuda":
            raise FlagError(
                f"{name}=on needs a CUDA GPU, this is {device}: set {name}=off or auto"
            )
        if device.capability < minimum:
            raise FlagError(
                f"{name}=on needs compute capability {minimum[0]}.{minimum[1]} or newer"
                f"{why_minimum and f' ({why_minimum})'}, this is {device}: set {name}=off or auto"
            )
        if conflict:
            raise FlagError(
                f"{name}=on conflicts with {conflict}: unset one of the two"
            )
        if missing:
            raise FlagError(
                f"{name}=on cannot work: {missing}. Give it what it needs, or set {name}=off or auto"
            )
        return Choice(True, f"{name}=on, {device}")
    raise ValueError(f"{name}: expected auto, on or off, got {flag!r}")


@lru_cache(maxsize=None)
def log_once(what: str, path: str) -> None:
    """Log, once in this process, the path of a behaviour that has no Route of its own."""
    logger.info("sm_120 %s: %s", what, path)


class Route:
    """The path that one flag takes in this process: decided once for each setting, logged once.

    ``name`` is the flag's, ``what`` names the behaviour in the log, ``ours`` our path and ``instead`` the
    other one; the rest as for ``choose``.
    """

    def __init__(
        self,
        name: str,
        what: str,
        ours: str,
        minimum: tuple[int, int] = (8, 0),
        why_minimum: str = "",
        instead: str = "upstream's path",
    ):
        self.name, self._what, self._ours = name, what, ours
        self._instead = instead
        self._limits = dict(minimum=minimum, why_minimum=why_minimum)
        self._choices: dict[tuple[str, Optional[str], Optional[str]], Choice] = {}
        self._logged: set[str] = set()
        self.taken: Optional[dict] = None

    def choice(
        self, flag: str, conflict: Optional[str] = None, missing: Optional[str] = None
    ) -> Choice:
        """The choice for a value of the flag, without a log line. Raises as ``choose``."""
        key = (flag, conflict, missing)
        if key not in self._choices:
            self._choices[key] = choose(
                self.name,
                flag,
                current_device(),
                conflict=conflict,
                missing=missing,
                **self._limits,
            )
        return self._choices[key]

    def active(
        self, flag: str, conflict: Optional[str] = None, missing: Optional[str] = None
    ) -> bool:
        """Whether our path runs; the first answer is logged. Raises as ``choose``."""
        choice = self.choice(flag, conflict, missing)
        path = self._ours if choice.active else self._instead
        self._say(f"{path} ({choice.reason})", choice.active)
        return choice.active

    def idle(self, why: str) -> None:
        """Log, once, that this process has nothing to choose for the flag, and why."""
        self._say(f"nothing to do ({why})", None)

    def _say(self, path: str, ours: Optional[bool]) -> None:
        if path not in self._logged:
            self._logged.add(path)
            logger.info("sm_120 %s: %s", self._what, path)
            # What a server that is asked tells: the line, and whether it is our path.
            self.taken = {"path": f"{self._what}: {path}", "ours": ours}
