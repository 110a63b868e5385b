"""Which figures of a measurement are other ones than before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def lines(old: Mapping, new: Mapping) -> list[str]:
    """A line for each figure that moved, and for each verdict on the answers: from what to what."""
    pairs = [
        *_moved("", old["result"], new["result"]),
        *_moved("correctness.", old["correctness"] or {}, new["correctness"] or {}),
    ]
    return [f"{name} from {before} to {after}" for name, before, after in pairs]


def _moved(above: str, old: Mapping, new: Mapping) -> Iterator[tuple[str, str, str]]:
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) or isinstance(after, Mapping):
            yield from _moved(f"{above}{key}.", before or {}, after or {})
        elif before != after:
            yield f"{above}{key}", _shown(before), _shown(after)


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
