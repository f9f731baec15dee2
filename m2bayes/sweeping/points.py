"""What a sweep computes: one chunk of its grid, by the lines that answer `m2bayes rank`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import decision
from m2bayes.answer import OPERATORS
from m2bayes.asking import ask, prices_of
from m2bayes.database import Database, digest
from m2bayes.errors import DataError, M2BayesError, WorkloadError
from m2bayes.feasibility import room
from m2bayes.operators import operators
from m2bayes.options import parser
from m2bayes.quantisation import computes_in, named
from m2bayes.question import METRICS, Question, metric_of, step_times
from m2bayes.sweeping.grid import QUANTILES, Chunk, Grid
from m2bayes.workload import Step

SAMPLE = ("chain", "draw")
HELD = 12_000_000  # kernel times held at once: 96 MB, as large as pays


def evaluate(grid: Grid, chunk: Chunk, root: str | None, identity: str) -> dict[str, np.ndarray]:
    """Results of one chunk: they depend on the grid, the seed and the database only.

    Parameters
    ----------
    grid : Grid
        The whole of it.
    chunk : Chunk
        Which part.
    root : str or None
        Folder of the database; None for the one that the package finds.
    identity : str
        What `identity_of` said where the sweep was begun.

    Returns
    -------
    dict of ndarray, dims (price, workload, sku)
        ``quantiles`` (with a last dim for `QUANTILES`) and ``mean`` of the metric over the draws
        in which the step fits [as the metric], ``p_best`` and ``p_fits`` [1].

    Raises
    ------
    DataError
        If this machine's database or version of m2bayes is another.
    """
    if _identity(grid, root) != identity:
        raise DataError(
            "a worker has another database or version of m2bayes; install the same on every machine"
        )
    i, j, k, _ = chunk.at
    question = _at(_question(grid, grid.dtype[j], root), grid.llm[i], grid.tp[k], root)
    steps = list(grid.steps(chunk.start, chunk.stop))
    samples = question.posterior.sizes["chain"] * question.posterior.sizes["draw"]
    block = max(1, HELD // (samples * question.datasheets.sizes["sku"] * OPERATORS))
    scenarios = _scenarios(grid, root)
    parts = [_block(question, steps[s : s + block], scenarios) for s in range(0, len(steps), block)]
    return {name: np.concatenate([p[name] for p in parts], axis=1) for name in parts[0]}


def _block(
    question: Question, steps: Sequence[Step], scenarios: Sequence[Any]
) -> dict[str, np.ndarray]:
    own = replace(question, workloads=steps)
    held = room(own, steps)
    time = step_times(own, steps).where(held)
    share = held.mean(SAMPLE).transpose("workload", "sku").values
    found = []
    for prices in scenarios:
        metric = metric_of(replace(own, prices=prices), time)
        best = decision.p_best(metric, higher_is_better=own.metric == "tokens_per_second")
        p_best = best.transpose("workload", "sku").values
        found.append(summarised(metric) | {"p_best": p_best, "p_fits": share})
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def summarised(metric: xr.DataArray) -> dict[str, np.ndarray]:
    """Quantiles and mean over the draws that are numbers; NaN where there is none.

    Parameters
    ----------
    metric : DataArray, dims (chain, draw, sku, workload)
        Joint draws [any unit].

    Returns
    -------
    dict of ndarray, dims (workload, sku)
        ``quantiles``, with a last dim for `QUANTILES`, and ``mean`` [as `metric`].
    """
    draws = metric.transpose(*SAMPLE, "workload", "sku").values
    flat = draws.reshape(-1, *draws.shape[2:])
    held = np.isfinite(flat).sum(axis=0)
    quantiles = np.full((*held.shape, len(QUANTILES)), np.nan)
    mean = np.full(held.shape, np.nan)
    whole = held == len(flat)
    quantiles[whole] = np.quantile(flat[:, whole], QUANTILES, axis=0).T
    mean[whole] = flat[:, whole].mean(axis=0)
    for at in zip(*np.nonzero((held > 0) & ~whole), strict=True):
        some = flat[:, *at][np.isfinite(flat[:, *at])]
        quantiles[at], mean[at] = np.quantile(some, QUANTILES), some.mean()
    return {"quantiles": quantiles, "mean": mean}


@lru_cache(maxsize=2)  # posteriors are large
def _question(grid: Grid, dtype: str, root: str | None) -> Question:
    """Question of `m2bayes rank` for the first LLM, TP and workload of a grid."""
    prices = [text for _, texts in grid.prices[:1] for text in texts]
    first = next(grid.steps()).label
    words = ["rank", "--llm", grid.llm[0], "--sku", *grid.sku, "--workload", first]
    words += ["--dtype", dtype, "--metric", grid.metric, "--backend", grid.backend]
    words += ["--draws", str(grid.draws), "--seed", str(grid.seed)]
    words += ["--price", *prices] if prices else []
    words += ["--database", root] if root else []
    return ask(parser().parse_args(words))


def _at(question: Question, llm: str, tp: int, root: str | None) -> Question:
    return replace(question, llm=Database(root).llm(llm), tp=tp)


@lru_cache(maxsize=2)
def _scenarios(grid: Grid, root: str | None) -> tuple[Any, ...]:
    """Prices [USD/h] of each scenario, no price where the metric is no cost."""
    database = Database(root)
    return tuple(prices_of(database, texts)[0] for _, texts in grid.prices) or ({},)


@lru_cache(maxsize=2)
def _identity(grid: Grid, root: str | None) -> str:
    return identity_of(grid, Database(root))


def identity_of(grid: Grid, database: Database) -> str:
    """Hash of all that the results depend on: grid, datasheets, shapes, draws, version, no dims."""
    formats = {computes_in(dtype) for dtype in grid.dtype}
    parts = {n for form in formats for n in database.assembly(f"step_{form}").parts.values()}
    facts = {
        "grid": asdict(grid),
        "version": version("m2bayes"),
        "skus": {name: digest(database.sku_card(name)[0]) for name in grid.sku},
        "llms": {name: repr(database.llm(name)) for name in grid.llm},
        "posteriors": {name: database.posterior(name).draws["sha256"] for name in sorted(parts)},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@contextmanager
def _of(key: str) -> Iterator[None]:
    """Have a complaint name the key of the grid instead of an option."""
    try:
        yield
    except M2BayesError as fault:
        text = str(fault).removeprefix("--price ").removeprefix("--")
        raise WorkloadError(f"{key}: {text}") from None


def _named(grid: Grid, database: Database) -> None:
    """Refuse names that nothing bears, and prices that are missing."""
    with _of("llm"):
        for llm in grid.llm:
            database.llm(llm)
    with _of("dtype"):
        for dtype in grid.dtype:
            named(dtype)
    with _of("sku"):
        skus = [str(s) for s in database.datasheets(grid.sku, dtype=None)["sku"].values]
    for name, texts in grid.prices:
        with _of(f"[price.{name}]"):
            prices, _ = prices_of(database, texts, grid.sku)
            for sku in (s for s in skus if s not in prices):
                raise WorkloadError(
                    f"no price of {sku}; add {sku} = 2.5, in USD an hour of one GPU"
                )


def checked(grid: Grid, root: str | None) -> dict[str, Any]:
    """Ask at every place of a grid, so that a wrong name or size is refused before any work.

    Parameters
    ----------
    grid : Grid
        From `m2bayes.sweeping.grid.read_grid`.
    root : str or None
        Folder of the database; None for the one that the package finds.

    Returns
    -------
    dict, no dims
        ``identity``, full names of the SKUs, units of the metric, names of the
        posteriors.

    Raises
    ------
    M2BayesError
        Names the key of the grid, and what no question can be asked of.
    """
    database = Database(root)
    _named(grid, database)
    if bool(grid.prices) != (grid.metric == "cost_per_million_tokens"):
        raise WorkloadError("[price.NAME] tables and metric cost_per_million_tokens go together")
    if grid.metric in ("gemm_time", "attention_time"):
        raise WorkloadError(f"metric {grid.metric} is of kernels; a sweep is of whole steps")
    kinds = {step.kind: step for step in grid.steps()}
    longest = max(grid.steps(), key=lambda s: max(s.prefill, s.context + s.tokens))
    sources = {}
    for dtype in grid.dtype:
        with _of("[settings]"):
            question = _question(grid, dtype, root)
        question = replace(question, workloads=[*kinds.values()])
        sources[dtype] = question.source
        for llm in grid.llm:
            operators(database.llm(llm), [longest], dtype=question.form)
            for tp in grid.tp:
                with _of("tp"):
                    operators(database.llm(llm), [longest], tp=tp, dtype=question.form)
    return {
        "identity": _identity(grid, root),
        "sku": [str(s) for s in question.datasheets["sku"].values],
        "units": METRICS[grid.metric],
        "posteriors": sources,
    }
