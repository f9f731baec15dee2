"""Factors of the SKUs asked for, from draws: gathered where measured, else drawn from above."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import RecordError

BASES = ("measured", "architecture", "population")


def basis(posterior: xr.Dataset, datasheets: xr.Dataset) -> xr.DataArray:
    """Say what each SKU's prediction rests on, dims (sku,).

    ``measured``: its own timings; ``architecture``: those of its architecture; ``population``:
    only those of other architectures.
    """
    skus, architectures = posterior.indexes["sku"], posterior.indexes["architecture"]
    found = [
        BASES[0] if sku in skus else BASES[1] if family in architectures else BASES[2]
        for sku, family in zip(datasheets["sku"].values, families(datasheets), strict=True)
    ]
    return xr.DataArray(found, dims="sku", coords={"sku": datasheets["sku"]})


def families(datasheets: xr.Dataset) -> list[str]:
    """Architecture of each SKU as plain text, dims (sku,)."""
    return [str(a) for a in datasheets["architecture"].values]


def with_skus(posterior: xr.Dataset, datasheets: xr.Dataset, *, seed: int) -> xr.Dataset:
    """Factors of the SKUs asked for: gathered where measured, else drawn from the level above.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Stored draws with attribute ``factors``, a JSON list of ``{"name", "link"}``.
    datasheets : Dataset, dims (sku,)
        Of the SKUs asked for, in any order, with coordinate ``architecture``; or of units, see
        `m2bayes.kernels.unit_sheets`.
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
        value = by_sku(posterior, name, datasheets, seed)
        out[factor["name"]] = np.exp(value) if factor["link"] == "log" else value
    return xr.Dataset(out)


def by_sku(posterior: xr.Dataset, name: str, sheets: xr.Dataset, seed: int) -> xr.DataArray:
    """One pooled variable for every SKU of `sheets`; one that all share is returned as it is."""
    measured = name in posterior and "sku" in posterior[name].dims
    if not measured and f"{name}_architecture" not in posterior:
        return _held(posterior, name if name in posterior else f"{name}_mean")
    columns = []
    for sku, family in zip(sheets["sku"].values, families(sheets), strict=True):
        if measured and sku in posterior.indexes["sku"]:
            columns.append(_held(posterior, name).sel(sku=sku, drop=True))
            continue
        level = _architecture_level(posterior, name, family, seed)
        if measured:
            spread = _held(posterior, f"{name}_sku_sd")
            if "spread" in sheets:
                spread = spread * float(sheets["spread"].sel(sku=sku))
            level = level + spread * _normal(level, seed, name, str(sku))
        columns.append(level)
    names = xr.DataArray(sheets["sku"].values, dims="sku", name="sku")
    return xr.concat(columns, dim=names, coords="minimal", compat="override")


def _architecture_level(posterior: xr.Dataset, name: str, family: str, seed: int) -> xr.DataArray:
    """Centre of a pooled variable for SKUs of one architecture, drawn anew for an unknown one."""
    mean = _held(posterior, f"{name}_mean")
    if f"{name}_architecture" not in posterior:
        return mean
    if family in posterior.indexes["architecture"]:
        return _held(posterior, f"{name}_architecture").sel(architecture=family, drop=True)
    spread = _held(posterior, f"{name}_architecture_sd")
    return mean + spread * _normal(mean, seed, name, f"architecture {family}")


def _held(posterior: xr.Dataset, name: str) -> xr.DataArray:
    if name not in posterior:
        held = posterior.attrs.get("name", "without a name")
        raise RecordError(f"posterior {held} has no variable {name}; fit the model again")
    return posterior[name].astype("float64")  # or exp would depend on which SKUs are asked for


def _normal(like: xr.DataArray, seed: int, *labels: str) -> xr.DataArray:
    return xr.zeros_like(like) + labelled_rng(seed, *labels).standard_normal(like.shape)
