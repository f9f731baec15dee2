"""From options to a choice of fleet: size, cost, regret, and the verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes.answer import number
from m2bayes.dominance import dominant
from m2bayes.prices import HOURS_A_YEAR
from m2bayes.serving.plan import Demand, Option
from m2bayes.serving.sizing import sized

TAIL = 0.9  # of the cost, beyond which CVaR is the mean


def fleets(
    options: Sequence[Option],
    demand: Demand,
    like: xr.Dataset,
    *,
    prices: xr.DataArray | None = None,
    factors: Mapping[str, Mapping[tuple[str, str], np.ndarray]] | None = None,
    threshold: float = 0.9,
    mass: float = 0.9,
) -> dict[str, Any]:
    """Size the fleet of each option, and choose.

    What an option costs in a draw is its fleet, and more GPUs of the same where the draw needs
    more: regret, CVaR and verdict are of that. Without prices it is counted in GPUs.

    Parameters
    ----------
    options : sequence of Option
        From `m2bayes.serving.plan.options_of`.
    demand : Demand
        What is to be served.
    like : Dataset, dims (chain, draw, …)
        Whose draws the options' are [any unit].
    prices : DataArray, dims (chain, draw, sku), optional
        Of one GPU [USD/h].
    factors : mapping, optional
        By option what its goodput depends on, see `m2bayes.dominance.dominant`.
    threshold, mass : float
        Probability of a clear verdict, and mass of the intervals [1].

    Returns
    -------
    dict
        ``results``, best first, ``choice`` (the SKU of the first), its ``verdict``,
        ``goodput_order`` and, of the choice and the next best, ``dominated_by``; ``losses``,
        draws of what each able option costs a year, dims (chain, draw, sku), or None.
    """
    rows = [sized(option, demand, mass) for option in options]
    if prices is not None:
        for row in rows:
            _price(row, prices)
    able = [i for i, row in enumerate(rows) if row["gpus"] and row["p_slo"] >= demand.confidence]
    ranked = _ranked([options[i] for i in able], [rows[i] for i in able], demand, like, prices)
    verdict, choice = "nothing fits", None
    if ranked is not None:
        result = decision.rank(ranked, threshold=threshold, mass=mass)
        verdict, choice = str(result["verdict"].item()), str(result["choice"].item())
        for i in able:
            _compared(rows[i], result, ranked)
    rows = sorted(rows, key=lambda row: _order(row, choice))
    pair = [o for row in rows[:2] for o in options if row["option"] == o.label and o.replica]
    return {
        "results": rows,
        "choice": rows[0]["sku"] if choice else None,
        "verdict": verdict,
        "goodput_order": _goodput_order(options, demand, like),
        "dominated_by": _dominated_by(pair, factors or {}),
        "losses": ranked,
    }


def _price(row: dict[str, Any], prices: xr.DataArray) -> None:
    """Add what a fleet costs on average over the range of its price."""
    if row["gpus"] is None:
        return
    hourly = row["gpus"] * float(prices.sel(sku=row["sku"]).mean())
    row["cost_per_hour"] = hourly
    row["cost_per_million_tokens"] = 1e6 * hourly / (3600 * row["tokens_per_second"])


def _ranked(
    options: Sequence[Option],
    rows: Sequence[dict[str, Any]],
    demand: Demand,
    like: xr.Dataset,
    prices: xr.DataArray | None,
) -> xr.DataArray | None:
    """Joint draws of what each option costs a year, or of its GPUs, dims (chain, draw, sku)."""
    if not options:
        return None
    sizes = [like.sizes[d] for d in ("chain", "draw")]
    columns = []
    for option, row in zip(options, rows, strict=True):
        with np.errstate(divide="ignore"):
            need = np.where(option.served > 0, np.ceil(demand.load / option.served), 0)
        gpus = option.tp * np.maximum(need, row["replicas"]).reshape(sizes)
        if demand.gpus is not None:
            gpus = np.full(sizes, float(demand.gpus))
        if prices is None:
            columns.append(gpus)
            continue
        price = prices.sel(sku=option.sku).transpose("chain", "draw").values
        columns.append(gpus * price * HOURS_A_YEAR)
    coords = {"sku": [o.label for o in options], "chain": like["chain"], "draw": like["draw"]}
    return xr.DataArray(np.stack(columns, -1), coords, ("chain", "draw", "sku"))


def _compared(row: dict[str, Any], result: xr.Dataset, cost: xr.DataArray) -> None:
    """Add cost, regret and verdict of one option beside the choice."""
    label, priced = row["option"], row["cost_per_hour"] is not None
    own, choice = result.sel(sku=label), str(result["choice"].item())
    threshold = float(result["verdict"].attrs["threshold"])
    draws = cost.sel(sku=label).values.ravel()
    worst = np.sort(draws)[int(np.floor(TAIL * len(draws))) :]
    unit = "usd_per_year" if priced else "gpus"
    row |= {
        f"expected_{unit}": float(draws.mean()),
        f"cvar_{unit}": float(worst.mean()),
        f"expected_regret_{unit}": number(own["expected_regret"]),
        f"expected_regret_{unit}_mcse": number(own["expected_regret_mcse"]),
        "relative_regret": number(own["relative_regret"]),
        "relative_regret_mcse": number(own["relative_regret_mcse"]),
        "p_best": float(own["p_best"]),
        "p_best_mcse": float(own["p_best_mcse"]),
    }
    what = "USD a year" if priced else "GPUs"
    pair = (row[f"expected_regret_{unit}"], row[f"expected_regret_{unit}_mcse"])
    lost = " ± ".join(f"{float(f'{x:.2g}'):,g}" for x in pair if x is not None) + f" {what}"
    if label == choice:
        row["verdict"] = str(result["verdict"].item())
        yearly = f"{float(draws.mean()):,.0f} USD a year expected; " if priced else ""
        if result.sizes["sku"] == 1:
            row["reason"] = f"{yearly}the only plan to choose from"
        else:
            cheapest = f"cheapest with probability {row['p_best']:.2f}"
            row["reason"] = f"{yearly}least expected regret, {lost}; {cheapest}"
        return
    beats = float((cost.sel(sku=label) < cost.sel(sku=choice)).mean())
    ties = float((cost.sel(sku=label) == cost.sel(sku=choice)).mean())
    row["reason"] = f"costs {lost} more than the best in expectation"
    if row["relative_regret"] is not None and row["relative_regret"] < decision.NEGLIGIBLE:
        row["verdict"] = "either will do"
    elif beats + ties / 2 > 1 - threshold:
        row["verdict"] = "too close to call"
        row["reason"] += f"; cheaper than the choice with probability {beats:.2f}"
    else:
        row["verdict"] = "clear"


def _order(row: dict[str, Any], choice: str | None) -> tuple[Any, ...]:
    """Best first: the choice, what costs least, then what cannot serve."""
    cost = row.get("expected_usd_per_year", row.get("expected_gpus", np.inf))
    kinds = ("infeasible SLO", "does not fit", "skipped")
    kind = kinds.index(row["verdict"]) + 1 if row["verdict"] in kinds else 0
    return (kind, row["option"] != choice, cost, -(row["p_slo"] or 0.0))


def _goodput_order(
    options: Sequence[Option], demand: Demand, like: xr.Dataset
) -> dict[str, Any] | None:
    """Options by what they serve per GPU, the most first; how sure each is ahead of the next."""
    able = [o for o in options if o.replica is not None]
    if not able:
        return None
    each = np.stack([o.served / o.tp for o in able], -1)
    order = np.argsort(-np.median(each, axis=0), kind="stable")
    ahead = [float((each[:, a] > each[:, b]).mean()) for a, b in pairwise(order)]
    whole = np.all(np.diff(each[:, order], axis=1) < 0, axis=1)
    sizes = [like.sizes[d] for d in ("chain", "draw")]
    error = decision.mcse(xr.DataArray(whole.reshape(sizes).astype(float), dims=("chain", "draw")))
    return {
        "options": [able[i].label for i in order],
        "p_ahead_of_next": ahead,
        "p_order": float(whole.mean()),
        "p_order_mcse": float(error),
    }


def _dominated_by(
    pair: Sequence[Option], factors: Mapping[str, Mapping[tuple[str, str], np.ndarray]]
) -> list[dict[str, Any]]:
    """Factors that the uncertainty of the goodput of the best over the next comes from."""
    if not pair:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(pair[0].served)
        if len(pair) > 1:
            ratio = ratio - np.log(pair[1].served)
    known = {k: v for option in pair for k, v in factors.get(option.label, {}).items()}
    return dominant(np.where(np.isfinite(ratio), ratio, np.nan), known)
