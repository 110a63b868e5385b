"""The smoke test: checks of a running server, one after the other, none of which can pass unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .askserver import Server, Unreachable
from .chat import failure
from .errors import Exit, Failure
from .listing import counted

ARCHITECTURE = "DeepseekV4ForCausalLM"


@dataclass(frozen=True)
class Check:
    """One check: its name and the function that gives a detail for the report or raises Failure.

    essential: the checks after it mean nothing when it fails.
    """

    name: str
    run: Callable[[], str]
    essential: bool = False


@dataclass(frozen=True)
class Outcome:
    """What one check gave."""

    name: str
    seconds: float
    detail: str
    failure: Failure | None = None

    def as_json(self) -> dict:
        """The same facts for a script."""
        return {
            "check": self.name,
            "ok": self.failure is None,
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
            "failure": self.failure.as_json() if self.failure else None,
        }


def run(
    checks: Sequence[Check],
    say: Callable[[str], None],
    begin: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run the checks in order; each outcome is said as it comes, and begin is called before each.

    Stops after an essential check that failed, and when the server can't be reached any more.
    """
    outcomes = []
    width = max(len(check.name) for check in checks)
    for check in checks:
        begin()
        outcome = _outcome(check)
        outcomes.append(outcome)
        word = "FAILED" if outcome.failure else "ok"
        say(
            f"{word:<7} {check.name.ljust(width)} {outcome.seconds:6.1f} s  {outcome.detail}"
        )
        if outcome.failure and (
            check.essential or isinstance(outcome.failure, Unreachable)
        ):
            break
    return outcomes


def require_all(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> None:
    """Raise Failure(SERVER) unless every check ran and passed."""
    failed = [outcome for outcome in outcomes if outcome.failure]
    left = [check.name for check in checks[len(outcomes) :]]
    not_run = f"; not run: {', '.join(left)}" if left else ""
    if len(failed) == 1:
        only = failed[0].failure
        raise Failure(
            Exit.SERVER,
            f"smoke failed at {failed[0].name!r}: {only.what}{not_run}",
            where=only.where,
            state=only.state,
            next=only.next,
        )
    if failed or left:
        told = [f"{outcome.name}: {outcome.failure.what}" for outcome in failed]
        raise Failure(
            Exit.SERVER,
            f"smoke failed: {len(failed)} of {counted(outcomes, 'check')}{not_run}",
            where="\n".join(told),
            state="the server was only asked; nothing was changed",
            next=failed[0].failure.next if failed else "run it again",
        )


def served_model(server: Server, wanted: str | None) -> str:
    """The name that the server's model is asked by.

    Raises Failure(SERVER) when it serves another model than DeepSeek-V4, or none named wanted.
    """
    info = server.get("/model_info") or {}
    found = info.get("architectures") or []
    if ARCHITECTURE not in found:
        raise failure(
            f"wrong model: {info.get('model_path')} is {', '.join(found) or 'of no known kind'}, "
            f"and the patches are for {ARCHITECTURE}",
            f"serve DeepSeek-V4, or name another address with {server.option}",
        )
    names = [each["id"] for each in (server.get("/v1/models") or {}).get("data", [])]
    if wanted and wanted not in names:
        raise failure(
            f"wrong model: {wanted} is not served here, only {', '.join(names) or 'nothing'}",
            f"ask for what is served: --model {names[0]}" if names else "restart it",
        )
    if not names:
        raise failure("/v1/models names no model", "restart the server")
    return wanted or names[0]


def alive(server: Server) -> str:
    """Raise Failure(SERVER) unless /health says so."""
    server.get("/health")
    return server.url


def _outcome(check: Check) -> Outcome:
    start = time.monotonic()
    try:
        detail, failed = check.run(), None
    except Failure as error:
        detail, failed = error.what, error
    return Outcome(check.name, time.monotonic() - start, detail, failed)
