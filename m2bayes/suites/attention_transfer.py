"""One SKU left out of everything: its attention kernels from their family and its datasheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import averaged, by_build, median_of_builds, of_sku
from m2bayes.kernels import card_of
from m2bayes.suites.attention import DATA, JUDGED, averages, judged, unseen_cells

if TYPE_CHECKING:
    from m2bayes.suites import Setting

__all__ = ["DATA", "JUDGED", "run"]


def run(setting: Setting) -> dict[str, Any]:
    """Score both laws on each SKU without it, and rivals on the same cells.

    Returns
    -------
    dict
        ``prefill``, ``decode``: ``left out``, as in `m2bayes.suites.attention.run`; ``rivals``:
        the mean of each over SKU, backend and kernel [1].
    """
    return {
        phase: _phase(setting, getattr(setting, phase), table)
        for phase, table in zip(JUDGED, DATA, strict=True)
    }


def _phase(setting: Setting, name: str, table: str) -> dict[str, Any]:
    """Scores of one posterior's model and data."""
    left = setting.left_out(name)
    inputs = left.inputs
    test = unseen_cells(setting, inputs, table)
    held: dict[str, Any] = {}
    rivals: dict[str, dict[str, Any]] = {rival: {} for rival in RIVALS}
    cards = setting.few([*dict.fromkeys(card_of(unit) for unit in inputs.skus)])
    left.ahead([[card] for card in cards])
    for card in cards:
        units = [unit for unit in inputs.skus if card_of(unit) == card]
        held |= judged(setting, left.fit([card]), test, inputs.datasheets, units)
        train = inputs.without([card]).cells()
        for unit in units:
            own = of_sku(test, unit)
            observed = median_of_builds(by_build(own)).values
            for rival, predict in RIVALS.items():
                error = np.abs(predict(train, own, inputs.datasheets) / observed - 1)
                shares = {"mape": float(error.mean()), "median_ape": float(np.median(error))}
                rivals[rival][unit] = shares
    means = {rival: {"mean": averaged(by_unit)} for rival, by_unit in rivals.items()}
    return {"left out": averages(held), "rivals": means}


def _roofline(train: xr.Dataset, own: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """Datasheet roofline [s], dims (cell,)."""
    del train
    sheet = sheets.sel(sku=own["sku"]).drop_vars("sku")
    batch, length, heads, kv_heads, width = (
        own[v].astype(float).drop_vars("sku")
        for v in ("batch", "length", "heads", "kv_heads", "head_dim")
    )
    prompt = "context" in own
    pairs = length**2 / 2 if prompt else length
    queries = length if prompt else 1.0
    flops = 4 * batch * heads * width * pairs
    traffic = 2 * 2 * width * batch * (queries * heads + length * kv_heads)
    return np.asarray(
        np.maximum(flops / sheet["peak_flop_rate"], traffic / sheet["peak_bandwidth"])
    )


def _floor_and_share(train: xr.Dataset, own: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """A floor and the roofline over one share, fitted to the family's other cards, or all, [s]."""
    family = sheets["architecture"]
    of_train = family.sel(sku=train["sku"]).values
    mine = str(family.sel(sku=str(own["sku"].values[0])).item())
    at = np.flatnonzero(of_train == mine)
    rows = train.isel(cell=at) if len(at) else train
    x, y = _roofline(train, rows, sheets), np.nanmedian(rows["op_time"].values, axis=1)
    weight = 1 / y
    design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    floor, share = np.linalg.lstsq(design, y * weight, rcond=None)[0]
    return np.maximum(floor + share * _roofline(train, own, sheets), 1e-7)


RIVALS = {"datasheet roofline": _roofline, "floor and one share": _floor_and_share}
