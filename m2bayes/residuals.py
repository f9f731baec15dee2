"""What measured cells say of the discrepancy between shapes, for a posterior to carry along."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from m2bayes.discrepancy import Residuals, cell_scale, moments
from m2bayes.factors import by_sku, with_skus
from m2bayes.mechanism.laws import LAWS
from m2bayes.random_fields import Lengths

FEW = 100  # draws that tell the spread of the modelled times
WIDER = (0.2, 5.0)  # smallest and largest inflation
COVERED = (0.9, 2.1318)  # share of |t| with 4 degrees of freedom, and its quantile


def known(posterior: xr.Dataset, family: str, sku: str) -> Residuals | None:
    """Residuals of one architecture's cells, dims (cell,) [1], as `sku` sees them; None if none."""
    if "residual" not in posterior:
        return None
    found = _of(posterior, family)
    if sku in found.sku:
        at = posterior.indexes["sku"].get_loc(sku)
        return replace(found, wider=float(posterior.variables["residual_wider"].values[at]))
    return found


def _of(held: xr.Dataset, family: str) -> Residuals:
    own = held.variables["residual_architecture"].values == family
    names = ("residual_shape", "residual_gain", "residual_sku", "residual", "residual_noise")
    shape, gain, sku, unit, noise = (held.variables[name].values[own] for name in names)
    return Residuals(
        shapes=np.column_stack([shape, gain]).astype(float),
        sku=sku.astype(str),
        unit=unit.astype(float),
        noise=noise.astype(float),
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
        see `inflation` [1]. Merge it into the draws.
    """
    mean = posterior.mean(("chain", "draw")).expand_dims(chain=1, draw=1)
    mean.attrs = posterior.attrs
    sku, families_ = (
        cells["sku"].values.astype(str),
        datasheets["architecture"].sel(sku=cells["sku"]),
    )
    law = LAWS[str(mean.attrs["law"])]
    time, effect, gain, steady = _mean_time(mean, cells, datasheets)
    log_ratio = np.log(cells["op_time"].values) - np.log(time) - effect
    relative, absolute, run = (
        np.exp(_spread(mean, f"log_sigma_{kind}", datasheets).sel(sku=sku).values)
        for kind in ("cell", "time", "run")
    )
    scale = cell_scale(relative, absolute, time.mean(axis=1), steady)
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
    wider = []
    for name, family in zip(
        datasheets["sku"].values, datasheets["architecture"].values, strict=True
    ):
        own = sku == name
        spread = _parameter_variance(posterior, cells.isel(cell=own), datasheets.sel(sku=[name]))
        known_ = _of(out, str(family))
        wider.append(
            inflation(known_, str(name), lengths=law.lengths, spread=spread / scale[own] ** 2)
        )
    return out.assign(residual_wider=("sku", wider)).assign_coords(sku=datasheets["sku"].values)


def inflation(
    residuals: Residuals, sku: str, *, lengths: Lengths, spread: np.ndarray | float = 0.0
) -> float:
    """How much wider what neighbours leave unknown is than the field says [1].

    Each measured cell of the SKU is predicted from cells of other shapes; the factor, applied as
    `moments` applies it, makes the 90 % quantile of the absolute error over its predictive scale
    that of a Student-t with 4 degrees of freedom.

    Parameters
    ----------
    residuals : Residuals
        Of the architecture.
    sku : str
        Whose cells are predicted.
    lengths : tuple of float
        See `moments`.
    spread : array or float, dims (cell,) of the SKU
        Variance that the factors' posterior adds to a prediction, in units of the scale [1].
    """
    own = residuals.sku == sku
    alone = replace(residuals, wider=1.0)
    known = moments(residuals.shapes[own], sku=sku, residuals=alone, lengths=lengths, left_out=True)
    error, rest = np.abs(residuals.unit[own] - known.mean), residuals.noise[own] + spread
    learnt, factors = 1 - known.sd**2, np.geomspace(*WIDER, 97)
    reached = [
        np.quantile(error / np.sqrt((known.sd * (1 + learnt * (f - 1))) ** 2 + rest), COVERED[0])
        for f in factors
    ]
    return float(np.interp(-COVERED[1], -np.array(reached), factors))


def _spread(mean: xr.Dataset, name: str, datasheets: xr.Dataset) -> xr.DataArray:
    """Log spread of each SKU [1], dims (sku,), at the mean of the draws."""
    held = by_sku(mean, name, datasheets, seed=0).isel(chain=0, draw=0, drop=True)
    return held.broadcast_like(datasheets["sku"]).assign_coords(sku=datasheets["sku"].values)


def _parameter_variance(
    posterior: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset
) -> np.ndarray:
    """Variance over some draws of the log of one SKU's modelled times [1], dims (cell,)."""
    step = max(1, posterior.sizes["draw"] // FEW)
    some = posterior.isel(chain=[0], draw=slice(None, None, step))
    law, factors = LAWS[str(posterior.attrs["law"])], with_skus(some, datasheets, seed=0)
    backend = cells["backend"].isel(run=0)
    terms = law.terms(cells.isel(run=0), datasheets, regime="benchmark", backend=backend)
    time = law.time(terms, dict(factors.data_vars)).transpose("chain", "draw", "sku", "cell")
    return np.asarray(np.log(time.values[0, :, 0]).var(axis=0))


def _mean_time(
    mean: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Modelled time [s] of each run at the mean of the factors, build effect, cache gain [1].

    And the mean over runs of what of the time is steady [s], dims (cell,), or None.
    """
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
    steady = law.steady(terms)
    if steady is not None:
        steady = steady.broadcast_like(cells["op_time"]).mean("run").values
    if "build_effect" not in mean:  # each unit is one build
        return time, np.zeros(time.shape), gain, steady
    backend = cells["backend"].where(cells["backend"] != "", mean["backend"].values[0])
    effect = mean["build_effect"].isel(chain=0, draw=0).sel(sku=sku, backend=backend)
    return time, effect.transpose("cell", "run").values, gain, steady
