"""Laws on posterior draws: the times of kernels on SKUs measured or not. Needs no PyMC."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.discrepancy import run_noise, unit_fields
from m2bayes.errors import RecordError, UnknownNameError
from m2bayes.mechanism.gemm import LAWS, gemm_terms

BASES = ("measured", "architecture", "population")


def basis(posterior: xr.Dataset, datasheets: xr.Dataset) -> xr.DataArray:
    """Say what each SKU's prediction rests on, dims (sku,).

    ``measured``: its own timings; ``architecture``: those of its architecture; ``population``:
    only those of other architectures.
    """
    skus, families = posterior.indexes["sku"], posterior.indexes["architecture"]
    found = [
        BASES[0] if sku in skus else BASES[1] if family in families else BASES[2]
        for sku, family in zip(datasheets["sku"].values, _families(datasheets), strict=True)
    ]
    return xr.DataArray(found, dims="sku", coords={"sku": datasheets["sku"]})


def _families(datasheets: xr.Dataset) -> list[str]:
    return [str(a) for a in datasheets["architecture"].values]


def with_skus(posterior: xr.Dataset, datasheets: xr.Dataset, *, seed: int) -> xr.Dataset:
    """Factors of the SKUs asked for: gathered where measured, else drawn from the level above.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Stored draws with attribute ``factors``, a JSON list of ``{"name", "link"}``.
    datasheets : Dataset, dims (sku,)
        Of the SKUs asked for, in any order, with coordinate ``architecture``.
    seed : int
        Of the new draws; a SKU's depend on the seed and its own name only.

    Returns
    -------
    Dataset, dims (chain, draw, sku)
        One variable a factor, on its natural scale, units as in the model's card.

    Raises
    ------
    RecordError
        If the posterior lacks a factor that its card names.
    """
    out = {}
    for factor in json.loads(posterior.attrs["factors"]):
        name = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
        if name not in posterior and f"{name}_mean" not in posterior:
            raise RecordError(f"posterior has no variable {name}; fit the model again")
        value = _by_sku(posterior, name, datasheets, seed)
        out[factor["name"]] = np.exp(value) if factor["link"] == "log" else value
    return xr.Dataset(out)


def _by_sku(posterior: xr.Dataset, name: str, sheets: xr.Dataset, seed: int) -> xr.DataArray:
    """One pooled variable for every SKU of `sheets`; one that all share is returned as it is."""
    by_sku = name in posterior and "sku" in posterior[name].dims
    if not by_sku and f"{name}_architecture" not in posterior:
        return posterior[name if name in posterior else f"{name}_mean"]
    columns = []
    for sku, family in zip(sheets["sku"].values, _families(sheets), strict=True):
        if by_sku and sku in posterior.indexes["sku"]:
            columns.append(posterior[name].sel(sku=sku, drop=True))
            continue
        level = _architecture_level(posterior, name, family, seed)
        if by_sku:
            level = level + posterior[f"{name}_sku_sd"] * _normal(level, seed, name, str(sku))
        columns.append(level)
    names = xr.DataArray(sheets["sku"].values, dims="sku", name="sku")
    return xr.concat(columns, dim=names, coords="minimal", compat="override")


def _architecture_level(posterior: xr.Dataset, name: str, family: str, seed: int) -> xr.DataArray:
    """Centre of a pooled variable for SKUs of one architecture, drawn anew for an unknown one."""
    mean = posterior[f"{name}_mean"]
    if f"{name}_architecture" not in posterior:
        return mean
    if family in posterior.indexes["architecture"]:
        return posterior[f"{name}_architecture"].sel(architecture=family, drop=True)
    spread = posterior[f"{name}_architecture_sd"]
    return mean + spread * _normal(mean, seed, name, f"architecture {family}")


def _normal(like: xr.DataArray, seed: int, *labels: str) -> xr.DataArray:
    return xr.zeros_like(like) + labelled_rng(seed, *labels).standard_normal(like.shape)


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
    """
    law = LAWS.get(str(posterior.attrs["law"]))
    if law is None:
        raise UnknownNameError("law", str(posterior.attrs["law"]), LAWS)
    dims = cells["M"].dims
    flat, where = _unique_shapes(cells)
    factors = with_skus(posterior, datasheets, seed=seed)
    terms = gemm_terms(flat, datasheets, regime=regime, backend=backend)
    blocks = []
    for sku in datasheets["sku"].values:
        factor = factors.sel(sku=sku) if "sku" in factors.dims else factors
        error = _error(
            posterior, flat, datasheets.sel(sku=[sku]), backend=backend, noise=noise, seed=seed
        )
        time = law(_rows(terms.sel(sku=sku)), _columns(factor)) * np.exp(error)
        blocks.append(time[..., where])
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


def _columns(factors: xr.Dataset) -> dict[str, np.ndarray]:
    """Factors of one SKU as arrays with dims (sample, 1)."""
    return {
        str(k): v.transpose("chain", "draw", ...).values.reshape(-1, 1)
        for k, v in factors.data_vars.items()
    }


def _error(
    posterior: xr.Dataset,
    flat: xr.Dataset,
    sheet: xr.Dataset,
    *,
    backend: str,
    noise: int,
    seed: int,
) -> np.ndarray:
    """Log of discrepancy, build effect and, with `noise`, run noise; dims (sample, shape)."""
    sku, family = str(sheet["sku"].values[0]), _families(sheet)[0]
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    shapes = np.stack([flat[v].values for v in ("M", "N", "K")], axis=1)
    unit, widening = unit_fields(shapes, sku=sku, architecture=family, draws=samples, seed=seed)
    delta = _scale(posterior, "log_sigma_cell", sheet, seed) * unit
    if not noise:
        return delta + _build_effect(posterior, sku, backend, 1, seed)[0]
    sigma_run = _scale(posterior, "log_sigma_run", sheet, seed)
    labels = ["x".join(f"{v:.0f}" for v in shape) for shape in shapes]
    run = run_noise(labels, sku=sku, backend=backend, draws=samples, runs=noise, seed=seed)
    build = _build_effect(posterior, sku, backend, noise, seed)
    return delta + np.median(build + sigma_run * widening * run, axis=0)


def _scale(posterior: xr.Dataset, name: str, sheet: xr.Dataset, seed: int) -> np.ndarray:
    value = _by_sku(posterior, name, sheet, seed).transpose("chain", "draw", ...)
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
