"""What measured cells say of the discrepancy between shapes, for a posterior to carry along."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from m2bayes.discrepancy import Residuals, cell_scale, inflation
from m2bayes.factors import by_sku, with_skus
from m2bayes.mechanism.laws import LAWS


def known(posterior: xr.Dataset, family: str, sku: str) -> Residuals | None:
    """Residuals of one architecture's cells, dims (cell,) [1], as `sku` sees them; None if none."""
    if "residual" not in posterior:
        return None
    found = _of(posterior, family)
    if sku in found.sku:
        return replace(found, wider=float(posterior["residual_wider"].sel(sku=sku)))
    return found


def _of(held: xr.Dataset, family: str) -> Residuals:
    own = held["residual_architecture"].values == family
    return Residuals(
        shapes=np.column_stack([held["residual_shape"], held["residual_gain"]])[own].astype(float),
        sku=held["residual_sku"].values[own].astype(str),
        unit=held["residual"].values[own].astype(float),
        noise=held["residual_noise"].values[own].astype(float),
    )


def residuals(posterior: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset) -> xr.Dataset:
    """What measured cells say of the discrepancy, at the posterior mean of the factors.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Stored draws with attributes ``law`` and ``factors``.
    cells : Dataset, dims (cell, run)
        Measured runs, from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the SKUs of `cells`.

    Returns
    -------
    Dataset, dims (cell, sku)
        ``residual``, the median over runs of log measured over modelled time, over the scale of
        the discrepancy; ``residual_noise``, its variance from run noise [1]; ``residual_shape``
        (cell, size) and ``residual_gain``, its log gain from L2 [1];
        ``residual_sku``, ``residual_architecture``; ``residual_wider`` (sku),
        see `m2bayes.discrepancy.inflation` [1]. Merge it into the draws.
    """
    mean = posterior.mean(("chain", "draw")).expand_dims(chain=1, draw=1)
    mean.attrs = posterior.attrs
    sku, families_ = (
        cells["sku"].values.astype(str),
        datasheets["architecture"].sel(sku=cells["sku"]),
    )
    law = LAWS[str(mean.attrs["law"])]
    time, effect, gain = _mean_time(mean, cells, datasheets)
    log_ratio = np.log(cells["op_time"].values) - np.log(time) - effect
    relative, absolute, run = (
        np.exp(_spread(mean, f"log_sigma_{kind}", datasheets).sel(sku=sku).values)
        for kind in ("cell", "time", "run")
    )
    scale = cell_scale(relative, absolute, time.mean(axis=1))
    runs = np.isfinite(log_ratio).sum(axis=1)
    shape = np.stack([cells[v].values for v in law.sizes], axis=1)
    out = xr.Dataset(
        {
            "residual": ("cell", (np.nanmedian(log_ratio, axis=1) / scale).astype("float32")),
            "residual_noise": ("cell", ((run / scale) ** 2 / runs).astype("float32")),
            "residual_shape": (("cell", "size"), shape.astype("int32")),
            "residual_gain": ("cell", np.nanmedian(gain, axis=1).astype("float32")),
            "residual_sku": ("cell", sku),
            "residual_architecture": ("cell", families_.values.astype(str)),
        }
    )
    wider = [
        inflation(_of(out, str(family)), str(name), lengths=law.lengths)
        for name, family in zip(
            datasheets["sku"].values, datasheets["architecture"].values, strict=True
        )
    ]
    return out.assign(residual_wider=("sku", wider)).assign_coords(sku=datasheets["sku"].values)


def _spread(mean: xr.Dataset, name: str, datasheets: xr.Dataset) -> xr.DataArray:
    """Log spread of each SKU [1], dims (sku,), at the mean of the draws."""
    held = by_sku(mean, name, datasheets, seed=0).isel(chain=0, draw=0, drop=True)
    return held.broadcast_like(datasheets["sku"]).assign_coords(sku=datasheets["sku"].values)


def _mean_time(
    mean: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Modelled time [s] of each run at the mean of the factors, build effect, cache gain [1]."""
    sku, law = cells["sku"], LAWS[str(mean.attrs["law"])]
    factors = with_skus(mean, datasheets, seed=0).isel(chain=0, draw=0, drop=True)
    rows = {
        str(k): v.sel(sku=sku).drop_vars("sku") if "sku" in v.dims else v
        for k, v in factors.data_vars.items()
    }
    sheets = datasheets.sel(sku=sku)
    terms = law.terms(cells, sheets, regime="benchmark", backend=cells["backend"])
    terms = terms.drop_vars("sku")
    time = law.time(terms, rows)
    time = time.broadcast_like(cells["op_time"]).transpose("cell", "run").values
    gain = law.gain(terms, rows).broadcast_like(cells["op_time"])
    gain = gain.where(cells["op_time"].notnull()).transpose("cell", "run").values
    if "build_effect" not in mean:  # each unit is one build
        return time, np.zeros(time.shape), gain
    backend = cells["backend"].where(cells["backend"] != "", mean["backend"].values[0])
    effect = mean["build_effect"].isel(chain=0, draw=0).sel(sku=sku, backend=backend)
    return time, effect.transpose("cell", "run").values, gain
