"""The time of decode steps of running servers that take turns, and the GPU's own part of it.

What is measured is a dictionary, which is kept after each measurement:

    date, machine, notes  when, where, and what the user wants kept with the figures
    load                  input_tokens, output_tokens of each number of rows, seed, reps
    arms                  name, against, build, settings, model: as each server tells; told_by "tree"
                          where the build is that of the tree that it was started from
    runs                  arm, rows, rep (0 warms up), times in seconds, step_ms, tok_s
    answers               arm, rows, said: tokens and the best ones at each place, of as many
                          lists as 16 rows need
    profiles              arm, rows, turn, busy_us and period_us of each step, kernels: place in
                          kernel_names, microseconds that they ran in a step, of busy_us, calls
    kernel_names          the names of kernels
    failed                arm, what, where, next: an arm that failed is not measured any more; next is
                          what helps it (older files have none)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import agreement, decodelist, serverbuild, serverfacts, stepprofile
from .askserver import Server
from .errors import Exit, Failure
from .gputrace import Profile
from .series import Series
from .servingbench import Arm
from .stepsummary import steps_ms

# Of so many tokens, for each number of rows, the best ones are kept; of few, a quarter is chance.
_ANSWERED = 256
_LEAST_ANSWERS = 16
_AGAIN = "then measure all arms together again, into a new file: --out FILE"


@dataclass(frozen=True)
class Load:
    """What each arm is given.

    Attributes:
        rows: the prompts of a list -> the tokens that are decoded after each.
        input_tokens: of a prompt. reps: how often each list is timed; one more before warms up.
        profiled: the arms that are profiled -> how often. steps: of each time.
    """

    rows: Mapping[int, int]
    input_tokens: int
    reps: int
    seed: int = 1
    profiled: Mapping[str, int] = field(default_factory=dict)
    steps: int = 14

    def as_json(self) -> dict:
        """What a raw file tells of it."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": {str(rows): n for rows, n in self.rows.items()},
            "reps": self.reps,
            "seed": self.seed,
        }


class StepBench:
    """Measures arms; `result` has what was measured so far, and keep is called with it after each time."""

    def __init__(
        self,
        servers: Mapping[str, Server],
        load: Load,
        result: dict,
        keep: Callable[[dict], None],
        say: Callable[[str], None],
    ):
        self._servers = dict(servers)
        self._load = load
        self._keep = keep
        self._say = say
        self.result = result | {
            "load": load.as_json(),
            **{name: [] for name in ("runs", "answers", "profiles", "kernel_names")},
            "failed": [],
        }

    def run(self, told: Callable[[str], dict]) -> None:
        """Time every arm, ask it for tokens, profile it.

        told(name) gives what a server says of itself, once it has decoded. Raises Failure(SERVER) at the
        end when an arm failed: it was left out from there on.
        """
        self._keep(self.result)
        self._rep(0)
        for arm in self.result["arms"]:
            if arm["name"] in self._servers:
                self._guarded(arm["name"], lambda: arm.update(told(arm["name"])))
        for rows in self._load.rows:
            for name in self._alive(0):
                self._guarded(name, lambda: self._answer(name, rows))
        for rep in range(1, self._load.reps + 1):
            self._rep(rep)
        for turn in range(max(self._load.profiled.values(), default=0)):
            self._profile_all(turn)
        if self.result["failed"]:
            raise self._failure()

    def _rep(self, rep: int) -> None:
        for rows in self._load.rows:
            for name in self._alive(rep):
                self._guarded(name, lambda: self._time(name, rows, rep))
        self._say(f"round {rep} of {self._load.reps}" if rep else "warm-up")

    def _profile_all(self, turn: int) -> None:
        for rows in self._load.rows:
            for name in self._alive(turn):
                if turn < self._load.profiled.get(name, 0):
                    self._guarded(name, lambda: self._profile(name, rows, turn))
        self._say(f"profiles, {turn + 1} of {max(self._load.profiled.values())}")

    def _alive(self, turn: int) -> list[str]:
        """The arms that have not failed; every other turn goes the other way round."""
        names = list(self._servers)
        return names if turn % 2 else names[::-1]

    def _guarded(self, name: str, measure: Callable[[], None]) -> None:
        if name not in self._servers:
            return
        try:
            measure()
        except Failure as failure:
            del self._servers[name]
            self.result["failed"].append(
                {
                    "arm": name,
                    "what": failure.what,
                    "where": failure.where,
                    "next": failure.next,
                }
            )
            self._say(f"{name} FAILED and is left out: {failure.what}")
        self._keep(self.result)

    def _time(self, name: str, rows: int, rep: int) -> None:
        asked = self._prompts(rows, rep)
        timed = decodelist.decode(self._servers[name], asked, self._load.rows[rows])
        run = {"arm": name, "rows": rows, "rep": rep}
        self.result["runs"].append(run | timed.as_json())

    def _answer(self, name: str, rows: int) -> None:
        said = []
        tokens = max(1, _ANSWERED // max(rows, _LEAST_ANSWERS))
        while len(said) < _LEAST_ANSWERS:
            # Prompts that no round has.
            asked = self._prompts(rows, -1 - len(said))
            said += agreement.greedy(self._servers[name], asked, tokens)
        answer = {"arm": name, "rows": rows, "said": [each.as_json() for each in said]}
        self.result["answers"].append(answer)

    def _profile(self, name: str, rows: int, turn: int) -> None:
        step_s = statistics.median(steps_ms(self.result, name, rows, warm=True)) / 1e3
        found = stepprofile.take(
            self._servers[name], self._prompts(rows, turn), self._load.steps, step_s
        )
        profile = {"arm": name, "rows": rows, "turn": turn}
        self.result["profiles"].append(profile | self._of_profile(found))

    def _of_profile(self, found: Profile) -> dict:
        names = self.result["kernel_names"]
        names += [name for name in found.kernels if name not in names]
        return {
            "busy_us": list(found.busy_us),
            "period_us": list(found.period_us),
            "kernels": [
                [names.index(name), *figures] for name, figures in found.kernels.items()
            ],
        }

    def _prompts(self, rows: int, rep: int) -> list[list[int]]:
        # Another list in each round, whatever a server caches; the same for every arm.
        seed = self._load.seed + rep
        return decodelist.prompts(rows, self._load.input_tokens, seed)

    def _failure(self) -> Failure:
        failed = self.result["failed"]
        told = [
            line
            for each in failed
            for line in (f"{each['arm']}: {each['what']}", each["where"])
            if line
        ]
        helps = [f"{each['arm']}: {each['next']}" for each in failed if each["next"]]
        return Failure(
            Exit.SERVER,
            f"{', '.join(each['arm'] for each in failed)} failed and could not be measured whole",
            where="\n".join(told),
            state="what was measured, of every arm, is kept",
            next="\n".join([*helps, _AGAIN]),
        )


def told(
    server: Server, arm: Arm, series: Series, checkpoints: Path, tree: Path | None
) -> dict:
    """What a server says that it is; of one that says nothing of patches, what its tree says.

    Raises Failure(SERVER) unless it is the wanted build.
    """
    info = server.get("/server_info")
    build = serverbuild.build_of(info, series, checkpoints)
    told_by = "server"
    if tree and build.state is None:
        build = serverbuild.build_in(tree, build.release, series, checkpoints)
        told_by = "tree"
    wanted = arm.build or series.patches[-1].name
    serverbuild.require(build, wanted, series, arm.asked_by)
    return {
        "build": build.as_json(),
        "told_by": told_by,
        "settings": serverfacts.settings(info),
        "model": serverfacts.model(info),
    }
