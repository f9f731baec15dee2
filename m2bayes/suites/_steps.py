"""What suites of outside engines share: runs as sums of steps, the datasheet roofline, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xarray as xr

from m2bayes.database import Database
from m2bayes.evaluate import scores
from m2bayes.llm import LLM
from m2bayes.operators import sampled
from m2bayes.predictive import backends
from m2bayes.quantisation import named
from m2bayes.step import aligned, operator_times, spaced
from m2bayes.workload import Step, gemm_cells, kv_bytes_per_token

if TYPE_CHECKING:
    from m2bayes.suites import Setting

PREFILL_TOKENS = 2048  # [token] of one prefill step: the engines' default of that time
LEAST = 1e-6  # [s]
POINTS = 5  # contexts at which a generation's decode steps are predicted


class StepTimes(Protocol):
    """A predictor of engine steps: joint draws over all its calls, dims (draw, workload) [s]."""

    def __call__(
        self,
        sku: str,
        llm: str,
        workloads: Sequence[Step],
        *,
        tp: int,
        engine: str,
        graphs: bool = True,
    ) -> np.ndarray:
        """Times of the steps [s], dims (draw, workload)."""


def prefill_steps(length: int, batch: int, *, most: int = PREFILL_TOKENS) -> dict[Step, float]:
    """Steps that prefill a batch of prompts, up to `most` tokens in one, and how many [1]."""
    together = min(batch, max(1, most // length))
    steps = {Step("prefill", tokens=length, batch=together): float(batch // together)}
    if batch % together:
        steps[Step("prefill", tokens=length, batch=batch % together)] = 1.0
    return steps


def decode_steps(first: int, last: int, batch: int, *, points: int = POINTS) -> dict[Step, float]:
    """Steps whose times times the weights [1] sum to decoding at contexts `first` to `last`.

    Gauss–Legendre points, rounded to whole contexts, with the weights that keep the sum exact for
    polynomials of the context up to degree `points` − 1.
    """
    count = last - first + 1
    if count <= points:
        return {Step("decode", batch=batch, context=c): 1.0 for c in range(first, last + 1)}
    nodes = np.polynomial.legendre.leggauss(points)[0]
    contexts = np.unique(np.rint((first + last) / 2 + nodes * count / 2)).astype(int)
    contexts = contexts.clip(first, last)

    def basis(context: np.ndarray) -> np.ndarray:
        scaled = (2 * context - first - last) / count
        return np.polynomial.legendre.legvander(scaled, len(contexts) - 1)

    moments = basis(np.arange(first, last + 1)).sum(axis=0)
    weights = np.linalg.solve(basis(contexts).T, moments)
    return {
        Step("decode", batch=batch, context=int(c)): float(w)
        for c, w in zip(contexts, weights, strict=True)
    }


def generation_steps(length: int, batch: int) -> dict[Step, float]:
    """Prefill of a batch, which gives the first token, and `length` − 1 decode steps [1]."""
    decode = decode_steps(length, 2 * length - 2, batch) if length > 1 else {}
    return prefill_steps(length, batch) | decode


def composed(
    step_times: StepTimes,
    steps: Sequence[Mapping[Step, float]],
    sku: str,
    llm: str,
    *,
    engine: str,
    tp: int = 1,
    graphs: bool = True,
) -> np.ndarray:
    """Weighted sums of step times [s], dims (draw, cell); each step is asked for once."""
    asked = list(dict.fromkeys(step for parts in steps for step in parts))
    times = np.asarray(step_times(sku, llm, asked, tp=tp, engine=engine, graphs=graphs))
    at = {step: i for i, step in enumerate(asked)}
    weights = np.zeros((len(asked), len(steps)))
    for j, parts in enumerate(steps):
        for step, weight in parts.items():
            weights[at[step], j] = weight
    # a difference of far tails may come out below any time
    return np.maximum(times @ weights, LEAST)


def predictor(
    setting: Setting,
    *,
    only: str = "",
    assembly: str = "",
    kv_dtype: str | None = None,
    draws: int | None = None,
    overlap: bool = False,
) -> StepTimes:
    """Whole-step predictor of the setting's assembly, or another [s], dims (draw, workload).

    With `only`, of the operators whose names begin so; with `draws`, so many of each chain [1].
    """
    database = setting.database
    parts = database.assembly(assembly or setting.assembly).parts
    posteriors = aligned({part: database.draws(name) for part, name in parts.items()})
    if draws is not None:
        posteriors = {part: spaced(held, draws) for part, held in posteriors.items()}
    narrow = posteriors["gemm"].attrs["dtype"] != "bf16"
    known = backends(posteriors["attention_prefill"])

    def step_times(
        sku: str, llm: str, workloads: Sequence[Step], *, tp: int, engine: str, graphs: bool = True
    ) -> np.ndarray:
        sheets = database.datasheets([sku], dtype=None if narrow else "bf16")
        shape = database.llm(llm)
        time = operator_times(
            posteriors,
            shape,
            workloads,
            sheets,
            tp=tp,
            backend=engine if engine in known else "any",
            engine=engine,
            graphs=graphs,
            overlap=overlap,
            kv_dtype=kv_dtype,
            seed=setting.seed,
        )
        kept = [str(op).startswith(only) for op in time["op"].values]
        whole = time.isel(sku=0, op=kept).sum("op").transpose("chain", "draw", "workload")
        return whole.values.reshape(-1, len(workloads))

    return step_times


def datasheet_steps(database: Database, *, dtype: str = "bf16") -> StepTimes:
    """Datasheet roofline of one step [s], dims (draw, workload), with a single draw.

    Every matrix product, attention and the LM head at the datasheet's peaks; nothing else. The
    projections are in `dtype`, the others in 16 bits.
    """
    both, item = (dtype, "bf16"), named(dtype).weight

    def step_times(
        sku: str,
        llm: str,
        workloads: Sequence[Step],
        *,
        tp: int,
        engine: str,
        graphs: bool = True,
    ) -> np.ndarray:
        del engine, graphs  # the datasheet knows of neither
        shape, sheet = database.llm(llm), database.datasheets([sku])
        rates = [float(database.datasheets([sku], dtype=d)["peak_flop_rate"].item()) for d in both]
        rate = np.repeat(rates, (4, 2))  # of four projections, and of attention and LM head
        bandwidth = float(sheet["peak_bandwidth"].item())
        work = np.array([_work(shape, step, tp, item) for step in workloads])  # (workload, op, 2)
        return np.maximum(work[..., 0] / rate, work[..., 1] / bandwidth).sum(axis=1)[None]

    return step_times


def _work(llm: LLM, step: Step, tp: int, item: float) -> np.ndarray:
    """FLOPs [FLOP] and traffic [byte] of projections, attention and LM head, dims (op, 2).

    Weights and inputs of projections have `item` bytes, all else two.
    """
    cells = gemm_cells(llm, [step], tp=tp).squeeze("workload")
    M, N, K, calls = (cells[v].values for v in ("M", "N", "K", "calls"))
    flops, traffic = 2 * M * N * K * calls, (item * (M * K + K * N) + 2 * M * N) * calls
    before = step.context if step.kind == "prefill" else 0
    prompt = step.tokens + step.prefill
    pairs = step.prompts * prompt * (before + prompt / 2) + step.decoding * (step.context + 1)
    cache = kv_bytes_per_token(llm, tp=tp) * (step.cached_tokens + step.new_tokens)
    attention = (4 * llm.layers * llm.heads * llm.head_dim / tp * pairs, cache)
    head = (2 * sampled(step) * llm.hidden * llm.vocab / tp, 2 * llm.hidden * llm.vocab / tp)
    return np.vstack([np.stack([flops, traffic], axis=1), attention, head])


# --- rivals and scores ------------------------------------------------------------------------


def _as_is(x: np.ndarray, y: np.ndarray, steps: np.ndarray, train: np.ndarray) -> np.ndarray:
    return x


def _times_factor(x: np.ndarray, y: np.ndarray, steps: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Times the median ratio of the training cells."""
    return x * np.median(y[train] / x[train])


