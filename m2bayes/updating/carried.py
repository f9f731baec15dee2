"""What an updated posterior carries of its measured cells: old residuals moved, new ones added."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.discrepancy import cell_scale
from m2bayes.factors import with_skus
from m2bayes.measurements import runs_by_cell
from m2bayes.predictive import law_of
from m2bayes.residuals import residuals

SETTLED = 100.0  # cells of a SKU at which its own errors say as much of `wider` as its relatives'
USUAL = 1.0  # widening where no relative tells
NAMES = ("residual", "residual_noise", "residual_shape", "residual_gain")
LABELS = ("residual_sku", "residual_architecture")


def with_residuals(
    draws: xr.Dataset, parent: xr.Dataset, table: pd.DataFrame, sheets: xr.Dataset
) -> xr.Dataset:
    """Draws with the residuals of their parent and of new rows.

    Parameters
    ----------
    draws : Dataset, dims (chain, draw, sku, architecture)
        Updated, without residuals.
    parent : Dataset, dims (chain, draw, sku, architecture, cell)
        That they were updated from, with residuals or without.
    table : DataFrame
        Rows that may be believed [s], from `m2bayes.measurements.checked`.
    sheets : Dataset, dims (sku,)
        Of the SKUs or units of `table`.

    Returns
    -------
    Dataset, dims (chain, draw, sku, architecture, cell)
        With what `m2bayes.residuals.residuals` gives of all cells.
    """
    law, units = law_of(draws), [str(s) for s in sheets["sku"].values]
    parts, wider = [], _wider(parent)
    if "residual" in parent:
        parts.append(_moved(parent, draws, sheets))
    if len(table):
        cells = runs_by_cell(table, skus=units, law=law)
        mine = sheets.sel(sku=sorted(set(cells["sku"].values)))
        found = residuals(draws, cells, mine)
        parts.append({k: (found[k].dims, found[k].values) for k in (*NAMES, *LABELS)})
        wider |= _shrunk(found, wider, parent, mine)
    if not parts:
        return draws
    joined = {
        name: (parts[0][name][0], np.concatenate([part[name][1] for part in parts]))
        for name in (*NAMES, *LABELS)
    }
    held = [wider.get(str(sku), USUAL) for sku in draws["sku"].values]
    return draws.assign(joined).assign(residual_wider=("sku", np.array(held)))


def _wider(parent: xr.Dataset) -> dict[str, float]:
    """Widening of each SKU that the parent knows, no dims [1]."""
    if "residual_wider" not in parent:
        return {}
    pairs = zip(parent["sku"].values, parent["residual_wider"].values, strict=True)
    return {str(sku): float(value) for sku, value in pairs}


def _shrunk(
    found: xr.Dataset, known: dict[str, float], parent: xr.Dataset, sheets: xr.Dataset
) -> dict[str, float]:
    """Widening of new SKUs [1]: few cells tell little of it, relatives and the usual the rest."""
    out = {}
    for sku, family in zip(sheets["sku"].values, sheets["architecture"].values, strict=True):
        if str(sku) in known:
            continue
        at = parent["residual_architecture"].values == family if "residual" in parent else []
        relatives = set(parent["residual_sku"].values[at].astype(str)) if len(at) else set()
        usual = np.mean([np.log(known[r]) for r in relatives]) if relatives else np.log(USUAL)
        n = float((found["residual_sku"].values == sku).sum())
        own = np.log(float(found["residual_wider"].sel(sku=sku)))
        out[str(sku)] = float(np.exp((n * own + SETTLED * usual) / (n + SETTLED)))
    return out


def _moved(parent: xr.Dataset, draws: xr.Dataset, sheets: xr.Dataset) -> dict[str, tuple]:
    """The parent's residuals; of updated SKUs at the new mean of the factors."""
    out = {name: (parent[name].dims, parent[name].values.copy()) for name in (*NAMES, *LABELS)}
    for sku in sheets["sku"].values:
        mine = parent["residual_sku"].values == sku
        if mine.any():
            sheet, sizes = sheets.sel(sku=[sku]), parent["residual_shape"].values[mine]
            old, scale = _mean_log_time(parent, sheet, sizes)
            new, _ = _mean_log_time(draws, sheet, sizes)
            out["residual"][1][mine] += ((old - new) / scale).astype("float32")
    return out


def _mean_log_time(
    posterior: xr.Dataset, sheet: xr.Dataset, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log of the modelled time at the mean of the factors, and its scale, dims (cell,) [1]."""
    law, mean = law_of(posterior), posterior.mean(("chain", "draw")).expand_dims(chain=1, draw=1)
    mean = mean.assign_attrs(posterior.attrs)
    label = str(sheet["sku"].values[0]).rpartition("/")[2]
    cells = xr.Dataset(
        {v: ("cell", sizes[:, i].astype(float)) for i, v in enumerate(law.sizes)}
        | {v: ("cell", np.full(len(sizes), float(x))) for v, x in law.given.items()}
        | {v: ("cell", np.full(len(sizes), label)) for v in law.labels}
    )
    factors = with_skus(mean, sheet, seed=0).isel(chain=0, draw=0, drop=True)
    factors = factors.isel(sku=0, drop=True) if "sku" in factors.dims else factors
    terms = law.terms(cells, sheet.isel(sku=0, drop=True), regime="benchmark", backend="any")
    time = law.time(terms, factors).broadcast_like(cells[law.sizes[0]]).values
    spread = {k: _spread(mean, k, str(sheet["sku"].values[0])) for k in ("cell", "time")}
    steady = law.steady({str(k): v.values for k, v in terms.data_vars.items()})
    return np.log(time), cell_scale(spread["cell"], spread["time"], time, steady)


def _spread(mean: xr.Dataset, kind: str, sku: str) -> float:
    """Spread of one SKU at the mean of the draws [1]."""
    name = f"log_sigma_{kind}"
    held = mean[name] if name in mean else mean[f"{name}_mean"]
    return float(np.exp(held.sel(sku=sku) if "sku" in held.dims else held).squeeze())
