"""Size of a fleet: how many GPUs, how surely they keep to the targets, what they do all day."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes.answer import number
from m2bayes.serving.plan import Demand, Option, replicas_needed, steady, tokens_per_second

NEAR, REFUSED = 0.95, 0.05  # utilisation and its probability from which a mean wait is refused
LEVELS = (0.5, 0.9, 0.99)  # of requests, whose times are told
AROUND = 2  # replicas more and less whose P(SLO) is told


def sized(option: Option, demand: Demand, mass: float) -> dict[str, Any]:
    """Fleet of one option: its size, how surely it keeps to the targets, what it does.

    Parameters
    ----------
    option : Option
        From `m2bayes.serving.plan.options_of`.
    demand : Demand
        What is to be served.
    mass : float
        Of the intervals [1].

    Returns
    -------
    dict
        As it stands in the results; ``gpus`` is None where no fleet is.
    """
    row: dict[str, Any] = {
        "sku": option.sku,
        "tp": option.tp,
        "gpus": None,
        "replicas": None,
        "p_slo": 0.0,
        "p_slo_mcse": None,
        "cost_per_hour": None,
        "cost_per_million_tokens": None,
        "p_saturated": None,
        "verdict": "",
        "reason": option.reason,
        "option": option.label,
    }
    if option.replica is None:
        skipped = option.reason.startswith("skipped")
        verdict = "skipped" if skipped else "does not fit"
        return row | {"p_slo": None if skipped else 0.0, "verdict": verdict}
    row["sequences"] = _interval(option.sequences, mass)
    goods = option.served / (option.tp if demand.users is None else 1)
    row["goodput_per_gpu" if demand.users is None else "users_per_replica"] = _interval(goods, mass)
    replicas = replicas_needed(option.served, demand.load, demand.confidence)
    if demand.gpus is not None:
        replicas, rest = divmod(demand.gpus, option.tp)
        if rest or not replicas:
            row["reason"] = f"skipped: {demand.gpus} GPUs are no replicas of {option.tp}"
            return row | {"verdict": "skipped"}
    if replicas is None:
        most = float((option.served > 0).mean())
        row |= {"p_slo": most, "verdict": "infeasible SLO", "reason": _missed(option, demand)}
        return row
    row |= _sizes(option, demand, replicas, mass) | _running(option, demand, replicas, mass)
    if row["p_slo"] < demand.confidence:  # a fleet that was given
        row |= {
            "verdict": "infeasible SLO",
            "reason": f"keeps to the targets with probability {row['p_slo']:.2f}; "
            + _missing(row, demand),
        }
    return row


def _sizes(option: Option, demand: Demand, replicas: int, mass: float) -> dict[str, Any]:
    """P(SLO) of the fleet and of others near its size; the sizes that draws need."""

    def fleet(number: int) -> dict[str, Any]:
        kept = option.served >= demand.load / number * (1 - 1e-12)
        return {
            "gpus": number * option.tp,
            "p_slo": float(kept.mean()),
            "p_slo_mcse": _error(kept),
        }

    near = range(max(1, replicas - AROUND), replicas + AROUND + 1)
    with np.errstate(divide="ignore"):
        need = np.sort(option.tp * np.ceil(demand.load / option.served * (1 - 1e-12)))
    ends = [need[int(share * (len(need) - 1))] for share in ((1 - mass) / 2, (1 + mass) / 2)]
    interval = {"low": number(ends[0]), "high": number(ends[1])}
    return fleet(replicas) | {"gpus_interval": interval, "curve": [fleet(n) for n in near]}


def _running(option: Option, demand: Demand, replicas: int, mass: float) -> dict[str, Any]:
    """What a fleet of so many replicas does."""
    state = steady(option, demand, replicas)
    full = state.utilisation > 1
    near = float((state.utilisation > NEAR).mean()) if demand.users is None else 0.0
    times: dict[str, dict[str, Any]] = {
        name: {
            f"p{100 * level:g}": _interval(getattr(state, name)(level)[~full], mass)
            for level in dict.fromkeys((*LEVELS, demand.level))
        }
        for name in ("ttft", "tpot")
    }
    times["ttft"]["mean"] = None if near > REFUSED else number(state.mean_ttft()[~full].mean())
    return {
        "replicas": replicas,
        "p_ttft": _kept(state.ttft_tail, demand.ttft, demand.level, len(full)),
        "p_tpot": _kept(state.tpot_tail, demand.tpot, demand.level, len(full)),
        "p_saturated": float(full.mean()),
        "p_near_saturation": near,
        "utilisation": _interval(state.utilisation, mass) if demand.users is None else None,
        "batch": _interval(state.batch[~full], mass),
        "tokens_per_second": tokens_per_second(option, demand, replicas),
        **times,
    }


def _kept(tail: Any, target: float, level: float, draws: int) -> float | None:
    """Probability that enough requests keep to one target [1]; None where there is none."""
    if not np.isfinite(target):
        return None
    return float((tail(np.full(draws, target)) <= 1 - level).mean())


def _missing(row: dict[str, Any], demand: Demand) -> str:
    """Which target a fleet misses, and how often."""
    told = [
        f"{name.upper()} is met with probability {row[f'p_{name}']:.2f}"
        for name in ("ttft", "tpot")
        if row[f"p_{name}"] is not None and row[f"p_{name}"] < demand.confidence
    ]
    return "; ".join(told) or "each target alone is met often enough, both together are not"


def _missed(option: Option, demand: Demand) -> str:
    """Which target a request alone misses, or that it finds no room."""
    alone = steady(option, demand, max(1, int(np.ceil(1000 * demand.load / option.highest.max()))))
    full = float(np.mean(np.isinf(alone.tpot(demand.level))))
    if full > 1 - demand.confidence:
        return f"a request finds no room beside the weights with probability {full:.2f}; raise --tp"
    parts = []
    for name, target in (("ttft", demand.ttft), ("tpot", demand.tpot)):
        time = getattr(alone, name)(demand.level)
        missed = float(np.mean(time > target)) if np.isfinite(target) else 0.0
        if missed > 1 - demand.confidence:
            parts.append(
                f"{name.upper()} of an idle server is {np.median(time):.3g} s (median), over "
                f"{target:g} s with probability {missed:.2f}"
            )
    return "; ".join(parts) or "no fleet keeps to the targets often enough; lower --confidence"


def _interval(draws: np.ndarray, mass: float) -> dict[str, Any] | None:
    """Median and equal-tailed interval over draws; None where there is none."""
    held = draws[np.isfinite(draws)]
    if not len(held):
        return None
    low, middle, high = np.quantile(held, [(1 - mass) / 2, 0.5, (1 + mass) / 2])
    interval = {"kind": "eti", "mass": mass, "low": float(low), "high": float(high)}
    return {"median": float(middle), "interval": interval}


def _error(kept: np.ndarray) -> float:
    """Monte Carlo standard error of a probability [1]."""
    draws = xr.DataArray(kept[None].astype(float), dims=("chain", "draw"))
    return float(decision.mcse(draws))
