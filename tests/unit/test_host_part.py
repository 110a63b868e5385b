"""What docs/ladder.md says of the part of a step that is the host's, against the raw files."""

from __future__ import annotations

import statistics

from measured_steps import ROOT, WHOLE, busy, raw, steps, waits_for_the_host

STATED = " ".join((ROOT / "docs/ladder.md").read_text().split())
FOUR_LAYERS = ("8k", "128k", "upper")


def host_ms(made: dict, arm: str) -> float | None:
    """A step of 64 rows as timed less the GPU's own time; nothing where no profile was taken."""
    own = busy(made, arm, 64)
    return statistics.median(steps(made, arm, 64)) - own / 1e3 if own else None


def test_how_long_the_host_is():
    parts: dict[bool, list[float]] = {True: [], False: []}
    for made in map(raw, FOUR_LAYERS):
        for arm in (each["name"] for each in made["arms"]):
            if (part := host_ms(made, arm)) is not None:
                parts[waits_for_the_host(arm)].append(part)
    deep = [host_ms(raw("43"), arm) for arm in WHOLE]
    assert (
        "is {:.2f} to {:.2f} ms from 0060 on, {:.2f} to {:.2f} ms below and {:.2f} to {:.2f} ms "
        "of 43 layers".format(
            *(end(each) for each in (*parts.values(), deep) for end in (min, max))
        )
        in STATED
    )


class Lists:
    """The lists of servers of four layers that wait for the host, each over the counted ones' median."""

    def __init__(self):
        self.warm: list[float] = []
        self.steps: list[float] = []
        self.firsts: list[float] = []
        self.rounds: list[int] = []
        self.places: list[float] = []
        self.neighbours: list[tuple[float, float]] = []
        for made in map(raw, FOUR_LAYERS):
            self._add(made)

    def _add(self, made: dict) -> None:
        waiting = [run for run in made["runs"] if waits_for_the_host(run["arm"])]
        medians = {
            (arm, rows): [
                statistics.median(
                    run[what]
                    for run in waiting
                    if (run["arm"], run["rows"]) == (arm, rows) and run["rep"]
                )
                for what in ("step_ms", "first_s")
            ]
            for arm, rows in {(run["arm"], run["rows"]) for run in waiting}
        }
        turns: dict[tuple[int, int], list[float]] = {}
        for run in waiting:
            step, first = medians[run["arm"], run["rows"]]
            if not run["rep"]:
                self.warm.append(run["step_ms"] / step)
                continue
            turns.setdefault((run["rep"], run["rows"]), []).append(
                run["step_ms"] / step
            )
            self.steps.append(run["step_ms"] / step)
            self.firsts.append(run["first_s"] / first)
            self.rounds.append(run["rep"])
        # The lists of one round and number of rows follow each other, so places are in this order too.
        for turn in turns.values():
            self.places += [at / max(1, len(turn) - 1) for at in range(len(turn))]
            self.neighbours += zip(turn, turn[1:])


def test_what_a_slow_list_goes_with():
    lists = Lists()
    together = statistics.correlation
    assert (
        "a list's step goes with none of its time to the first token (correlation "
        f"{together(lists.firsts, lists.steps):.2f}, {len(lists.steps)} lists from 0060 on), "
        f"its round ({together(lists.rounds, lists.steps):.2f}), its place in the round "
        f"({together(lists.places, lists.steps):.2f}) and the list before it "
        f"({together(*zip(*lists.neighbours)):.2f})." in STATED
    )
    assert (
        f"slower than the others ({statistics.median(lists.warm):.2f} of their median)"
        in STATED
    )
