"""Laws on posterior draws: the times of kernels on SKUs measured or not. Needs no PyMC."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.discrepancy import cell_scale, run_noise, unit_fields
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.factors import by_sku, families, with_skus
from m2bayes.mechanism.gemm import LAWS, cache_gain, gemm_terms
from m2bayes.residuals import known

LARGEST = 10.0  # log error beyond which a law is useless anyway, and exp would overflow


def predict(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    *,
    regime: str = "served",
    backend: str = "any",
    noise: int = 0,
    seed: int = 0,
) -> xr.DataArray:
    """Joint draws of the time of each kernel on each SKU.

    Time is the law of the factors, times the discrepancy of the shape, times the build effect.
    All SKUs share a draw's shared factors, so comparisons are joint. With `noise`, it is the
    median of that many new runs instead of the noise-free time.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Stored draws with attributes ``law`` and ``factors``.
    cells : Dataset
        ``M``, ``N``, ``K`` [1], dims such as (workload, op).
    datasheets : Dataset, dims (sku,)
        Of the SKUs asked for, for one dtype.
    regime : {"served", "benchmark"}
        See `m2bayes.mechanism.gemm.gemm_terms`.
    backend : str
        One that the posterior knows, or ``any``: the build effect is then drawn.
    noise : int
        Number of new runs; 0 for the noise-free time.
    seed : int
        Of everything that is drawn here.

    Returns
    -------
    DataArray, dims (chain, draw, sku) and those of `cells`
        Kernel time [s].

    Raises
    ------
    UnknownNameError
        For a backend or law that is unknown.
    WorkloadError
        If the datasheets are for another dtype than the posterior.
    """
    law = LAWS.get(str(posterior.attrs["law"]))
    if law is None:
        raise UnknownNameError("law", str(posterior.attrs["law"]), LAWS)
    dtype = str(datasheets["dtype"].item()) if "dtype" in datasheets.coords else None
    if dtype not in (None, posterior.attrs.get("dtype")):
        raise WorkloadError(
            f"datasheets for {dtype}: the posterior knows {posterior.attrs['dtype']}"
        )
    dims = cells["M"].dims
    flat, where = _unique_shapes(cells)
    factors = with_skus(posterior, datasheets, seed=seed)
    terms = gemm_terms(flat, datasheets, regime=regime, backend=backend)
    blocks = []
    for sku in datasheets["sku"].values:
        factor = factors.sel(sku=sku) if "sku" in factors.dims else factors
        rows, sheet = _rows(terms.sel(sku=sku)), datasheets.sel(sku=[sku])
        columns = _columns(factor)
        time = law(rows, columns)
        shapes = _field_points(flat, rows, columns)
        error = _error(posterior, shapes, sheet, time, backend=backend, noise=noise, seed=seed)
        factor_of_time = np.exp(np.clip(error.astype(float), -LARGEST, LARGEST))
        blocks.append((time * factor_of_time)[..., where])
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    shape = (len(blocks), chains, draws, *cells["M"].shape)
    times = np.moveaxis(np.stack(blocks).reshape(shape), 0, 2)
    coords = {d: posterior[d] for d in ("chain", "draw")} | {
        "sku": datasheets["sku"].values,
        **{d: cells[d] for d in dims if d in cells.coords},
    }
    return xr.DataArray(
        times, dims=("chain", "draw", "sku", *dims), coords=coords, attrs={"units": "s"}
    )


def _unique_shapes(cells: xr.Dataset) -> tuple[xr.Dataset, np.ndarray]:
    """Distinct (M, N, K) along one dim ``shape``, and where each cell finds its own."""
    sizes = np.stack([cells[v].values.ravel() for v in ("M", "N", "K")], axis=1)
    unique, where = np.unique(sizes.astype(float), axis=0, return_inverse=True)
    flat = xr.Dataset({v: ("shape", unique[:, i]) for i, v in enumerate(("M", "N", "K"))})
    return flat, where.ravel()


def _rows(terms: xr.Dataset) -> dict[str, np.ndarray]:
    """Terms of one SKU as arrays with dims (1, shape) or (1, 1)."""
    return {str(k): np.atleast_2d(v.values) for k, v in terms.data_vars.items()}


def _field_points(
    flat: xr.Dataset, rows: dict[str, np.ndarray], columns: dict[str, np.ndarray]
) -> np.ndarray:
    """M, N, K and mean cache gain of each shape [1], dims (shape, 4)."""
    gain = cache_gain(rows, {name: column.mean() for name, column in columns.items()})
    sizes = [flat[v].values for v in ("M", "N", "K")]
    return np.stack([*sizes, np.broadcast_to(gain[0], sizes[0].shape)], axis=1)


def _columns(factors: xr.Dataset) -> dict[str, np.ndarray]:
    """Factors of one SKU as arrays with dims (sample, 1)."""
    return {
        str(k): v.transpose("chain", "draw", ...).values.reshape(-1, 1)
        for k, v in factors.data_vars.items()
    }


def _error(
    posterior: xr.Dataset,
    shapes: np.ndarray,
    sheet: xr.Dataset,
    time: np.ndarray,
    *,
    backend: str,
    noise: int,
    seed: int,
) -> np.ndarray:
    """Log of discrepancy, build effect and, with `noise`, run noise; dims (sample, shape)."""
    sku, family = str(sheet["sku"].values[0]), families(sheet)[0]
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    unit, widening = unit_fields(
        shapes,
        sku=sku,
        architecture=family,
        draws=samples,
        seed=seed,
        residuals=known(posterior, family, sku),
    )
    relative, absolute = (
        _scale(posterior, f"log_sigma_{kind}", sheet, seed) for kind in ("cell", "time")
    )
    delta = cell_scale(relative, absolute, time) * unit
    if not noise:
        return delta + _build_effect(posterior, sku, backend, 1, seed)[0]
    sigma_run = _scale(posterior, "log_sigma_run", sheet, seed)
    labels = ["x".join(f"{v:.0f}" for v in shape) for shape in shapes[:, :3]]
    run = run_noise(labels, sku=sku, backend=backend, draws=samples, runs=noise, seed=seed)
    build = _build_effect(posterior, sku, backend, noise, seed)
    return delta + np.median(build + sigma_run * widening * run, axis=0)


def _scale(posterior: xr.Dataset, name: str, sheet: xr.Dataset, seed: int) -> np.ndarray:
    value = by_sku(posterior, name, sheet, seed).transpose("chain", "draw", ...)
    return np.exp(value.values).reshape(-1, 1)


def _build_effect(
    posterior: xr.Dataset, sku: str, backend: str, runs: int, seed: int
) -> np.ndarray:
    """Build effect of each run, dims (run, sample, 1): the named backend's own, or drawn."""
    known = posterior["build_effect"]
    if backend != "any" and backend not in known["backend"].values:
        raise UnknownNameError("backend", backend, ["any", *map(str, known["backend"].values)])
    if backend != "any" and sku in posterior.indexes["sku"]:
        own = known.sel(sku=sku, backend=backend).transpose("chain", "draw").values
        return np.broadcast_to(own.reshape(1, -1, 1), (runs, own.size, 1))
    spread = posterior["build_sd"].transpose("chain", "draw").values.reshape(1, -1)
    rng = labelled_rng(seed, "build", sku, backend)
    return (spread * rng.standard_normal((runs, spread.size)))[..., None]


def summary(time: xr.DataArray, *, mass: float = 0.9) -> dict[str, Any]:
    """Median, mean and equal-tailed interval [units of `time`] over its draws, other dims kept."""
    flat = time.transpose("chain", "draw", ...).values.reshape(-1, *time.shape[2:])
    low, median, high = np.quantile(flat, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
    return {"median": median, "mean": flat.mean(axis=0), "low": low, "high": high}
