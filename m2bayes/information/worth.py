"""What to measure next: candidates with their values, in order, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes._jobs import Each, in_turn
from m2bayes.answer import answers, number, ranked
from m2bayes.errors import InfeasibleError
from m2bayes.information.candidates import (
    Candidate,
    candidates,
    contenders,
    losses,
    measurements,
    readings,
)
from m2bayes.information.voi import BEYOND, sequence, value_of_information
from m2bayes.question import Question
from m2bayes.workload import Step

SHARE, USD = "share of the metric", "USD/year"  # units of a value


def worth(
    question: Question,
    *,
    repeats: int = 5,
    count: int = 3,
    spend: float | None = None,
    prices: Mapping[str, float] | None = None,
    least: float = 0.001,
    advance: Callable[[int], None] = lambda done: None,
    each: Each = in_turn,
) -> dict[str, Any]:
    """Value every candidate measurement of a question, alone and taken together.

    Parameters
    ----------
    question : Question
        What is asked; all its workloads weigh the same in the choice.
    repeats, count : int
        Runs of each measurement, and how many may be taken together [1].
    spend : float, optional
        What the chosen GPUs cost in a year [USD]; values are then in USD a year.
    prices : mapping of float, optional
        Price of a GPU hour by SKU [USD/h]; subtracted from a value in USD.
    least : float
        Share of the metric below which a measurement is not worth taking [1].
    advance : callable
        Told after each measurement of the sequence.
    each : callable
        Where SKUs are predicted, see `m2bayes.question.step_times`.

    Returns
    -------
    dict
        ``choice``, ``p_best``, ``expected_regret`` as it stands; ``evpi``; ``candidates`` with
        ``measurement``, ``sku``, ``kind``, ``evsi``, ``evsi_mcse``, ``p_change``, ``resolved``,
        ``gpu_hours``, ``cost``, ``net`` (None without prices), ``command``, the best first;
        ``sequence``, the values of the first 1, 2, … taken together; ``stop``, whether neither
        one alone nor those together are worth taking. Values in ``units``.
    """
    # refuses what cannot be asked, and what fits nowhere
    asked = answers(question, ranked, each=each)
    loss = losses(question, each=each)
    able = loss.isel(sku=np.flatnonzero(np.isfinite(loss.values).all(axis=(0, 1))))
    if not able.sizes["sku"]:
        raise InfeasibleError(f"no SKU can serve every workload: {_unable(asked)}")
    standing = decision.rank(able, threshold=question.threshold, mass=question.mass)
    found = candidates(question, loss, repeats=repeats)
    read = readings(question, found, each=each)
    alone, together = (
        value_of_information(loss, read),
        sequence(loss, read, count, advance=advance),
    )
    scale = 1.0 if spend is None else spend
    paid = prices if spend else None
    rows = [_row(question, c, alone.isel(candidate=i), scale, paid) for i, c in enumerate(found)]
    rows.sort(key=_order, reverse=True)
    steps = _steps_of(question, together, found, scale, paid)
    choice = str(standing["choice"].item())
    return {
        "llm": question.llm.name if question.llm else None,
        "workloads": [w.label for w in question.workloads],
        "metric": question.metric,
        "posterior": question.source,
        "units": SHARE if spend is None else USD,
        "choice": choice,
        "p_best": float(standing["p_best"].sel(sku=choice)),
        "verdict": str(standing["verdict"].item()),
        "verdicts": {e["workload"]: e["verdict"] for e in asked},
        "evpi": float(alone["evpi"]) * scale,
        "evpi_mcse": float(alone["evpi_mcse"]) * scale,
        "candidates": rows,
        "sequence": steps,
        "least": least * scale,
        "stop": not any(pays(row, least * scale) for row in (*rows[:1], *steps)),
    }


def pays(row: Mapping[str, Any], least: float) -> bool:
    """Whether one of the ``candidates`` or of the ``sequence`` is worth taking.

    Parameters
    ----------
    row : mapping
        From `worth`.
    least : float
        What it must be worth at least, beside its error and its cost [units of its value].
    """
    enough = row["evsi"] >= max(least, BEYOND * row["evsi_mcse"])
    return bool(enough and (row["net"] is None or row["net"] > 0))


def _unable(asked: Sequence[Mapping[str, Any]]) -> str:
    """The last workload that each SKU cannot serve, and why."""
    cases = ((entry["workload"], s) for entry in asked for s in entry["skus"] if not s["fits"])
    return "; ".join({s["sku"]: f"{s['sku']} {w}: {s['reason']}" for w, s in cases}.values())


def _order(row: Mapping[str, Any]) -> tuple[float, float]:
    """What is worth more than its error first, by value net of cost; then what resolves most."""
    value = row["evsi"] if row["net"] is None else row["net"]
    return (value if row["evsi"] > BEYOND * row["evsi_mcse"] else 0.0, row["resolved"])


def worth_to_plan(
    question: Question,
    loss: xr.DataArray,
    where: Mapping[str, tuple[str, int]],
    steps: Mapping[int, Sequence[Step]],
    *,
    units: str = USD,
    repeats: int = 5,
    count: int = 3,
) -> dict[str, Any]:
    """Value measurements that bear on the choice between fleets.

    Parameters
    ----------
    question : Question
        Of the LLM and engine; its own workloads are not looked at.
    loss : DataArray, dims (chain, draw, sku)
        What each fleet costs [USD/year, or GPUs]; ``sku`` holds its label.
    where : mapping of (str, int)
        SKU and TP of each label.
    steps : mapping of sequence of Step
        Steps that a server runs, by TP.
    units : str
        Of the loss.
    repeats, count : int
        See `worth` [1].

    Returns
    -------
    dict
        ``units``, ``evpi``, ``evpi_mcse``, ``candidates``, ``sequence``: as from `worth`.
    """
    found, parts = list[Candidate](), []
    able = [where[label] for label in contenders(loss)]
    for tp in sorted({tp for _, tp in able}):
        skus = list(dict.fromkeys(sku for sku, own in able if own == tp))
        sheets = question.datasheets.sel(sku=skus)
        own = replace(question, tp=tp, workloads=list(steps[tp]), datasheets=sheets)
        known = {c.label for c in found}
        new = [c for c in measurements(own, skus, repeats=repeats) if c.label not in known]
        found += new
        parts.append(readings(own, new))
    read = xr.concat(parts, dim="candidate")
    alone, together = value_of_information(loss, read), sequence(loss, read, count)
    rows = [_row(question, c, alone.isel(candidate=i), 1.0, None) for i, c in enumerate(found)]
    return {
        "units": units,
        "evpi": float(alone["evpi"]),
        "evpi_mcse": float(alone["evpi_mcse"]),
        "candidates": sorted(rows, key=_order, reverse=True),
        "sequence": _steps_of(question, together, found, 1.0, None),
    }


def _steps_of(
    question: Question,
    together: xr.Dataset,
    found: Sequence[Candidate],
    scale: float,
    prices: Mapping[str, float] | None,
) -> list[dict[str, Any]]:
    """Rows of a sequence; hours, cost and net value are those of all so far."""
    by_label, steps = {c.label: c for c in found}, list[dict[str, Any]]()
    hours, cost = 0.0, None if prices is None else 0.0
    for i, label in enumerate(together["candidate"].values):
        row = _row(question, by_label[str(label)], together.isel(candidate=i), scale, prices)
        hours += row["gpu_hours"]
        cost = None if cost is None or row["cost"] is None else cost + row["cost"]
        net = None if cost is None else number(row["evsi"] - cost)
        steps.append(row | {"gpu_hours": hours, "cost": cost, "net": net})
    return steps


def _values(held: Any, scale: float) -> dict[str, float]:
    return {
        "evsi": float(held["evsi"]) * scale,
        "evsi_mcse": float(held["evsi_mcse"]) * scale,
        "p_change": float(held["p_change"]),
        "resolved": float(held["resolved"]),
    }


def _row(
    question: Question,
    candidate: Candidate,
    held: Any,
    scale: float,
    prices: Mapping[str, float] | None,
) -> dict[str, Any]:
    values = _values(held, scale)
    price = (prices or {}).get(candidate.sku)
    cost = None if price is None else price * candidate.hours
    return {
        "measurement": candidate.label,
        "sku": candidate.sku,
        "kind": candidate.kind,
        **values,
        "gpu_hours": candidate.hours,
        "cost": cost,
        "net": None if cost is None else number(values["evsi"] - cost),
        "command": candidate.command(question.llm),
    }
