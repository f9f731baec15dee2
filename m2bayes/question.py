"""A question a person asks: which workloads of which LLM on which SKUs, and its joint draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from m2bayes._jobs import Each, in_turn
from m2bayes.calibrate import SCALES, Calibration, host_scalar
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.factors import BASES, basis
from m2bayes.kernels import unit_sheets
from m2bayes.llm import LLM
from m2bayes.operators import HEAD, attention_cells, operators
from m2bayes.predictive import backends, law_of, predict
from m2bayes.prices import Prices, price_draws, require
from m2bayes.quantisation import FORMATS, computes_in, of_dtype
from m2bayes.residency import weights_read
from m2bayes.step import PARTS, capped_share, operator_times, spaced
from m2bayes.timings import Timing, refuse
from m2bayes.workload import Attention, Step, Workload, gemm_cells

# metric -> units
METRICS = {
    "step_time": "s",
    "gemm_time": "s",
    "attention_time": "s",
    "tpot": "s",
    "ttft": "s",
    "tokens_per_second": "token/s",
    "cost_per_million_tokens": "USD/Mtoken",
}
KINDS = {"tpot": ("decode", "mixed"), "ttft": ("prefill",)}  # of steps that a metric is made for


@dataclass(frozen=True)
class Question:
    """What is asked: which workloads of which LLM on which SKUs, and of which posterior.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Of the GEMMs, from `m2bayes.database.Database.draws`.
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
    parts : mapping of Dataset, dims (chain, draw, …)
        The other posteriors of a whole step, see `m2bayes.step.PARTS`; with as many draws. On one
        GPU ``allreduce`` may be missing.
    graphs : bool
        Whether the engine captures CUDA graphs.
    overlap : bool
        Whether its host works one step ahead.
    calibration : mapping of Calibration
        Host time of each SKU whose steps were timed.
    assembly : str
        Name of the assembly that the parts belong to.
    dtype : str
        Format of weights and activations, see `m2bayes.quantisation.FORMATS`; by default that of
        the posterior.
    kv_dtype : str or None
        Of the KV cache, see `m2bayes.narrow.narrow_cache`.
    prices : mapping
        Lowest and highest price of each SKU [USD/h], see `m2bayes.prices`.
    """

    posterior: xr.Dataset
    datasheets: xr.Dataset
    llm: LLM | None
    workloads: Sequence[Workload]
    metric: str = "gemm_time"
    tp: int = 1
    regime: str = "served"
    backend: str = "any"
    seed: int = 0
    mass: float = 0.9
    threshold: float = 0.9
    parts: Mapping[str, xr.Dataset] = field(default_factory=dict)
    graphs: bool = True
    overlap: bool = False
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    assembly: str = ""
    dtype: str = ""
    kv_dtype: str | None = None
    prices: Prices = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UnknownNameError("metric", self.metric, METRICS)
        if self.metric == "cost_per_million_tokens":
            require(self.prices, [str(sku) for sku in self.datasheets["sku"].values])
        needed = set(PARTS[1:]) - ({"allreduce"} if self.tp == 1 else set())
        if self.whole and not needed <= set(self.parts):
            raise WorkloadError(
                f"metric {self.metric} needs more than GEMM times, which is all that posterior "
                f"{self.posterior.attrs['name']} predicts; use gemm_time"
            )
        if self.whole and self.regime != "served":
            raise WorkloadError(
                f"--regime {self.regime} is for kernels and gemm_time: {self.metric} is of a "
                "served step"
            )
        self._check_dtype()
        if (not self.graphs or self.overlap) and not self.whole:
            option = "--overlap" if self.graphs else "--eager"
            raise WorkloadError(f"{option} is of whole steps; metric {self.metric} is not")
        if "power_cap" in self.datasheets and self.regime != "served":
            raise WorkloadError(f"--power-limit is of served work; regime {self.regime} is not")
        self._check_workloads()
        if not 0 < self.mass < 1:
            raise WorkloadError(f"interval mass {self.mass} must lie between 0 and 1")
        if not 0.5 < self.threshold <= 1:
            raise WorkloadError(f"threshold {self.threshold} must lie above 0.5 and up to 1")

    def _check_dtype(self) -> None:
        """Refuse formats that the posterior cannot predict."""
        own = str(self.posterior.attrs["dtype"])
        if computes_in(self.form) != own:
            raise WorkloadError(
                f"--dtype {self.form}: posterior {self.posterior.attrs['name']} was fitted on "
                f"{own} kernels; use that"
            )
        if not self.whole and (self.kv_dtype or self.form != own):
            option = "--kv-dtype" if self.kv_dtype else f"--dtype {self.form}"
            raise WorkloadError(f"{option} is of whole steps; metric {self.metric} is not")

    def _check_workloads(self) -> None:
        """Refuse workloads that the metric is not of."""
        kernels = [isinstance(w, Attention) for w in self.workloads]
        if any(kernels) != (self.metric == "attention_time") or any(kernels) != all(kernels):
            raise WorkloadError(
                "attention: kernels and --metric attention_time go together, and no other workload "
                "with them"
            )
        if any(kernels) and self.tp != 1:
            raise WorkloadError(f"tp={self.tp} means nothing for an attention kernel; leave it out")
        if any(kernels) and not self.phase:
            raise WorkloadError(
                "attention: kernels of prefill and of decode cannot be mixed; ask for them in two "
                "calls"
            )
        if any(kernels) and self.phase not in self.parts:
            raise WorkloadError(
                f"posterior {self.posterior.attrs['name']} predicts no attention; use an assembly"
            )
        for step in self.workloads:
            if self.whole and not isinstance(step, Step):
                raise WorkloadError(
                    f"metric {self.metric} is of the steps of an LLM, not of {step.label}; "
                    "use gemm_time"
                )
            if isinstance(step, Step) and step.kind not in KINDS.get(self.metric, (step.kind,)):
                kinds = " and ".join(KINDS[self.metric])
                raise WorkloadError(
                    f"metric {self.metric} is of {kinds} steps, not of {step.label}; use step_time"
                )

    @property
    def form(self) -> str:
        """Format of weights and activations."""
        return self.dtype or str(self.posterior.attrs["dtype"])

    @property
    def whole(self) -> bool:
        """Whether the metric is of whole engine steps."""
        return self.metric not in ("gemm_time", "attention_time")

    @property
    def phase(self) -> str:
        """Part that predicts attention kernels; empty if they are of both phases."""
        phases = {w.phase for w in self.workloads if isinstance(w, Attention)}
        return f"attention_{phases.pop()}" if len(phases) == 1 else ""

    @property
    def source(self) -> str:
        """Name of what the answer rests on: an assembly, or one posterior."""
        if self.metric == "attention_time":
            return str(self.parts[self.phase].attrs["name"])
        return self.assembly if self.whole else str(self.posterior.attrs["name"])

    def steps(self, labels: xr.DataArray) -> list[Workload]:
        """Workloads of these labels, dims (workload,)."""
        by_label = {w.label: w for w in self.workloads}
        return [by_label[str(label)] for label in labels.values]


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
    return spaced(posterior, draws // chains)


def step_times(
    question: Question, steps: Sequence[Workload], *, noise: int = 0, each: Each = in_turn
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
    each : callable
        Where SKUs are predicted one by one, see `m2bayes.sweeping.cluster.spread`: with the same
        numbers.

    Returns
    -------
    DataArray, dims (chain, draw, sku, workload, op)
        Time [s].
    """
    if each is not in_turn:
        skus = [str(sku) for sku in question.datasheets["sku"].values]
        return xr.concat([*each(_times_of, (question, steps, noise), skus)], dim="sku")
    if question.whole and question.llm is not None:
        whole = [step for step in steps if isinstance(step, Step)]
        time = operator_times(
            {"gemm": question.posterior, **question.parts},
            question.llm,
            whole,
            question.datasheets,
            tp=question.tp,
            backend=question.backend,
            graphs=question.graphs,
            overlap=question.overlap,
            dtype=question.form,
            kv_dtype=question.kv_dtype,
            noise=noise,
            seed=question.seed,
        )
        return calibrated(question, whole, time)
    if question.metric == "attention_time":
        posterior, cells = question.parts[question.phase], attention_cells(steps)
    else:
        posterior, cells = question.posterior, gemm_cells(question.llm, steps, tp=question.tp)
    time = predict(
        posterior,
        cells,
        question.datasheets,
        regime=question.regime,
        backend=question.backend,
        noise=noise,
        seed=question.seed,
        clock=capped_share(question.posterior, question.datasheets, seed=question.seed),
    )
    return (time * cells["calls"]).assign_attrs(units="s")


