"""Judge predictive draws against measured cells: errors, calibration, and the band it may keep."""

from __future__ import annotations

import numpy as np
import xarray as xr

from m2bayes.predictive import predict_units
from m2bayes.score import absolute_percentage_error, coverage, crps, pit

MASSES = (0.5, 0.8, 0.9, 0.95)
NARROWEST = 1024


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
        Of one SKU or unit, from `m2bayes.measurements.runs_by_cell`.
    sheets : Dataset, dims (sku,)
        That hold its datasheet.
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
        time = predict_units(
            posterior, cells, sheet, regime="benchmark", backend=backend, noise=1, seed=seed
        )
        parts.append(time.squeeze("sku", drop=True).where(observed.sel(build=build).notnull()))
    return median_of_builds(xr.concat(parts, dim=observed["build"], coords="minimal"))


def scores(
    draws: xr.DataArray, observed: xr.DataArray, point: np.ndarray | None = None
) -> dict[str, float]:
    """Errors of the predictive median, or of `point`, and calibration; means over cells [1].

    ``mape``, ``median_ape``, ``bias`` (median log of observed over predicted), ``crps`` of log
    time, ``coverage_50`` to ``_95`` of equal-tailed intervals, ``pit_mean``.
    """
    flat = draws.transpose("chain", "draw", ...)
    median = np.median(flat.values.reshape(-1, flat.shape[-1]), axis=0)
    centre = observed.copy(data=median if point is None else point)
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
    out["band_low"], out["band_high"] = coverage_band(draws)
    return out


def coverage_band(
    draws: xr.DataArray, mass: float = 0.9, level: float = 0.99
) -> tuple[float, float]:
    """Range in which the coverage over cells of a calibrated model falls [1].

    Every draw in turn plays the measurement of all cells, so errors that the cells share, as those
    of a SKU nobody measured, widen the band.

    Parameters
    ----------
    draws : DataArray, dims (chain, draw, cell)
        Predictive draws [s].
    mass, level : float
        Mass of the equal-tailed interval, and of the band [1].
    """
    flat = draws.transpose("chain", "draw", "cell").values.reshape(-1, draws.sizes["cell"])
    low, high = np.quantile(flat, [(1 - mass) / 2, (1 + mass) / 2], axis=0)
    inside = ((flat >= low) & (flat <= high)).mean(axis=1)
    edges = np.quantile(inside, [(1 - level) / 2, (1 + level) / 2])
    return float(edges[0]), float(edges[1])


def of_sku(cells: xr.Dataset, sku: str) -> xr.Dataset:
    """Cells of one SKU, dims (cell, run)."""
    return cells.isel(cell=np.flatnonzero(cells["sku"].values == sku))


def wide(cells: xr.Dataset) -> np.ndarray:
    """Whether a cell is shaped like a served projection: N and K from 1024, dims (cell,)."""
    return ((cells["N"] >= NARROWEST) & (cells["K"] >= NARROWEST)).values


def judged(
    posterior: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset, *, seed: int
) -> dict[str, dict[str, float]]:
    """Scores on all cells of one SKU, and on the wide ones [1]."""
    draws = cell_times(posterior, cells, sheets, seed=seed).drop_vars("sku", errors="ignore")
    observed = median_of_builds(by_build(cells)).drop_vars("sku", errors="ignore")
    at = np.flatnonzero(wide(cells))
    return {
        "all": scores(draws, observed),
        "wide": scores(draws.isel(cell=at), observed.isel(cell=at)),
    }


def averaged(by_sku: dict[str, dict[str, float]]) -> dict[str, float]:
    """Mean of each score over SKUs [1]."""
    keys = next(iter(by_sku.values())).keys()
    return {k: float(np.mean([s[k] for s in by_sku.values()])) for k in keys}
