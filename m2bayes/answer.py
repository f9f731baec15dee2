"""Answers to a question: joint draws turned into results that can be printed or sent as JSON."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes._jobs import Each, in_turn
from m2bayes.dominance import dominant
from m2bayes.drivers import drivers, factors_of
from m2bayes.errors import InfeasibleError, WorkloadError
from m2bayes.feasibility import cache_limits, feasible, room
from m2bayes.prices import price_draws
from m2bayes.question import Question, extrapolates, metric_of, rests_on, step_times
from m2bayes.workload import Step, Workload

OPERATORS = 13  # of a whole step
EXPLAINED = 20  # workloads up to which it is said what the uncertainty comes from
BLOCK = 4_000_000  # kernel times held at once


def answers(
    question: Question,
    summarise: Callable[[Question, xr.DataArray], Iterator[dict[str, Any]]],
    *,
    noise: int = 0,
    advance: Callable[[int], None] = lambda done: None,
    keep: Callable[[xr.DataArray], None] | None = None,
    each: Each = in_turn,
) -> list[dict[str, Any]]:
    """Predict workload by workload in blocks of bounded memory, and summarise each.

    Parameters
    ----------
    question : Question
        What is asked.
    summarise : callable
        `ranked` or `predicted`: takes the kernel times [s], dims (chain, draw, sku, workload, op).
    noise : int
        Runs of a predictive median, see `m2bayes.predictive.predict` [1].
    advance : callable
        Told how many more workloads are done.
    keep : callable, optional
        Given each block of times, NaN where a SKU cannot hold the workload.
    each : callable
        Where SKUs are predicted, see `m2bayes.question.step_times`.

    Returns
    -------
    list of dict
        One a workload, in the order asked.
    """
    ops = OPERATORS if question.whole else 4
    samples = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    at_once = samples * question.datasheets.sizes["sku"] * ops * max(noise, 1)
    block = max(1, BLOCK // at_once)
    _refuse_repeats(question.workloads)
    if len({isinstance(w, Step) for w in question.workloads}) > 1:
        raise WorkloadError("steps and gemm: kernels cannot be mixed; ask for them in two calls")
    rests = rests_on(question)
    out: list[dict[str, Any]] = []
    for start in range(0, len(question.workloads), block):
        steps = question.workloads[start : start + block]
        time = step_times(question, steps, noise=noise, each=each)
        held = room(question, steps)
        fits, share = feasible(question, steps, held), held.mean(("chain", "draw"))
        time = time if held.values.all() else time.where(held)
        limits = cache_limits(question, steps)
        if keep is not None:
            keep(time)
        outside = dict(zip([s.label for s in steps], extrapolates(question, steps), strict=True))
        for i, entry in enumerate(summarise(question, time)):
            _annotate(question, outside[entry["workload"]], entry, fits[:, i], rests)
            _annotate_memory(question, entry, share.isel(workload=i).values, limits[i])
            out.append(entry)
        advance(len(steps))
    if all(not sku["fits"] for entry in out for sku in entry["skus"]):
        reasons = "; ".join(f"{sku['sku']} {sku['reason']}" for sku in out[0]["skus"])
        raise InfeasibleError(f"no SKU can serve {out[0]['workload']}: {reasons}")
    return out


def _refuse_repeats(workloads: Sequence[Workload]) -> None:
    seen: set[str] = set()
    for workload in workloads:
        if workload.label in seen:
            raise WorkloadError(f"workload {workload.label} is given twice; name each once")
        seen.add(workload.label)


def _annotate(
    question: Question,
    outside: str,
    entry: dict[str, Any],
    reasons: Sequence[str] | np.ndarray,
    rests: xr.DataArray,
) -> None:
    """Add fit, basis and extrapolation to each SKU of one workload, best first."""
    why = dict(zip(question.datasheets["sku"].values, reasons, strict=True))
    for sku in entry["skus"]:
        sku["basis"] = str(rests.sel(sku=sku["sku"]).item())
        sku["fits"] = not why[sku["sku"]]
        if why[sku["sku"]]:
            sku["reason"] = why[sku["sku"]]
        sku["extrapolating"] = bool(outside)
        if outside and sku["fits"]:
            sku["reason"] = outside
    turn = -1 if question.metric == "tokens_per_second" else 1
    entry["skus"].sort(key=lambda s: np.inf if s["median"] is None else turn * s["median"])


def _annotate_memory(
    question: Question,
    entry: dict[str, Any],
    share: np.ndarray,
    limits: Sequence[dict[str, Any]],
) -> None:
    """Add to each SKU the probability that the step fits, and what its KV cache holds."""
    at = {str(s): i for i, s in enumerate(question.datasheets["sku"].values)}
    for sku in entry["skus"]:
        i = at[sku["sku"]]
        sku["p_fits"] = float(share[i])
        if 0 < sku["p_fits"] < 1:
            sku["reason"] = f"fits with probability {sku['p_fits']:.2f}; times are of when it does"
        if limits[i]:
            sku["sequences"] = limits[i]


def ranked(
    question: Question, time: xr.DataArray, *, explain_clear: bool = True
) -> Iterator[dict[str, Any]]:
    """Ranking of the SKUs for each workload: a `dict` as in ``m2bayes rank --json``.

    What the uncertainty comes from is found where the choice is open, else if asked for.
    """
    metric = metric_of(question, time)
    result = decision.rank(
        metric,
        threshold=question.threshold,
        mass=question.mass,
        higher_is_better=question.metric == "tokens_per_second",
    )
    factors = factors_of(question)
    skus, held = result["sku"].values.tolist(), _by_sku(result)
    told = _when_it_fits(metric, question.mass)  # what does not always fit is ranked by it, too
    for i, workload in enumerate(result["workload"].values):
        one = result.isel(workload=i)
        explain = explain_clear or str(one["verdict"].item()) != "clear"
        yield {
            "workload": str(workload),
            "skus": [
                {"sku": sku, **{name: number(values[j, i]) for name, values in held.items()}}
                | _interval(told, (j, i), question.mass)
                for j, sku in enumerate(skus)
            ],
            "pairs": _pairs(one, question, metric.isel(workload=i)),
            "p_any_flip": number(one["p_any_flip"]),
            "p_any_flip_mcse": number(one["p_any_flip_mcse"]),
            "p_top1_flip": number(one["p_top1_flip"]),
            "choice": str(one["choice"].item()) or None,
            "verdict": str(one["verdict"].item()),
            "contenders": [str(s) for s in one["sku"].values[one["contender"].values]],
            "dominated_by": _dominated_by(question, time.isel(workload=i), one, factors)
            if explain
            else [],
        }


def _by_sku(result: xr.Dataset) -> dict[str, np.ndarray]:
    """What a ranking says of each SKU, dims (sku, workload)."""
    regrets = ("expected_regret", "expected_regret_mcse", "relative_regret", "relative_regret_mcse")
    names = ("p_best", "p_best_mcse", "expected_rank", *regrets)
    return {name: result[name].transpose("sku", "workload").values for name in names}


def _pairs(one: xr.Dataset, question: Question, metric: xr.DataArray) -> list[dict[str, Any]]:
    """Flip probability of each pair of SKUs that fit, the better by median first."""
    higher_is_better = question.metric == "tokens_per_second"
    median = one["posterior_median"].values * (-1 if higher_is_better else 1)
    order = [int(i) for i in np.argsort(median, kind="stable") if np.isfinite(median[i])]
    names, flip, error = one["sku"].values, one["p_flip"].values, one["p_flip_mcse"].values
    return [
        {
            "better": str(names[a]),
            "worse": str(names[b]),
            "p_flip": float(flip[a, b]),
            "p_flip_mcse": float(error[a, b]),
            **_break_even(question, metric.isel(sku=[a, b])),
        }
        for k, a in enumerate(order)
        for b in order[k + 1 :]
    ]


def _break_even(question: Question, cost: xr.DataArray) -> dict[str, Any]:
    """Price of the first SKU over that of the second at which both cost the same per token."""
    if question.metric != "cost_per_million_tokens":
        return {}
    use = cost / price_draws(
        question.prices, cost["sku"].values, cost, seed=question.seed
    )  # hours of GPU
    ratio = (use.isel(sku=1) / use.isel(sku=0)).values.ravel()
    levels = [(1 - question.mass) / 2, 0.5, (1 + question.mass) / 2]
    # of logs: the ratio the other way round has the reciprocals
    low, middle, high = np.exp(np.quantile(np.log(ratio[np.isfinite(ratio)]), levels))
    interval = {"kind": "eti", "mass": question.mass, "low": float(low), "high": float(high)}
    better, worse = (str(sku) for sku in cost["sku"].values)
    ratio_of = {"of": better, "over": worse, "median": float(middle), "interval": interval}
    return {"break_even_price_ratio": ratio_of}


def _dominated_by(
    question: Question, time: xr.DataArray, one: xr.Dataset, factors: xr.Dataset
) -> list[dict[str, Any]]:
    """Factors that the uncertainty between the choice and the next best comes from."""
    median = one["posterior_median"].values
    if question.metric == "tokens_per_second":
        median = -median
    best = [str(one["sku"].values[i]) for i in np.argsort(median)[:2] if np.isfinite(median[i])]
    if len(best) < 2 or question.metric == "attention_time" or len(question.workloads) > EXPLAINED:
        return []
    pair = time.sel(sku=best)
    metric = metric_of(question, pair.expand_dims("workload"))
    ratio = metric.isel(workload=0, sku=0) / metric.isel(workload=0, sku=1)
    flat = np.log(ratio.transpose("chain", "draw").values.ravel())
    return dominant(flat, drivers(question, pair, factors))


def predicted(question: Question, time: xr.DataArray) -> Iterator[dict[str, Any]]:
    """Time of each SKU, whole and by operator, for each workload, as ``m2bayes predict --json``."""
    whole, parts = (
        _when_it_fits(metric_of(question, time), question.mass),
        _when_it_fits(time, question.mass),
    )
    for i, workload in enumerate(time["workload"].values):
        skus = []
        for j, sku in enumerate(time["sku"].values):
            ops = [
                {"op": str(op), **_interval(parts, (j, i, k), question.mass)}
                for k, op in enumerate(time["op"].values)
            ]
            skus.append({"sku": str(sku), **_interval(whole, (j, i), question.mass), "ops": ops})
        yield {"workload": str(workload), "skus": skus}


def _when_it_fits(time: xr.DataArray, mass: float) -> dict[str, Any]:
    """Median, mean and interval over the draws that are numbers, other dims kept."""
    flat = time.transpose("chain", "draw", ...).values.reshape(-1, *time.shape[2:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what is NaN in every draw
        over = np.nanquantile if np.isnan(flat).any() else np.quantile
        low, median, high = over(flat, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
        return {"median": median, "mean": np.nanmean(flat, axis=0), "low": low, "high": high}


def _interval(held: dict[str, Any], at: tuple[int, ...], mass: float) -> dict[str, Any]:
    low, high = number(held["low"][at]), number(held["high"][at])
    return {
        "median": number(held["median"][at]),
        "mean": number(held["mean"][at]),
        "interval": {"kind": "eti", "mass": mass, "low": low, "high": high},
    }


def number(value: Any) -> float | None:
    """Plain float for JSON, None for NaN (JSON has no NaN).

    >>> number(float("nan")) is None, number(1)
    (True, 1.0)
    """
    plain = float(value)
    return plain if np.isfinite(plain) else None