def _plus_time(x: np.ndarray, y: np.ndarray, steps: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Plus one time a step, by least squares of the relative error."""
    share = steps[train] / y[train]
    return x + steps * ((1 - x[train] / y[train]) @ share) / (share @ share)


RIVALS: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "datasheet roofline": ("sheet", _as_is),
    "datasheet roofline x one factor": ("sheet", _times_factor),
    "datasheet roofline + one time": ("sheet", _plus_time),
    "model x one factor": ("model", _times_factor),
}


def point_scores(guess: np.ndarray, observed: np.ndarray) -> dict[str, float]:
    """Errors of points, dims (cell,) [s]: means over cells [1]."""
    error = np.abs(guess / observed - 1)
    return {
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "bias": float(np.median(np.log(observed / guess))),
    }


def scored(
    times: np.ndarray, observed: np.ndarray, point: np.ndarray | None = None, *, brief: bool = False
) -> dict[str, float]:
    """Scores of draws, dims (draw, cell); of a single draw those of a point [1]."""
    if len(times) == 1:
        return point_scores(times[0] if point is None else point, observed)
    draws = xr.DataArray(times[None], dims=("chain", "draw", "cell"))
    found = scores(draws, xr.DataArray(observed, dims="cell"), point)
    if brief:
        return {k: found[k] for k in ("mape", "bias", "coverage_50", "coverage_80", "coverage_90")}
    return found


def mean_of(found: Sequence[Any]) -> Any:
    """Mean of nested figures [1]."""
    if isinstance(found[0], Mapping):
        return {key: mean_of([one[key] for one in found]) for key in found[0]}
    return float(np.mean(found))