def _times_of(shared: tuple[Question, Sequence[Workload], int], sku: str) -> xr.DataArray:
    """Times on one SKU [s], dims as of `step_times`."""
    question, steps, noise = shared
    own = replace(question, datasheets=question.datasheets.sel(sku=[sku]))
    return step_times(own, steps, noise=noise)


def host_time(question: Question, sku: str, timings: Sequence[Timing]) -> Calibration:
    """Host time of one SKU's engine from its measured steps, draw by draw.

    Parameters
    ----------
    question : Question
        Of the same LLM, engine and TP.
    sku : str
        Whose steps were timed.
    timings : sequence of Timing
        Its measured steps [s]; the same step twice counts twice.

    Raises
    ------
    DataError
        For a time that the card cannot reach, or that only another unit explains.
    """
    steps = list(dict.fromkeys(t.workload for t in timings))
    own = replace(question, datasheets=question.datasheets.sel(sku=[sku]), workloads=steps)
    parts = step_times(own, steps).transpose("chain", "draw", "sku", "workload", "op").values
    told = parts.reshape(-1, *parts.shape[-2:])[:, [steps.index(t.workload) for t in timings]]
    predicted = told.sum(axis=-1)
    bandwidth = float(of_dtype(own.datasheets, "bf16")["peak_bandwidth"].item())
    least = weights_read(own.llm, tp=own.tp, dtype=own.dtype) / bandwidth if own.llm else 0.0
    refuse(timings, least=least, expected=np.median(predicted, axis=0).tolist())
    # all are of the LLM that is asked about: nothing is left that another LLM would do otherwise
    return host_scalar(
        predicted,
        np.array([t.step_time for t in timings]),
        place=np.array([t.workload.place for t in timings]),
        floor=predicted - told[..., -1],
        prior_sd=SCALES,
        group_spread=0.0,
        seed=question.seed,
    )


