"""What measurements are worth, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from m2bayes.information.candidates import DECODED
from m2bayes.information.voi import BEYOND
from m2bayes.information.worth import SHARE, USD, pays
from m2bayes.layout import GAP, columns, wrapped
from m2bayes.tables import error, share

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
    of = f" of {found['metric']}" if units == SHARE else " a year" * (units == USD)
    head = (
        f"{found['metric']}: {found['verdict']}; {found['choice']} has the least expected regret "
        f"(p_best {share(found['p_best'])}); knowing everything is worth "
        f"{_amount(found['evpi'], units)}{of}"
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
    every, steps = found["candidates"], found["sequence"]
    worthy = [row for row in every if _worthy(row)]
    if found.get("verdict") == "clear" and not any(map(_worthy, (*every, *steps))):
        return wrapped(f"  none of {len(every)} measurements is worth more than its error", GAP)
    listed = worthy[:most] or every[:UNSURE]
    rows = [_valued(row, found["units"]) if worthy else _resolving(row) for row in listed]
    alone = "  none is worth more than its error alone; what resolves most of the open choice:"
    lines = [] if worthy else [wrapped(alone, GAP)]
    left = [
        f"  {count} more {'is' if count == 1 else 'are'} worth {what}"
        for count, what in (
            (len(worthy) - len(listed), "less"),
            ((len(every) - len(worthy)) * bool(worthy), "nothing beyond the error"),
        )
        if count > 0
    ]
    blocks = ["\n".join([*lines, columns(rows, GAP), *left])]
    if any(map(_worthy, steps)):
        held = [_together(i, steps, found["units"]) for i in range(len(steps))]
        blocks.append(columns(held, GAP))
    return "\n\n".join(blocks)


def _worthy(row: Mapping[str, Any]) -> bool:
    """Whether a value exceeds its error."""
    return bool(row["evsi"] > BEYOND * row["evsi_mcse"])


def _valued(row: Mapping[str, Any], units: str) -> dict[str, str]:
    """One measurement; what it resolves gives way to its value net of cost."""
    last = {"resolves": share(row["resolved"])}
    if row["net"] is not None:
        last = {"net": _amount(row["net"], units)}
    return {
        "measurement": row["measurement"],
        "value ± error": _with_error(row, units),
        "changes choice": share(row["p_change"]),
        **last,
        "GPU h": f"{row['gpu_hours']:g}",
    }


def _resolving(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "measurement": row["measurement"],
        "resolves": share(row["resolved"]),
        "GPU h": f"{row['gpu_hours']:g}",
    }


def _together(at: int, steps: Sequence[Mapping[str, Any]], units: str) -> dict[str, str]:
    """One line of the sequence: what the measurements so far are worth."""
    value = _with_error(steps[at], units) if _worthy(steps[at]) else "-"
    added = steps[at]["measurement"]
    return {"together": str(at + 1), "value ± error": value, "measurement added": added}


def _with_error(row: Mapping[str, Any], units: str) -> str:
    return error(_amount(row["evsi"], units), _amount(row["evsi_mcse"], units))


def _amount(value: float | None, units: str) -> str:
    if value is None:
        return "-"
    if units == SHARE:
        return f"{100 * value:.3f} %"
    return f"{value:,.0f} USD" if units == USD else f"{value:.3f} {units}"


def advice(found: Mapping[str, Any]) -> Iterator[str]:
    """Say when to stop, how to take what is worth taking, and how to use it."""
    if found["stop"]:
        of = f" of {found['metric']}" if found["units"] == SHARE else " a year"
        yield (
            "stop: no single measurement, nor those together, are worth more than their error, "
            f"their cost, or {_amount(found['least'], found['units'])}{of}; choose "
            f"{found['choice']}"
        )
        return
    taken, steps = found["candidates"][:1], found["sequence"]
    if not pays(taken[0], found["least"]):
        needed = next(i for i, row in enumerate(steps) if pays(row, found["least"])) + 1
        taken = steps[:needed]
        yield f"none is worth taking alone, {needed} together are"
    for row in taken:
        yield f"take it: {row['command']}"
        if row["kind"] == "step":
            yield _noted(row)
    kinds = {"step" if row["kind"] == "step" else "kernel" for row in taken}
    if "step" in kinds:
        yield "use it: m2bayes rank … --calibrate steps.csv"
    if "kernel" in kinds:
        yield "use it: m2bayes update POSTERIOR FILE.csv --out DIR, then rank --posterior DIR/…"


def _noted(row: Mapping[str, Any]) -> str:
    """How a timed step becomes a row of the file that --calibrate reads."""
    workload, _, where = row["measurement"].partition(" on ")
    tp = where.partition(" at TP ")[2]
    time = "what it took [s]" if "context" in workload else "avg_latency of run.json [s]"
    if not workload.startswith("prefill"):
        time = (
            f"(avg_latency of run.json less that of a second run with --output-len 1) / {DECODED} "
            "[s]"
        )
    return (
        f"note it in steps.csv, columns sku,workload,step_time{',tp' * bool(tp)}: "
        f'{row["sku"]},"{workload}",T{f",{tp}" * bool(tp)} with T = {time}'
    )
