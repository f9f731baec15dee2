"""Unseen 8-bit GEMM cells of measured SKUs, benchmark regime, given the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import averaged, by_build, cell_times, median_of_builds, of_sku, scores
from m2bayes.inputs import Inputs
from m2bayes.kernels import card_of
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.gemm import gemm_terms
from m2bayes.predictive import predict_units

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_fp8_test",)
JUDGED = ("narrow", "posterior")  # fields of the setting
WIDE, SHEET = "bf16 factors", "datasheet roofline"


def run(setting: Setting) -> dict[str, Any]:
    """Score the 8-bit posterior on cells that nothing was fitted to, beside two rivals.

    Returns
    -------
    dict
        ``<posterior>``: by SKU and backend, with the ``mean``, and the mean of each backend; scores
        as in `m2bayes.evaluate.scores` [1]. ``bf16 factors``: the 16-bit posterior at 8-bit
        traffic and rate, which no 8-bit row entered; ``datasheet roofline``.
    """
    database = setting.database
    inputs = Inputs.recorded(database, database.posterior(setting.narrow))
    rows = checked(database.table(DATA[0]), origin=DATA[0], law=inputs.law)
    test = runs_by_cell(rows, skus=inputs.skus, law=inputs.law)
    draws, wide = database.draws(setting.narrow), database.draws(setting.posterior)
    units = setting.few(inputs.skus)
    found: dict[str, dict[str, Any]] = {setting.narrow: {}, WIDE: {}, SHEET: {}}
    for unit in units:
        setting.tell(f"scoring {unit}")
        own = of_sku(test, unit)
        observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
        times = cell_times(draws, own, inputs.datasheets, seed=setting.seed)
        found[setting.narrow][unit] = scores(times.drop_vars("sku", errors="ignore"), observed)
        sheet = inputs.datasheets.sel(sku=[unit])
        guess = _bf16_factors(wide, own, sheet, unit, seed=setting.seed)
        found[WIDE][unit] = scores(guess, observed)
        found[SHEET][unit] = _roofline(own, sheet.isel(sku=0), observed)
    return {name: _averages(by_unit) for name, by_unit in found.items()}


def _bf16_factors(
    posterior: xr.Dataset, cells: xr.Dataset, sheet: xr.Dataset, unit: str, *, seed: int
) -> xr.DataArray:
    """Draws of the law with 16-bit factors at 8-bit traffic and rate [s], dims (…, cell)."""
    card, backend = card_of(unit), unit.split("/")[1]
    families = sheet["architecture"].values[0].split("/")[:1]
    own = sheet.assign_coords(sku=[card], architecture=("sku", families))
    own = own.drop_vars("spread", errors="ignore")
    time = predict_units(
        posterior, cells, own, regime="benchmark", backend=backend, noise=1, seed=seed
    )
    return time.isel(sku=0, drop=True)


def _roofline(cells: xr.Dataset, sheet: xr.Dataset, observed: xr.DataArray) -> dict[str, float]:
    """Errors of the datasheet roofline [1]."""
    terms = gemm_terms(cells, sheet, regime="served")
    memory = (terms["cold_traffic"] + terms["warm_traffic"]) / sheet["peak_bandwidth"]
    guess = np.maximum(terms["ideal_compute"].values, memory.values)
    error = np.abs(guess / observed.values - 1)
    bias = float(np.median(np.log(observed.values / guess)))
    return {"mape": float(error.mean()), "median_ape": float(np.median(error)), "bias": bias}


def _averages(by_unit: dict[str, Any]) -> dict[str, Any]:
    """Add the mean over units, and that of each backend [1]."""
    backends = sorted({unit.split("/")[1] for unit in by_unit})
    parts = {b: {u: s for u, s in by_unit.items() if u.split("/")[1] == b} for b in backends}
    return by_unit | {
        "mean": averaged(by_unit),
        **{backend: averaged(own) for backend, own in parts.items()},
    }
