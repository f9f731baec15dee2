"""Suites that score stored posteriors on measurements they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.database import Database
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.roofline import (
    activation_traffic,
    gemm_flops,
    roofline_time,
    weight_traffic,
)
from m2bayes.posterior import versions
from m2bayes.predictive import predict
from m2bayes.score import absolute_percentage_error, coverage, crps, pit

MASSES = (0.5, 0.8, 0.9, 0.95)
ROOFLINE = "datasheet_roofline"
Told = Callable[[str], None]


def by_build(cells: xr.Dataset) -> xr.DataArray:
    """Time of each build [s], the median of its runs, dims (cell, build); NaN where it has none."""
    time, backend = cells["op_time"].values, cells["backend"].values
    builds = np.unique(backend[backend != ""])
    columns = []
    for build in builds:
        runs = np.ma.masked_invalid(np.where(backend == build, time, np.nan))
        columns.append(np.ma.median(runs, axis=1).filled(np.nan))
    coords = {"cell": cells["cell"], "build": builds}
    return xr.DataArray(np.stack(columns, axis=1), dims=("cell", "build"), coords=coords)


def median_of_builds(time: xr.DataArray) -> xr.DataArray:
    """Median over ``build``, builds that did not measure a cell left out, other dims kept [s]."""
    ordered = np.sort(time.transpose("build", ...).values, axis=0)  # NaN goes last
    n = np.isfinite(ordered).sum(axis=0)
    low, high = np.maximum((n - 1) // 2, 0), n // 2
    picked = [np.take_along_axis(ordered, at[None], axis=0)[0] for at in (low, high)]
    rest = time.transpose("build", ...).isel(build=0, drop=True)
    return rest.copy(data=(picked[0] + picked[1]) / 2)


def cell_times(
    posterior: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset, *, seed: int
) -> xr.DataArray:
    """Predictive draws of each cell's median over the builds that measured it.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        From `m2bayes.database.Database.draws`.
    cells : Dataset, dims (cell, run)
        Of one SKU, from `m2bayes.measurements.runs_by_cell`.
    sheets : Dataset, dims (sku,)
        That hold the SKU's datasheet.
    seed : int
        Of discrepancies and run noise.

    Returns
    -------
    DataArray, dims (chain, draw, cell)
        Time [s] in the benchmark regime, with the noise of one run of each build. The
        discrepancy is drawn as for a shape that nobody measured.
    """
    sheet = sheets.sel(sku=[str(cells["sku"].values[0])])
    observed = by_build(cells)
    parts = []
    for build in observed["build"].values:
        backend = str(build)
        time = predict(
            posterior, cells, sheet, regime="benchmark", backend=backend, noise=1, seed=seed
        )
        parts.append(time.squeeze("sku", drop=True).where(observed.sel(build=build).notnull()))
    return median_of_builds(xr.concat(parts, dim=observed["build"], coords="minimal"))


def scores(draws: xr.DataArray, observed: xr.DataArray) -> dict[str, float]:
    """Errors of the predictive median and calibration of the draws, means over cells [1].

    ``mape``, ``median_ape``, ``bias`` (median log of observed over predicted), ``crps`` of log
    time, ``coverage_50`` to ``_95`` of equal-tailed intervals, ``pit_mean``.
    """
    flat = draws.transpose("chain", "draw", ...)
    centre = draws.isel(chain=0, draw=0, drop=True).copy(
        data=np.median(flat.values.reshape(-1, flat.shape[-1]), axis=0)
    )
    error = absolute_percentage_error(centre, observed)
    log_draws = draws.copy(data=np.log(draws.values))
    log_observed = observed.copy(data=np.log(observed.values))
    out = {
        "mape": float(error.mean()),
        "median_ape": float(error.median()),
        "bias": float(np.median(np.log(observed.values / centre.values))),
        "crps": float(crps(log_draws, log_observed).mean()),
        "pit_mean": float(pit(draws, observed).mean()),
    }
    for mass in MASSES:
        out[f"coverage_{mass * 100:.0f}"] = float(coverage(draws, observed, mass=mass).mean())
    return out


def roofline_scores(cells: xr.Dataset, sheet: xr.Dataset) -> dict[str, float]:
    """Errors of the datasheet roofline on the same cells [1]; it has no distribution to judge."""
    M, N, K = (cells[v] for v in ("M", "N", "K"))
    time = roofline_time(
        gemm_flops(M, N, K),
        weight_traffic(N, K) + activation_traffic(M, N, K),
        peak_flop_rate=float(sheet["peak_flop_rate"]),
        peak_bandwidth=float(sheet["peak_bandwidth"]),
    ).drop_vars("sku")
    observed = median_of_builds(by_build(cells)).drop_vars("sku", errors="ignore")
    error = absolute_percentage_error(time, observed)
    bias = float(np.median(np.log(observed.values / time.values)))
    return {"mape": float(error.mean()), "median_ape": float(error.median()), "bias": bias}


def gemm_cells(
    database: Database, *, posteriors: tuple[str, ...], data: str, seed: int, tell: Told
) -> dict[str, Any]:
    """Score posteriors on cells of `data`, SKU by SKU, beside the datasheet roofline.

    Parameters
    ----------
    database : Database
        That holds them.
    posteriors : tuple of str
        Names or paths of records.
    data : str
        Data set that none of them was fitted to.
    seed : int
        Of the predictive draws.
    tell : callable
        Told what is being scored.

    Returns
    -------
    dict
        ``results[posterior][sku]`` and ``mean`` over SKUs, as in `scores` [1].
    """
    table = checked(database.table(data), origin=data)
    skus = sorted(table["sku"].unique())
    sheets = database.datasheets(skus)
    cells = runs_by_cell(table, skus=skus)
    results: dict[str, dict[str, dict[str, float]]] = {ROOFLINE: {}}
    for name in posteriors:
        posterior = database.draws(name)
        results[posterior.attrs["name"]] = {}
        for sku in skus:
            tell(f"{posterior.attrs['name']} on {sku}")
            own = cells.isel(cell=np.flatnonzero(cells["sku"].values == sku))
            observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
            draws = cell_times(posterior, own, sheets, seed=seed).drop_vars("sku", errors="ignore")
            results[posterior.attrs["name"]][sku] = scores(draws, observed)
            results[ROOFLINE][sku] = roofline_scores(own, sheets.sel(sku=sku))
    for by_sku in results.values():
        keys = next(iter(by_sku.values())).keys()
        by_sku["mean"] = {k: float(np.mean([s[k] for s in by_sku.values()])) for k in keys}
    return {
        "suite": "gemm-cells",
        "command": "m2bayes evaluate gemm-cells",
        "data": {"name": data, "sha256": database.data_record(data).sha256},
        "posteriors": {name: database.posterior(name).draws["sha256"] for name in posteriors},
        "seed": seed,
        "versions": versions(),
        "results": results,
    }


SUITES: dict[str, dict[str, Any]] = {
    "gemm-cells": {
        "run": gemm_cells,
        "posteriors": ("gemm_bf16-const_ceiling", "gemm_bf16-hier_gemm"),
        "data": "gemm_bf16_test",
    }
}
