"""What the data identified: each factor's prior beside its posterior, by SKU."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.factors import by_sku

LEVELS = (0.05, 0.5, 0.95)
UNMOVED = 0.1  # contraction under which a factor is called "prior only"


def factor_rows(
    draws: xr.Dataset, datasheets: xr.Dataset, prior: dict[str, list[float]]
) -> list[dict[str, Any]]:
    r"""Prior, posterior, contraction and strongest correlation of each factor of each SKU.

    Contraction is :math:`1 - \mathrm{var}_{post} / \mathrm{var}_{prior}` of the factor on the scale
    of its prior (log for a log link): near 1 where the data decide, near 0 where the prior does.

    Parameters
    ----------
    draws : Dataset, dims (chain, draw, …)
        From `m2bayes.database.Database.draws`.
    datasheets : Dataset, dims (sku,)
        Of the measured SKUs.
    prior : dict
        By factor the 5, 50 and 95 % quantile and the standard deviation on the prior's scale, as
        a posterior's record holds them.

    Returns
    -------
    list of dict
        ``factor``, ``source`` (the source's word), ``units``, ``sku`` or ``all``, ``prior`` and
        ``posterior`` (median, low, high), ``contraction`` [1], ``surprising`` (the posterior median
        lies outside the prior's 90 %), ``correlates_with``,
        ``correlation`` [1], ``verdict``.
    """
    card = json.loads(draws.attrs["factors"])
    held = {f["name"]: _on_prior_scale(draws, f, datasheets) for f in card}
    rows = []
    for sku in [str(s) for s in datasheets["sku"].values]:
        columns = {k: v.sel(sku=sku) if "sku" in v.dims else v for k, v in held.items()}
        flat = {k: v.transpose("chain", "draw").values.ravel() for k, v in columns.items()}
        matrix = np.atleast_2d(np.corrcoef(np.stack(list(flat.values()))))
        np.fill_diagonal(matrix, 0.0)
        for i, factor in enumerate(card):
            shared = "sku" not in held[factor["name"]].dims
            if shared and sku != str(datasheets["sku"].values[0]):
                continue
            rows.append(
                _row(factor, "all" if shared else sku, flat[factor["name"]], prior)
                | {
                    "correlates_with": list(flat)[int(np.abs(matrix[i]).argmax())],
                    "correlation": float(matrix[i][np.abs(matrix[i]).argmax()]),
                }
            )
    return sorted(rows, key=lambda r: [f["name"] for f in card].index(r["factor"]))


def _on_prior_scale(draws: xr.Dataset, factor: dict[str, str], sheets: xr.Dataset) -> xr.DataArray:
    name = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
    return by_sku(draws, name, sheets, seed=0)


def _row(
    factor: dict[str, str], sku: str, flat: np.ndarray, prior: dict[str, list[float]]
) -> dict[str, Any]:
    low, middle, high, sd = prior[factor["name"]]
    contraction = 1 - float(flat.var() / sd**2)
    cuts = np.quantile(flat, LEVELS)
    cuts = np.exp(cuts) if factor["link"] == "log" else cuts
    return {
        "factor": factor["name"],
        "source": factor["source"],
        "units": factor["units"],
        "sku": sku,
        "prior": [middle, low, high],
        "posterior": [float(cuts[1]), float(cuts[0]), float(cuts[2])],
        "contraction": contraction,
        "surprising": not low <= float(cuts[1]) <= high,
        "verdict": "prior only" if contraction < UNMOVED else "moved by the data",
    }
