"""The campaign that this project carries on: its figures as they were reported, none measured here."""

from __future__ import annotations

from collections.abc import Mapping

from . import chart, rows

CHART = "ci/checkpoints/campaign.svg"
LOADS = ("C=1", "C=16", "C=64")
_BASELINE, _KERNELS, _CAPPED = (
    "0001-campaign-simt-baseline",
    "0003-campaign-split-k-bf16",
    "0004-campaign-context-8k",
)

_HEADER = """## Reported by the campaign

Not measured here. tok/s of {count} x {gpu}, {model}; the context is the configured one. What was not kept is `none`.

![tok/s over the campaign's checkpoints]({chart})

"""


def of(known: Mapping[str, Mapping]) -> list[tuple[str, Mapping]]:
    """The campaign's measurements of speed with the ids of their records, in order."""
    return [
        (id, each)
        for id, record in known.items()
        for each in record["measurements"]
        if each["reader"] == "campaign" and each["result"]["unit"] == "tok/s"
    ]


def section(known: Mapping[str, Mapping]) -> str:
    """The part of CHECKPOINTS.md; empty where there are no such records."""
    reported = of(known)
    if not reported:
        return ""
    first = reported[0][1]
    head = _HEADER.format(**first["machine"], model=first["model"]["id"], chart=CHART)
    table = [("record", "what", "context", *LOADS, "commit")]
    for id, each in reported:
        result = each["result"]
        table.append(
            (
                f"[{id}](ci/checkpoints/{id}.json)",
                each["what"],
                result["context"] or "none",
                *(_figure(result, load) for load in LOADS),
                f"`{each['commit']}`" if each["commit"] else "none",
            )
        )
    parts = [head + rows.table(table), _parts(dict(reported)), _profiles(known)]
    return "\n".join(part for part in parts if part)


def drawn(known: Mapping[str, Mapping]) -> str | None:
    """The SVG of the campaign's figures, one line for each load; None where there are none."""
    reported = of(known)
    if not reported:
        return None
    names = [each["what"] for _, each in reported]
    lines = {
        load: [each["result"]["figures"].get(load) for _, each in reported]
        for load in LOADS
    }
    return chart.draw("tok/s over checkpoints, as reported (log scale)", names, lines)


def _figure(result: Mapping, load: str) -> str:
    value = result["figures"].get(load)
    if value is None:
        return "none"
    return f"{value:g}{' (derived)' if load in result['derived'] else ''}"


def _parts(reported: Mapping[str, Mapping]) -> str:
    """What the kernels and what the cap gave of the whole, which a single number would hide."""
    if not {_BASELINE, _KERNELS, _CAPPED} <= reported.keys():
        return ""
    base, kernels, capped = (
        reported[id]["result"]["figures"]["C=64"]
        for id in (_BASELINE, _KERNELS, _CAPPED)
    )
    return (
        f"At C=64 the whole is {rows.times(capped / base)} ({base:g} to {capped:g}): the kernels gave"
        f" {kernels / base:.2f}x ({base:g} to {kernels:g}), and capping the context at 8K"
        f" {capped / kernels:.2f}x ({kernels:g} to {capped:g}).\n"
    )


def _profiles(known: Mapping[str, Mapping]) -> str:
    shares = [
        f"{what} {share:g} %"
        for record in known.values()
        for each in record["measurements"]
        if each["reader"] == "campaign" and each["result"]["unit"] == "% of GPU time"
        for what, share in each["result"]["figures"].items()
    ]
    return (
        f"Shares of GPU time in its profiles: {', '.join(shares)}.\n" if shares else ""
    )