def calibrated(question: Question, steps: Sequence[Step], time: xr.DataArray) -> xr.DataArray:
    """Times [s] of operators with each timed SKU's host time and misfit, dims kept.

    The host time adds to ``host``, which takes nothing at the least; the misfit scales all.
    """
    skus = time["sku"].values
    labels, places = [step.label for step in steps], np.array([step.place for step in steps])
    time = time.transpose("chain", "draw", "sku", "workload", "op").copy()
    for sku in set(question.calibration) & {str(s) for s in skus}:
        at = int(np.flatnonzero(skus == sku)[0])
        calibration = question.calibration[sku]
        parts = time.values[:, :, at]
        flat = parts.reshape(-1, *parts.shape[2:]).copy()
        whole, kernels = flat.sum(axis=-1), flat[..., :-1].sum(axis=-1)
        held = calibration.applied(
            whole,
            label=[f"{sku} {label}" for label in labels],
            place=places,
            floor=kernels,
            seed=question.seed,
        )
        point = calibration.point(whole, kernels)
        flat[..., -1] = point - kernels
        time.values[:, :, at] = (flat * (held / point)[..., None]).reshape(parts.shape)
    return time


def metric_of(question: Question, time: xr.DataArray) -> xr.DataArray:
    """Joint draws of the metric, dims (chain, draw, sku, workload), from operator times [s]."""
    whole = time.sum("op", skipna=False)
    if question.metric not in ("tokens_per_second", "cost_per_million_tokens"):
        return whole.assign_attrs(units=METRICS[question.metric])
    steps = question.steps(time["workload"])
    tokens = [step.new_tokens if isinstance(step, Step) else np.nan for step in steps]
    rate = xr.DataArray(tokens, dims="workload", coords={"workload": time["workload"]}) / whole
    if question.metric == "cost_per_million_tokens":
        hourly = question.tp * price_draws(
            question.prices, whole["sku"].values, whole, seed=question.seed
        )
        rate = 1e6 * hourly / (3600 * rate)
    return rate.transpose(*whole.dims).assign_attrs(units=METRICS[question.metric])


