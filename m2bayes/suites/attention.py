"""Attention kernels: unseen cells of measured SKUs, and SKUs left out of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.evaluate import averaged, by_build, cell_times, median_of_builds, of_sku, scores
from m2bayes.kernels import card_of
from m2bayes.leaveout import LeftOut, not_measured
from m2bayes.measurements import checked, runs_by_cell

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("attention_prefill_bf16_test", "attention_decode_bf16_test")
JUDGED = ("prefill", "decode")  # fields of the setting


def run(setting: Setting) -> dict[str, Any]:
    """Score both posteriors on unseen cells, and again without each SKU.

    Returns
    -------
    dict
        ``prefill``, ``decode``: ``cells`` and ``left out``, each by SKU and backend, with the
        ``mean`` over them and the ``pooled`` coverage over cells; ``rivals`` on the same cells
        with the SKU left out; scores as in `m2bayes.evaluate.scores` [1].
    """
    return {
        phase: _phase(setting, getattr(setting, phase), table)
        for phase, table in zip(JUDGED, DATA, strict=True)
    }


def _phase(setting: Setting, name: str, table: str) -> dict[str, Any]:
    """Scores of one posterior."""
    database = setting.database
    left = LeftOut(database, name, tell=setting.tell)
    inputs = left.inputs
    rows = checked(database.table(table), origin=table, law=inputs.law)
    test = runs_by_cell(rows, skus=inputs.skus, law=inputs.law)
    out: dict[str, Any] = {
        "cells": _judged(setting, database.draws(name), test, inputs.datasheets, inputs.skus)
    }
    held: dict[str, Any] = {}
    rivals: dict[str, dict[str, Any]] = {name: {} for name in RIVALS}
    for card in dict.fromkeys(card_of(unit) for unit in inputs.skus):
        units = [unit for unit in inputs.skus if card_of(unit) == card]
        draws = left.fit([card])
        held |= _judged(setting, draws, test, inputs.datasheets, units, averages=False)
        train = inputs.without([card]).cells()
        for unit in units:
            own = of_sku(test, unit)
            observed = median_of_builds(by_build(own)).values
            for rival, predict in RIVALS.items():
                guess = predict(inputs.law, train, own, inputs.datasheets)
                error = np.abs(guess / observed - 1)
                rivals[rival][unit] = {
                    "mape": float(error.mean()),
                    "median_ape": float(np.median(error)),
                }
    out["left out"] = _averages(held)
    out["rivals"] = {rival: {"mean": averaged(by_unit)} for rival, by_unit in rivals.items()}
    return out


def _judged(  # noqa: PLR0917
    setting: Setting,
    draws: xr.Dataset,
    test: xr.Dataset,
    sheets: xr.Dataset,
    units: list[str],
    averages: bool = True,
) -> dict[str, Any]:
    """Scores of each unit on its test cells, none of them measured."""
    sizes = [str(v) for v in ("batch", "length", "heads", "kv_heads")]
    out: dict[str, Any] = {}
    for unit in units:
        setting.tell(f"scoring {unit}")
        own = of_sku(test, unit)
        shapes = np.stack([own[v].values for v in sizes], axis=1)
        blind = not_measured(draws, shapes)
        times = cell_times(blind, own, sheets, seed=setting.seed).drop_vars("sku", errors="ignore")
        observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
        out[unit] = scores(times, observed) | {"n": float(own.sizes["cell"])}
    return _averages(out) if averages else out


def _averages(by_unit: dict[str, Any]) -> dict[str, Any]:
    """Add the mean over SKU and backend, and the coverage over all cells.

    A SKU and backend counts once, whatever number of kernels the backend has for it.
    """
    table = pd.DataFrame(by_unit).T
    pair = ["/".join(str(unit).split("/")[:2]) for unit in table.index]
    weighted = table.mul(table["n"], axis=0).groupby(pair).sum()
    by_pair = weighted.div(table["n"].groupby(pair).sum(), axis=0)
    pooled = table.mul(table["n"], axis=0).sum() / table["n"].sum()
    return by_unit | {
        "mean": {str(k): float(v) for k, v in by_pair.mean().items()},
        "pooled": {str(k): float(v) for k, v in pooled.items()},
    }


def _roofline(law: Any, train: xr.Dataset, own: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """Datasheet roofline [s], dims (cell,)."""
    del law, train
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


def _floor_and_share(
    law: Any, train: xr.Dataset, own: xr.Dataset, sheets: xr.Dataset
) -> np.ndarray:
    """A floor and the roofline over one share, fitted to the family's other cards, or all, [s]."""
    family = sheets["architecture"]
    of_train = family.sel(sku=train["sku"]).values
    mine = str(family.sel(sku=str(own["sku"].values[0])).item())
    at = np.flatnonzero(of_train == mine)
    rows = train.isel(cell=at) if len(at) else train
    x, y = _roofline(law, train, rows, sheets), np.nanmedian(rows["op_time"].values, axis=1)
    weight = 1 / y
    design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
    floor, share = np.linalg.lstsq(design, y * weight, rcond=None)[0]
    return np.maximum(floor + share * _roofline(law, train, own, sheets), 1e-7)


RIVALS = {"datasheet roofline": _roofline, "floor and one share": _floor_and_share}
