"""A kernel on a card is a unit of its own where a law's factors belong to the kernel.

Its label stands where a SKU's name stands, ``H100-80GB-SXM/vllm/gqa``, and the label of the kernels
of one library on one generation of tensor cores, ``wgmma/vllm/gqa``, where an architecture stands:
so pooling, prediction, discrepancy and leaving out are the same for every law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.mechanism.laws import Law

# one backend, another library or one a year older: the label of its family is set apart
LIBRARIES = {
    ("Ampere", "sglang"): "flash-attention",
    ("Ampere", "vllm/mha"): "older",
    ("Ampere", "vllm/gqa"): "older",
}


def card_of(unit: str) -> str:
    """Name of the card of a unit.

    >>> card_of("H100-80GB-SXM/vllm/gqa")
    'H100-80GB-SXM'
    """
    return unit.partition("/")[0]


def unit_labels(law: Law, skus: Any, cells: Any, backend: Any) -> np.ndarray:
    """Label of the unit that each cell belongs to; the SKU itself where factors are the card's."""
    skus = np.asarray(skus, dtype=str)
    if law.variant is None:
        return skus
    return np.char.add(np.char.add(skus, "/"), law.variant(cells, backend))


def unit_sheets(law: Law, datasheets: xr.Dataset, units: Sequence[str]) -> xr.Dataset:
    """Datasheets of units: their card's numbers, their own label, and their family's.

    Parameters
    ----------
    law : Law
        That says whose factors they are.
    datasheets : Dataset, dims (sku,)
        Of all their cards.
    units : sequence of str
        Labels from `unit_labels`.

    Returns
    -------
    Dataset, dims (sku,)
        ``sku`` holds the units, ``architecture`` their families; ``spread`` [1] says how much
        more than usual the units of a family differ.
    """
    if law.variant is None:
        return datasheets.sel(sku=list(units))
    place = {sku: i for i, sku in enumerate(datasheets["sku"].values.tolist())}
    at = [place[card_of(unit)] for unit in units]
    families, spread = law.family(datasheets), np.asarray(law.spread(datasheets))[at]
    held = {v: x.isel(sku=at) if "sku" in x.dims else x for v, x in datasheets.variables.items()}
    names = []
    for unit, i, architecture in zip(units, at, held["architecture"].values.tolist(), strict=True):
        variant = unit.partition("/")[2]
        keys = ((architecture, v) for v in (variant, variant.partition("/")[0]))
        library = next((LIBRARIES[key] for key in keys if key in LIBRARIES), "")
        names.append("/".join(part for part in (families[i], library, variant) if part))
    labels = {"sku": ("sku", np.asarray(units, dtype=str)), "architecture": ("sku", names)}
    coords = {v: held.pop(v) for v in datasheets.coords} | labels
    return xr.Dataset(held | {"spread": ("sku", spread)}, coords=coords)
