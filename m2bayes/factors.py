"""Factors of the SKUs asked for, from draws: gathered where measured, else drawn from above."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import RecordError

Held = dict[str, tuple[tuple[str, ...], np.ndarray]]
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
    out = factor_draws(posterior, datasheets, seed=seed)
    labels: dict[str, Any] = {d: posterior[d] for d in ("chain", "draw")}
    if any("sku" in dims for dims, _ in out.values()):
        labels["sku"] = datasheets["sku"].values
    return xr.Dataset(out, coords=labels)


def factor_draws(posterior: xr.Dataset, datasheets: xr.Dataset, *, seed: int) -> Held:
    """Dims, of chain, draw and sku, and draws [units as in the card] by factor, as `with_skus`."""
    out = {}
    for factor in json.loads(posterior.attrs["factors"]):
        name = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
        dims, values = pooled(posterior, name, datasheets, seed)
        out[factor["name"]] = dims, np.exp(values) if factor["link"] == "log" else values
    return out


def column(held: tuple[tuple[str, ...], np.ndarray], at: int) -> np.ndarray:
    """Draws of the SKU at a place, from `pooled`, dims (sample, 1) [its own unit]."""
    dims, values = held
    return (values[at] if "sku" in dims else values).reshape(-1, 1)


def by_sku(posterior: xr.Dataset, name: str, sheets: xr.Dataset, seed: int) -> xr.DataArray:
    """One pooled variable for every SKU of `sheets`; one that all share has no such dim."""
    dims, values = pooled(posterior, name, sheets, seed)
    coords: dict[str, Any] = {d: posterior[d] for d in ("chain", "draw")}
    if "sku" in dims:
        coords["sku"] = sheets["sku"].values
    return xr.DataArray(values, dims=dims, coords=coords)


def of_sku(held: xr.Dataset, at: int, *dims: str) -> dict[str, np.ndarray]:
    """Variables of the SKU at a place [own units], dims as given, first; labels cost time."""
    own = {str(k): held.variables[k] for k in held.data_vars}
    one = {k: v.isel(sku=at) if "sku" in v.dims else v for k, v in own.items()}
    return {k: v.transpose(*dims, ...).values for k, v in one.items()}


def pooled(
    posterior: xr.Dataset, name: str, sheets: xr.Dataset, seed: int
) -> tuple[tuple[str, ...], np.ndarray]:
    """Dims, of chain, draw and sku, and draws [its own unit] of `by_sku`."""
    measured = name in posterior and "sku" in posterior.variables[name].dims
    if not measured and f"{name}_architecture" not in posterior:
        return ("chain", "draw"), _held(posterior, name if name in posterior else f"{name}_mean")
    own = _Columns(posterior, name, "sku" if measured else "")
    known = _Columns(posterior, f"{name}_architecture", "architecture")
    columns = []
    for i, (sku, family) in enumerate(zip(sheets["sku"].values, families(sheets), strict=True)):
        if sku in own:
            columns.append(own[sku])
            continue
        level = known[family] if family in known else _new_family(posterior, name, family, seed)
        if measured:
            spread = _held(posterior, f"{name}_sku_sd")
            if "spread" in sheets:
                spread = spread * float(sheets["spread"].values[i])
            level = level + spread * _normal(level, seed, name, str(sku))
        columns.append(level)
    return ("sku", "chain", "draw"), np.stack(columns)


def _new_family(posterior: xr.Dataset, name: str, family: str, seed: int) -> np.ndarray:
    """Centre of a pooled variable for an architecture that nobody measured, dims (chain, draw)."""
    mean = _held(posterior, f"{name}_mean")
    if f"{name}_architecture" not in posterior:
        return mean
    spread = _held(posterior, f"{name}_architecture_sd")
    return mean + spread * _normal(mean, seed, name, f"architecture {family}")


class _Columns:
    """Draws of each label of a variable, dims (chain, draw); of none if there is no such dim."""

    def __init__(self, posterior: xr.Dataset, name: str, dim: str) -> None:
        self.at: dict[str, int] = {}
        if dim and name in posterior:
            self.at = {v: i for i, v in enumerate(posterior.variables[dim].values.tolist())}
            self.values = posterior.variables[name].transpose(dim, "chain", "draw").values

    def __contains__(self, label: str) -> bool:
        return label in self.at

    def __getitem__(self, label: str) -> np.ndarray:
        return _wide(self.values[self.at[label]])


def _held(posterior: xr.Dataset, name: str) -> np.ndarray:
    """Draws of a variable, dims (chain, draw)."""
    if name not in posterior:
        held = posterior.attrs.get("name", "without a name")
        raise RecordError(f"posterior {held} has no variable {name}; fit the model again")
    return _wide(posterior.variables[name].transpose("chain", "draw").values)


def _wide(values: np.ndarray) -> np.ndarray:
    """In double precision, or exp would depend on which SKUs are asked for; dims kept."""
    return values.astype("float64")


def _normal(like: np.ndarray, seed: int, *labels: str) -> np.ndarray:
    return labelled_rng(seed, *labels).standard_normal(like.shape)
