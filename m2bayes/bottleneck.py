"""What bounds each operator of a step, and whether the host bounds the step, as probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.factors import with_skus
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.operators import HEAD, operators
from m2bayes.predictive import backends, law_of, own_seed
from m2bayes.quantisation import sheets_of
from m2bayes.question import Question, step_times
from m2bayes.step import LIBRARY, PARTS, host_times
from m2bayes.workload import Step


def bottlenecks(question: Question, results: list[dict[str, Any]]) -> None:
    """Add to each operator of `results` which resource asks most of it.

    And to each SKU's step ``p_host_bound``, the probability that the launches outlast the kernels.

    Parameters
    ----------
    question : Question
        Of whole steps.
    results : list of dict
        From `m2bayes.answer.answers` with `predicted`; each operator gets ``bounds``, the
        probability [1] of each resource, of the law without discrepancy.
    """
    steps = [w for w in question.workloads if isinstance(w, Step)]
    if question.llm is None or not steps:
        return
    cells = operators(
        question.llm, steps, tp=question.tp, graphs=question.graphs, dtype=question.form
    )
    shares: dict[str, dict[str, xr.DataArray]] = {}
    for part in PARTS[:-1]:
        for op in cells[part]["op"].values:
            own = cells[part].sel(op=op)
            head = op == HEAD
            form = question.form if part == "gemm" and not head else "bf16"
            if (own["calls"] > 0).any():
                posterior = question.posterior if part == "gemm" else question.parts[part]
                posterior = question.parts.get("head", posterior) if head else posterior
                sheets = sheets_of(question.datasheets, form)
                shares[str(op)] = _shares(question, posterior, own, sheets)
    bound = _host_bound(question, steps, cells["host"])
    for entry in results:
        for sku in entry["skus"]:
            at = {"sku": sku["sku"], "workload": entry["workload"]}
            sku["p_host_bound"] = float(bound.sel(at))
            for op in sku.get("ops", []):
                found = shares.get(op["op"], {})
                op["bounds"] = {name: float(share.sel(at)) for name, share in found.items()}


def _host_bound(question: Question, steps: list[Step], cells: xr.Dataset) -> xr.DataArray:
    """Probability that a step waits for its launches [1], dims (sku, workload)."""
    time = step_times(question, steps)
    blocks = time.isel(op=slice(None, -1)).sum("op")
    launches, tail = host_times(
        question.parts["host"], cells, question.datasheets, question.backend, question.seed
    )
    launches = launches + tail if question.overlap else launches
    return (launches > blocks).mean(("chain", "draw"))


def _shares(
    question: Question, posterior: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset
) -> dict[str, xr.DataArray]:
    """Probability [1] that each resource asks most of one operator, dims (sku, workload)."""
    law = law_of(posterior)
    seed = question.seed if law.variant is None else own_seed(posterior, question.seed)
    chosen = ["any"]
    if law.variant is not None and law.by_backend:
        known = [b for b in backends(posterior) if b != LIBRARY]
        chosen = [question.backend] if question.backend in known else known
    total: dict[str, Any] = {}
    for backend in chosen:
        for i, workload in enumerate(cells["workload"].values):
            own = cells.isel(workload=[i])
            skus = sheets["sku"].values
            units = unit_labels(law, skus, _repeated(own, len(skus)), backend)
            rows = sheets if law.variant is None else unit_sheets(law, sheets, list(units))
            factors = with_skus(posterior, rows, seed=seed).assign_coords(sku=skus)
            terms = law.terms(own, rows.assign_coords(sku=skus), regime="served", backend=backend)
            bounds = law.bounds(terms, factors)  # type: ignore[misc]
            for name, share in _largest(bounds).items():
                total.setdefault(name, {}).setdefault(str(workload), []).append(share)
    return {
        name: xr.concat(
            [sum(parts) / len(parts) for parts in by_workload.values()],
            dim=xr.DataArray(list(by_workload), dims="workload", name="workload"),
        )
        for name, by_workload in total.items()
    }


def _repeated(cells: xr.Dataset, times: int) -> Mapping[str, Any]:
    """Sizes of one cell, once for each SKU, dims (sku,)."""
    return {str(v): np.repeat(cells[v].values, times) for v in cells.data_vars}


def _largest(bounds: Mapping[str, Any]) -> dict[str, xr.DataArray]:
    """Share of draws in which each bound is the largest [1], dims (sku,)."""
    names = list(bounds)
    arrays = xr.broadcast(*(xr.DataArray(bounds[name]) for name in names))
    stacked = np.stack([array.squeeze("workload", drop=True).values for array in arrays])
    like = arrays[0].squeeze("workload", drop=True)
    winner = like.copy(data=stacked.argmax(axis=0))
    dims = [d for d in ("chain", "draw") if d in winner.dims]
    return {name: (winner == i).mean(dims) for i, name in enumerate(names)}
