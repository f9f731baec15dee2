"""The question a person asks, from names to a result that can be printed or sent as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes.errors import InfeasibleError, UnknownNameError, WorkloadError
from m2bayes.factors import basis
from m2bayes.llm import LLM
from m2bayes.predictive import predict, summary
from m2bayes.workload import Kernel, Step, gemm_cells, resident_bytes

METRICS = {"gemm_time": "s"}  # metric -> units
PLANNED = ("step_time", "tpot", "ttft", "tokens_per_second", "cost_per_million_tokens")
BLOCK = 4_000_000  # kernel times held at once


@dataclass(frozen=True)
class Question:
    """What is asked: which workloads of which LLM on which SKUs, and of which posterior.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        From `m2bayes.database.Database.draws`.
    datasheets : Dataset, dims (sku,)
        Of the SKUs asked for.
    llm : LLM or None
        None when the workloads are kernels.
    workloads : sequence of Step or Kernel
        In the order asked.
    metric, regime, backend : str
        See `METRICS` and `m2bayes.predictive.predict`.
    tp : int
        GPUs that share the LLM [1].
    seed : int
        Of everything drawn.
    mass, threshold : float
        Mass of the intervals, and the probability from which a verdict is clear [1].
    """

    posterior: xr.Dataset
    datasheets: xr.Dataset
    llm: LLM | None
    workloads: Sequence[Step | Kernel]
    metric: str = "gemm_time"
    tp: int = 1
    regime: str = "served"
    backend: str = "any"
    seed: int = 0
    mass: float = 0.9
    threshold: float = 0.9

    def __post_init__(self) -> None:
        if self.metric in PLANNED:
            raise WorkloadError(
                f"metric {self.metric} needs more than GEMM times, which is all that posterior "
                f"{self.posterior.attrs['name']} predicts; use {', '.join(METRICS)}"
            )
        if self.metric not in METRICS:
            raise UnknownNameError("metric", self.metric, [*METRICS, *PLANNED])
        if not 0 < self.mass < 1:
            raise WorkloadError(f"interval mass {self.mass} must lie between 0 and 1")
        if not 0.5 < self.threshold <= 1:
            raise WorkloadError(f"threshold {self.threshold} must lie above 0.5 and up to 1")


def thinned(posterior: xr.Dataset, draws: int) -> xr.Dataset:
    """Evenly spaced `draws` [1] of a posterior, the same number from each chain.

    Raises
    ------
    WorkloadError
        If there are not as many, or not as many as chains.
    """
    chains, held = posterior.sizes["chain"], posterior.sizes["draw"]
    if not chains <= draws <= chains * held:
        raise WorkloadError(f"--draws {draws}: give between {chains} and {chains * held}")
    return posterior.isel(draw=np.linspace(0, held - 1, draws // chains).round().astype(int))


def answers(
    question: Question,
    summarise: Callable[[Question, xr.DataArray], Iterator[dict[str, Any]]],
    *,
    noise: int = 0,
    advance: Callable[[int], None] = lambda done: None,
    keep: Callable[[xr.DataArray], None] | None = None,
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

    Returns
    -------
    list of dict
        One a workload, in the order asked.
    """
    ops = gemm_cells(question.llm, question.workloads[:1], tp=question.tp).sizes["op"]
    samples = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    each = samples * question.datasheets.sizes["sku"] * ops * max(noise, 1)
    block = max(1, BLOCK // each)
    _refuse_repeats(question.workloads)
    if len({isinstance(w, Kernel) for w in question.workloads}) > 1:
        raise WorkloadError("steps and gemm: kernels cannot be mixed; ask for them in two calls")
    out: list[dict[str, Any]] = []
    for start in range(0, len(question.workloads), block):
        steps = question.workloads[start : start + block]
        time = step_times(question, steps, noise=noise)
        fits = feasible(question, steps)
        time = time.where(xr.DataArray(fits == "", dims=("sku", "workload")))
        if keep is not None:
            keep(time)
        cells = gemm_cells(question.llm, steps, tp=question.tp)
        for entry, reasons in zip(summarise(question, time), fits.T, strict=True):
            _annotate(question, cells, entry, reasons)
            out.append(entry)
        advance(len(steps))
    if all(not sku["fits"] for entry in out for sku in entry["skus"]):
        reasons = "; ".join(f"{sku['sku']} {sku['reason']}" for sku in out[0]["skus"])
        raise InfeasibleError(f"no SKU can serve {out[0]['workload']}: {reasons}")
    return out


def step_times(
    question: Question, steps: Sequence[Step | Kernel], *, noise: int = 0
) -> xr.DataArray:
    """Joint draws of each operator's time in each step, all its calls together.

    Parameters
    ----------
    question : Question
        Of which SKUs, LLM, regime and seed.
    steps : sequence of Step or Kernel
        Some of its workloads, or others.
    noise : int
        See `m2bayes.predictive.predict` [1].

    Returns
    -------
    DataArray, dims (chain, draw, sku, workload, op)
        Time [s].
    """
    cells = gemm_cells(question.llm, steps, tp=question.tp)
    time = predict(
        question.posterior,
        cells,
        question.datasheets,
        regime=question.regime,
        backend=question.backend,
        noise=noise,
        seed=question.seed,
    )
    return (time * cells["calls"]).assign_attrs(units=METRICS[question.metric])


def _refuse_repeats(workloads: Sequence[Step | Kernel]) -> None:
    seen: set[str] = set()
    for workload in workloads:
        if workload.label in seen:
            raise WorkloadError(f"workload {workload.label} is given twice; name each once")
        seen.add(workload.label)


def feasible(question: Question, steps: Sequence[Step | Kernel]) -> np.ndarray:
    """Why a step does not fit into a SKU's memory, or "" where it does, dims (sku, workload)."""
    sheets, reasons = question.datasheets, []
    for step in steps:
        if isinstance(step, Kernel) or question.llm is None:
            reasons.append([""] * sheets.sizes["sku"])
            continue
        need = resident_bytes(
            question.llm, step, tp=question.tp, dtype=str(question.posterior.attrs["dtype"])
        )
        reasons.append(
            [
                ""
                if need <= memory
                else f"does not fit: weights and KV cache need {need / 1e9:.1f} GB a GPU, "
                f"the memory is {memory / 1e9:.0f} GB; raise --tp or shrink the batch"
                for memory in sheets["memory"].values
            ]
        )
    return np.array(reasons, dtype=object).T


def _annotate(
    question: Question, block: xr.Dataset, entry: dict[str, Any], reasons: Sequence[str]
) -> None:
    """Add fit, basis and extrapolation to each SKU of one workload, best first."""
    rests = basis(question.posterior, question.datasheets)
    outside = extrapolates(question, block.sel(workload=entry["workload"]))
    why = dict(zip(question.datasheets["sku"].values, reasons, strict=True))
    for sku in entry["skus"]:
        sku["basis"] = str(rests.sel(sku=sku["sku"]).item())
        sku["fits"] = not why[sku["sku"]]
        if why[sku["sku"]]:
            sku["reason"] = why[sku["sku"]]
        sku["extrapolating"] = bool(outside)
        if outside and sku["fits"]:
            sku["reason"] = outside
    entry["skus"].sort(key=lambda sku: np.inf if sku["median"] is None else sku["median"])


def extrapolates(question: Question, cells: xr.Dataset) -> str:
    """Which sizes of one workload lie outside the fitted range; empty when none does."""
    domain = json.loads(question.posterior.attrs["domain"])
    beyond = []
    for name in ("M", "N", "K"):
        low, high = domain[name]
        size = cells[name].values
        wrong = size[(size < low) | (size > high)]
        if wrong.size:
            beyond.append(f"{name} = {wrong[0]:.0f} is outside the fitted {low} to {high}")
    return "; ".join(beyond)


def ranked(question: Question, time: xr.DataArray) -> Iterator[dict[str, Any]]:
    """Ranking of the SKUs for each workload: a `dict` as in ``m2bayes rank --json``."""
    result = decision.rank(
        time.sum("op", skipna=False), threshold=question.threshold, mass=question.mass
    )
    for i, workload in enumerate(result["workload"].values):
        one = result.isel(workload=i)
        yield {
            "workload": str(workload),
            "skus": [_sku_entry(one.isel(sku=j), question.mass) for j in range(one.sizes["sku"])],
            "pairs": _pairs(one),
            "p_any_flip": number(one["p_any_flip"]),
            "p_any_flip_mcse": number(one["p_any_flip_mcse"]),
            "p_top1_flip": number(one["p_top1_flip"]),
            "choice": str(one["choice"].item()) or None,
            "verdict": str(one["verdict"].item()),
            "contenders": [str(s) for s in one["sku"].values[one["contender"].values]],
        }


def _sku_entry(one: xr.Dataset, mass: float) -> dict[str, Any]:
    interval = {"kind": "eti", "mass": mass, "low": number(one["low"]), "high": number(one["high"])}
    names = ("p_best", "p_best_mcse", "expected_rank", "expected_regret", "relative_regret")
    return {
        "sku": str(one["sku"].item()),
        "median": number(one["posterior_median"]),
        "mean": number(one["posterior_mean"]),
        "interval": interval,
        **{name: number(one[name]) for name in names},
    }


def _pairs(one: xr.Dataset) -> list[dict[str, Any]]:
    """Flip probability of each pair of SKUs that fit, the better by median first."""
    median = one["posterior_median"].values
    order = [int(i) for i in np.argsort(median, kind="stable") if np.isfinite(median[i])]
    names, flip, error = one["sku"].values, one["p_flip"].values, one["p_flip_mcse"].values
    return [
        {
            "better": str(names[a]),
            "worse": str(names[b]),
            "p_flip": float(flip[a, b]),
            "p_flip_mcse": float(error[a, b]),
        }
        for k, a in enumerate(order)
        for b in order[k + 1 :]
    ]


def predicted(question: Question, time: xr.DataArray) -> Iterator[dict[str, Any]]:
    """Time of each SKU, whole and by operator, for each workload, as ``m2bayes predict --json``."""
    whole, parts = (
        summary(time.sum("op", skipna=False), mass=question.mass),
        summary(time, mass=question.mass),
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