def without_rate(question: Question) -> np.ndarray:
    """Why a SKU has no rate [FLOP/s] in the format asked for, or "" if it has one, dims (sku,)."""
    dtype = str(question.posterior.attrs["dtype"])
    rates = of_dtype(question.datasheets, dtype)["peak_flop_rate"].values
    reason = f"has no tensor cores for {dtype}; choose another --dtype"
    return np.array(["" if rate > 0 else reason for rate in rates], dtype=object)


def extrapolates(question: Question, steps: Sequence[Workload]) -> list[str]:
    """What of each workload lies outside the fitted range; empty where nothing does.

    The LM head is not looked at: it is wider than any matrix of the tables, one kernel of a step,
    and its time is that of reading its weights.
    """
    if question.metric == "attention_time":
        return _beyond(question.parts[question.phase], attention_cells(steps))
    if not question.whole or question.llm is None:
        return _beyond(question.posterior, gemm_cells(question.llm, steps, tp=question.tp))
    whole = [step for step in steps if isinstance(step, Step)]
    cells = operators(question.llm, whole, tp=question.tp)
    columns = []
    for part in ("gemm", "attention_prefill", "attention_decode", "allreduce"):
        if part not in ("gemm", *question.parts):
            continue
        posterior = question.posterior if part == "gemm" else question.parts[part]
        own = cells[part].isel(op=cells[part]["op"].values != HEAD)
        columns.append(_beyond(posterior, own))
    mixed = "nobody measured a step that mixes prompts and decoding"
    columns.append([mixed if step.kind == "mixed" else "" for step in whole])
    if FORMATS[question.form].cost[1]:
        columns.append([f"nobody measured {question.form} kernels: prior only"] * len(whole))
    return ["; ".join(filter(None, reasons)) for reasons in zip(*columns, strict=True)]


def rests_on(question: Question) -> xr.DataArray:
    """What each SKU's prediction rests on, dims (sku,), see `m2bayes.factors.basis`.

    Of a whole step the weakest of matrix products and attention; of attention the best that any
    backend has. Light kernels and host are much the same on all cards.
    """
    parts = {"gemm": question.posterior, **question.parts}
    phases: tuple[str, ...] = ("gemm", "attention_prefill", "attention_decode")
    if question.metric == "attention_time":
        phases = (question.phase,)
    elif not question.whole:
        phases = ("gemm",)
    elif question.kv_dtype == "fp8":
        phases = (*phases, "kv_fp8")
    skus = question.datasheets["sku"]
    worst = np.max([_weakest(question, part, parts[part]) for part in phases], axis=0)
    return xr.DataArray([BASES[i] for i in worst], dims="sku", coords={"sku": skus})


def _weakest(question: Question, part: str, posterior: xr.Dataset) -> list[int]:
    """Place in `BASES` of what one part of each SKU's prediction rests on, dims (sku,)."""
    law = law_of(posterior)
    sheets = of_dtype(question.datasheets, str(posterior.attrs["dtype"]))
    if law.variant is None:
        return [BASES.index(str(b)) for b in basis(posterior, sheets).values]
    known = backends(posterior)
    chosen = [question.backend] if question.backend in known else known
    suffix = "" if part in ("gemm", "attention_prefill") else "/gqa"
    labels = [f"{sku}/{name}{suffix}" for sku in sheets["sku"].values for name in chosen]
    bases = basis(posterior, unit_sheets(law, sheets, labels)).values
    places = np.array([BASES.index(str(b)) for b in bases])
    return [int(i) for i in places.reshape(-1, len(chosen)).min(axis=1)]


def _beyond(posterior: xr.Dataset, cells: xr.Dataset) -> list[str]:
    """Which sizes of each workload lie outside the fitted range; empty where none does."""
    domain, law = json.loads(posterior.attrs["domain"]), law_of(posterior)
    runs = cells["calls"].transpose("workload", "op").values > 0
    beyond: list[list[str]] = [[] for _ in runs]
    for name in (*law.sizes, *law.given):
        low, high = domain[name]
        size = cells[name].transpose("workload", "op").values
        wrong = runs & ((size < low) | (size > high))
        for i in np.flatnonzero(wrong.any(axis=1)):
            first = size[i, wrong[i].argmax()]
            beyond[i].append(f"{name} = {first:.0f} is outside the fitted {low} to {high}")
    return ["; ".join(reasons) for reasons in beyond]
