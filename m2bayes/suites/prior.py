"""What the models say before any data: times drawn from priors, floors, and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes import sbc
from m2bayes.database import labelled
from m2bayes.evaluate import cell_times, of_sku
from m2bayes.hierarchy import Frame
from m2bayes.inputs import Inputs
from m2bayes.operators import operators
from m2bayes.predictive import law_of
from m2bayes.step import PARTS, aligned, operator_times, spaced
from m2bayes.suites import _designs
from m2bayes.workload import Step

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16", "attention_prefill_bf16", "attention_decode_bf16", "allreduce_bf16")
JUDGED = ("assembly", "baseline")  # fields of the setting
DRAWS, FEW = 1000, 40  # from the prior; when there is little time
CUTS = (0.05, 0.5, 0.95)
LEAST = 1e-12  # [s] below any floor
LLM, SKUS = "llama-3.1-8b", ("a100", "h100", "h200", "l40s")
STEPS = (
    Step("decode", batch=1, context=1024),
    Step("decode", batch=64, context=1024),
    Step("prefill", tokens=8192),
)
FLOORS: dict[str, Callable[[Any], Any]] = {  # [s] that no kernel beats, from the terms of its law
    "gemm_time": lambda t: np.maximum(t["ideal_compute"], t["cold_traffic"] / t["peak_bandwidth"]),
    "prefill_time": lambda t: t["pairs"] * t["block_compute"],
    "decode_time": lambda t: t["cold"] * t["hbm_time"],
    "light_time": lambda t: t["cold_traffic"] / t["peak_bandwidth"],
    "allreduce_time": lambda t: t["transfer"],
    "host_time": lambda t: 0.0 * t["kernels"],
}
FLOORS["ceiling_time"] = FLOORS["gemm_time"]


def run(setting: Setting) -> dict[str, Any]:
    """Draw times from the priors of each model, and hold them against floors and measured times.

    Returns
    -------
    dict
        ``kernels``, by posterior: ``cells``; ``rows``, ``measured`` or, where they are not
        included, the ``posterior``'s medians on a small design; ``inside_90``, ``inside_99``: share
        of their times within the prior's central interval for a run; ``ratio``: 5, 50 and 95 % over
        cells of the prior's median over them; ``width``: 95 over 5 % quantile of the prior;
        ``below_floor``: share of the prior's times below what peak rates allow [1]; ``typical``:
        the cell of median time [s]. ``steps``, by workload and SKU: ``floor``, ``prior`` and
        ``posterior`` at 5, 50 and 95 % [s], ``below_floor`` [1].
    """
    database = setting.database
    named = database.assembly(setting.assembly).parts
    parts = {part: named[part] for part in PARTS}
    names = [setting.baseline] if setting.quick else [*parts.values(), setting.baseline]
    out: dict[str, Any] = {"kernels": {}, "steps": {}}
    drawn = {}
    for name in names:
        setting.tell(f"{name}: drawing from the prior")
        out["kernels"][name], drawn[name] = _kernels(setting, name)
    if not setting.quick:
        setting.tell("whole steps")
        out["steps"] = _steps(setting, {part: drawn[name] for part, name in parts.items()})
    return out


def _kernels(setting: Setting, name: str) -> tuple[dict[str, Any], xr.Dataset]:
    """Figures of one model's kernels, and draws of all that prediction needs from its prior."""
    database, record = setting.database, setting.database.posterior(name)
    here = all(database.included(source["name"]) for source in record.data)
    inputs = Inputs.recorded(database, record) if here else _designs.inputs(database, record.model)
    card, cells = database.model(record.model), inputs.cells()
    model = inputs.build(database.builder(record.model))
    draws = FEW if setting.quick else DRAWS
    logs = sbc.simulate(model, draws, seed=setting.seed).data["log_op_time"]
    first = np.isfinite(cells["op_time"].values).argmax(axis=1)
    logs = logs[:, np.arange(len(first)), first]
    if here:
        seen = np.nanmedian(cells["op_time"].values, axis=1)
    else:
        seen = _predicted(database.draws(name), cells, inputs.datasheets, seed=setting.seed)
    frame = Frame(cells, inputs.datasheets, inputs.readings(), law=inputs.law).inputs()
    terms = {k: v[:, 0] if v.ndim == 2 else v for k, v in frame.items()}
    figures = _held(logs, seen, FLOORS[card.law](terms))
    middle = int(np.argsort(seen)[len(seen) // 2])
    typical = {"cell": str(cells["cell"].values[middle]), "seen": float(seen[middle])}
    typical["prior"] = np.exp(np.quantile(logs[:, middle], CUTS)).tolist()
    rows = "measured" if here else "posterior"
    stored = [v for v in database.draws(name).data_vars if v in model.named_vars]
    prior = sbc.drawn(model, [str(v) for v in stored], draws, seed=setting.seed)
    prior = labelled(prior, card, name=name, dtype=record.dtype)
    return {"cells": len(seen), "rows": rows, **figures, "typical": typical}, prior


def _predicted(
    posterior: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset, *, seed: int
) -> np.ndarray:
    """Posterior median of each cell [s], dims (cell,)."""
    out = np.empty(cells.sizes["cell"])
    for sku in np.unique(cells["sku"].values):
        own = of_sku(cells, str(sku))
        time = cell_times(posterior, own, sheets, seed=seed).median(("chain", "draw"))
        out[cells["sku"].values == sku] = time.values
    return out


def _held(logs: np.ndarray, seen: np.ndarray, floor: np.ndarray) -> dict[str, Any]:
    """Logs of prior times [1], dims (draw, cell), against times of the cells and floors [s]."""
    low, middle, high = np.exp(np.quantile(logs, CUTS, axis=0))
    lowest, highest = np.exp(np.quantile(logs, (0.005, 0.995), axis=0))
    return {
        "inside_90": float(((seen >= low) & (seen <= high)).mean()),
        "inside_99": float(((seen >= lowest) & (seen <= highest)).mean()),
        "ratio": np.quantile(middle / seen, CUTS).tolist(),
        "width": float(np.median(high / low)),
        "below_floor": float((logs < np.log(np.maximum(floor, LEAST))).mean()),
        "seen_below_floor": float((seen < floor).mean()),
    }


def _steps(setting: Setting, priors: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Times of whole steps before and after the data, and the least that peak rates allow [s]."""
    database = setting.database
    llm, sheets = database.llm(LLM), database.datasheets(SKUS)
    stored = database.assembly(setting.assembly).parts
    posteriors = {part: spaced(database.draws(stored[part]), DRAWS // 4) for part in PARTS}
    before, after = (
        operator_times(aligned(held), llm, STEPS, sheets, seed=setting.seed).sum("op")
        for held in (priors, posteriors)
    )
    floor = xr.DataArray(0.0)
    for part, cells in operators(llm, STEPS).items():
        if part in ("gemm", "attention_prefill", "attention_decode"):
            law = law_of(posteriors[part])
            terms = law.terms(cells, sheets, regime="served")
            floor = floor + (FLOORS[priors[part].attrs["law"]](terms) * cells["calls"]).sum("op")
    out = {}
    for workload in before["workload"].values:
        for sku in before["sku"].values:
            at = {"workload": workload, "sku": sku}
            prior, least = before.sel(at).values.ravel(), float(floor.sel(at))
            out[f"{workload} {sku}"] = {
                "floor": least,
                "prior": np.quantile(prior, CUTS).tolist(),
                "posterior": np.quantile(after.sel(at).values, CUTS).tolist(),
                "below_floor": float((prior < least).mean()),
            }
    return out
