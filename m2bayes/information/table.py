"""What measurements are worth, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from m2bayes.information.voi import BEYOND
from m2bayes.information.worth import SHARE, USD, pays
from m2bayes.layout import GAP, columns, wrapped
from m2bayes.tables import share

UNSURE = 3  # measurements listed where none is worth more than its error


def table(found: Mapping[str, Any], *, most: int = 12) -> str:
    """Text of what `worth` found: the choice as it stands, the best measurements, and a sequence.

    Parameters
    ----------
    found : mapping
        From `worth`.
    most : int
        Measurements listed; the rest is in the JSON [1].
    """
    units = found["units"]
    head = (
        f"{found['metric']}: {found['verdict']}; {found['choice']} has the least expected regret "
        f"(p_best {share(found['p_best'])}); knowing everything is worth "
        f"{_amount(found['evpi'], units)}"
    )
    return f"{wrapped(head, GAP)}\n{worth_table(found, most=most)}"


def worth_table(found: Mapping[str, Any], *, most: int = 12) -> str:
    """Text of measurements with their values, and of a sequence of them.

    Parameters
    ----------
    found : mapping
        From `worth` or `worth_to_plan`.
    most : int
        Measurements listed [1]: those worth more than their error, or else what resolves most.
    """
    units, every = found["units"], found["candidates"]
    worthy = [row for row in every if row["evsi"] > BEYOND * row["evsi_mcse"]]
    listed = (worthy or every[:UNSURE])[:most]
    rows = [
        {
            "measurement": row["measurement"],
            "value": _amount(row["evsi"], units),
            "± MCSE": _amount(row["evsi_mcse"], units),
            "changes choice": share(row["p_change"]),
            "resolves": share(row["resolved"]),
            "GPU h": f"{row['gpu_hours']:g}",
        }
        | ({"net": _amount(row["net"], units)} if row["net"] is not None else {})
        for row in listed
    ]
    left = [
        f"  {count} more {'is' if count == 1 else 'are'} worth {what}"
        for count, what in (
            (len(worthy) - len(listed), "less"),
            (len(every) - max(len(worthy), len(listed)), "nothing beyond the error"),
        )
        if count > 0
    ]
    steps = [
        {
            "together": str(i + 1),
            "value": _amount(step["evsi"], units),
            "± MCSE": _amount(step["evsi_mcse"], units),
            "measurement added": step["measurement"],
        }
        for i, step in enumerate(found["sequence"])
    ]
    if not any(step["evsi"] > BEYOND * step["evsi_mcse"] for step in found["sequence"]):
        steps = []  # a sequence of nothing
    blocks = [columns(held, GAP) for held in (rows, steps) if held]
    blocks[:1] = ["\n".join([*blocks[:1], *left])]
    return "\n\n".join(blocks)


def _amount(value: float | None, units: str) -> str:
    if value is None:
        return "-"
    if units == SHARE:
        return f"{100 * value:.3f} %"
    return f"{value:,.0f} USD" if units == USD else f"{value:.3f} {units}"


def advice(found: Mapping[str, Any]) -> Iterator[str]:
    """Say when to stop, how to take what is worth taking, and how to use it."""
    if found["stop"]:
        yield (
            "stop: no single measurement, nor those together, are worth more than their error, "
            f"their cost, or {found['least']:.3g} {found['units']}; choose {found['choice']}"
        )
        return
    taken, steps = found["candidates"][:1], found["sequence"]
    if not pays(taken[0], found["least"]):
        needed = next(i for i, row in enumerate(steps) if pays(row, found["least"])) + 1
        taken = steps[:needed]
        yield f"none is worth taking alone, {needed} together are"
    for row in taken:
        yield f"take it: {row['command']}"
    kinds = {"step" if row["kind"] == "step" else "kernel" for row in taken}
    if "step" in kinds:
        yield "use it: m2bayes rank … --calibrate steps.csv (sku, workload, step_time in s)"
    if "kernel" in kinds:
        yield "use it: m2bayes update POSTERIOR FILE.csv --out DIR, then rank --posterior DIR/…"
