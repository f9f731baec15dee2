"""Attention kernels: unseen cells of measured SKUs, given the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.evaluate import by_build, cell_times, median_of_builds, of_sku, scores
from m2bayes.inputs import Inputs
from m2bayes.leaveout import not_measured
from m2bayes.measurements import checked, runs_by_cell

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("attention_prefill_bf16_test", "attention_decode_bf16_test")
JUDGED = ("prefill", "decode")  # fields of the setting
SIZES = ("batch", "length", "heads", "kv_heads")


def run(setting: Setting) -> dict[str, Any]:
    """Score both posteriors on cells that nothing was fitted to.

    Returns
    -------
    dict
        ``prefill``, ``decode``: by SKU, backend and kernel, with the ``mean`` over SKU and backend
        and the ``pooled`` one over cells; scores as in `m2bayes.evaluate.scores` [1].
    """
    out = {}
    for phase, table in zip(JUDGED, DATA, strict=True):
        name = getattr(setting, phase)
        inputs = Inputs.recorded(setting.database, setting.database.posterior(name))
        test = unseen_cells(setting, inputs, table)
        draws = setting.database.draws(name)
        out[phase] = averages(
            judged(setting, draws, test, inputs.datasheets, setting.few(inputs.skus))
        )
    return out


def unseen_cells(setting: Setting, inputs: Inputs, table: str) -> xr.Dataset:
    """Test cells of every unit, dims (cell, run)."""
    rows = checked(setting.database.table(table), origin=table, law=inputs.law)
    return runs_by_cell(rows, skus=inputs.skus, law=inputs.law)


def judged(
    setting: Setting, draws: xr.Dataset, test: xr.Dataset, sheets: xr.Dataset, units: list[str]
) -> dict[str, Any]:
    """Scores of each unit on its test cells, as if none of them was measured [1]."""
    out: dict[str, Any] = {}
    for unit in units:
        setting.tell(f"scoring {unit}")
        own = of_sku(test, unit)
        shapes = np.stack([own[v].values for v in SIZES], axis=1)
        blind = not_measured(draws, shapes)
        times = cell_times(blind, own, sheets, seed=setting.seed).drop_vars("sku", errors="ignore")
        observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
        out[unit] = scores(times, observed) | {"n": float(own.sizes["cell"])}
    return out


def averages(by_unit: dict[str, Any]) -> dict[str, Any]:
    """Add the mean over SKU and backend, and the coverage over all cells.

    A SKU and backend counts once, whatever number of kernels the backend has for it.
    """
    table = pd.DataFrame(by_unit).T
    pair = ["/".join(str(unit).split("/")[:2]) for unit in table.index]
    weighted = table.mul(table["n"], axis=0).groupby(pair).sum()
    by_pair = weighted.div(table["n"].groupby(pair).sum(), axis=0)
    pooled = table.mul(table["n"], axis=0).sum() / table["n"].sum()
    return by_unit | {
        "mean": {str(k): float(v) for k, v in by_pair.mean().items()},
        "pooled": {str(k): float(v) for k, v in pooled.items()},
    }
