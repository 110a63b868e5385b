"""Whether two servers decode the same tokens, as far as kernels that round otherwise can.

Each patch may add in another order, and the two best tokens of random weights are close in most places.
So a row may part from that of the server below where that one held both tokens level, and is followed no
further; up to there the tokens must be equal. The bound was chosen before anything was measured: logits
around 16 are 0.125 apart in bfloat16, and two may be off by one such step each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .agreement import Said, first_difference

# In log-probability.
LEVEL = 0.25


@dataclass(frozen=True)
class Rows:
    """Rows of two servers, compared.

    Attributes:
        equal: rows without a difference. level: rows that part where the server below holds both tokens
            level. wrong: the other ones, by how much it prefers its own token there, at most.
        places, level_places: the places that were compared, and those of them where the two best
            tokens of the server below are level, where a difference would be passed over.
        apart: the largest difference of a token's log-probability before a row parts.
    """

    equal: int
    level: int
    wrong: tuple[float, ...]
    places: int
    level_places: int
    apart: float

    @property
    def count(self) -> int:
        return self.equal + self.level + len(self.wrong)

    def line(self) -> str:
        """One phrase for a person."""
        return (
            f"{self.equal} of {self.count} rows equal, {self.level} part at level tokens, "
            f"{len(self.wrong)} elsewhere; {self.level_places} of {self.places} places are level; "
            f"log-probabilities {self.apart:.3f} apart at most"
        )


def compare(pairs: Iterable[tuple[Said, Said]]) -> Rows:
    """Rows of a server with those of the server below."""
    equal, level, wrong, places, level_places, apart = 0, 0, [], 0, 0, 0.0
    for mine, below in pairs:
        at = first_difference(mine, below)
        seen = min(at + 1, len(below.ids))
        places += seen
        level_places += sum(_lead(best) < LEVEL for best in below.best[:seen])
        for a, b in zip(mine.best[:at], below.best[:at]):
            apart = max([apart, *(abs(a[token] - b[token]) for token in a.keys() & b)])
        if at == len(below.ids):
            equal += 1
            continue
        preferred = below.best[at][below.ids[at]]
        lead = preferred - below.best[at].get(mine.ids[at], float("-inf"))
        if lead < LEVEL:
            level += 1
        else:
            wrong.append(lead)
    return Rows(equal, level, tuple(wrong), places, level_places, apart)


def as_json(rows: Iterable[Said]) -> list[dict]:
    """Rows for a raw file: the tokens, and at each place the best ones with their log-probabilities."""
    return [
        {
            "ids": list(row.ids),
            "best": [
                [[token, round(value, 4)] for token, value in place.items()]
                for place in row.best
            ],
        }
        for row in rows
    ]


def of_json(rows: Iterable[Mapping]) -> list[Said]:
    """The rows of a raw file."""
    return [
        Said(tuple(row["ids"]), tuple(dict(map(tuple, place)) for place in row["best"]))
        for row in rows
    ]


def _lead(best: Mapping[int, float]) -> float:
    first, second = sorted(best.values(), reverse=True)[:2]
    return first - second
