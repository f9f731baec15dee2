"""What an update changed: factors, predicted times, rankings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.decision import rank
from m2bayes.factors import basis, by_sku
from m2bayes.predictive import law_of, predict_units, summary
from m2bayes.updating.conditioned import Updated

SHAPES = 4  # of each SKU, whose times are shown
MOVED, MOST = 0.5, 12  # shared variables that moved this many sd are named, and no more of them
THINNED = 500  # draws of each chain that times and rankings are shown from


def moves(found: Updated, others: xr.Dataset | None = None) -> dict[str, Any]:
    """Changes that an update made, as plain values.

    Parameters
    ----------
    found : Updated
        From `m2bayes.updating.conditioned.updated`.
    others : Dataset, dims (sku,), optional
        Datasheets of cards to rank the updated ones with; without, nothing is ranked.

    Returns
    -------
    dict
        ``skus``: of each SKU or unit ``basis`` before, ``rows``, ``cells``, ``factors`` (median
        before and after, ``moved`` in units of the standard deviation before, ``narrowed``, the
        ratio of standard deviations) [1] and ``times`` [s] of some measured shapes; ``shared``:
        variables of all SKUs that moved; ``rankings`` of the same shapes.
    """
    parent, draws = _thinned(found.parent), _thinned(found.draws)
    rests = basis(found.parent, found.sheets)
    skus = []
    for name, one in found.units.items():
        if name not in draws.indexes["sku"]:
            continue
        sheet = found.sheets.sel(sku=[name])
        skus.append(
            {
                "sku": name,
                "basis": str(rests.sel(sku=name).item()),
                "rows": len(one.table),
                "cells": int(one.runs.counted.sum()),
                "factors": _factors(found, sheet),
                "times": _times(parent, draws, sheet, one.table, found.seed),
            }
        )
    out = {"skus": skus, "shared": _shared(found)}
    if others is not None:
        out["rankings"] = _rankings(found, parent, draws, others)
    return out


def _thinned(posterior: xr.Dataset) -> xr.Dataset:
    step = max(1, posterior.sizes["draw"] // THINNED)
    return posterior.isel(draw=slice(None, None, step))


def _moved(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """How far a variable moved and how much it narrowed [1]."""
    spread = float(before.std()) or 1.0
    return {
        "moved": float((after.mean() - before.mean()) / spread),
        "narrowed": float(after.std() / spread),
    }


def _factors(found: Updated, sheet: xr.Dataset) -> list[dict[str, Any]]:
    """Factors that belong to one SKU or unit, before and after."""
    rows = []
    for factor in json.loads(found.draws.attrs["factors"]):
        name = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
        pair = [by_sku(d, name, sheet, found.seed) for d in (found.parent, found.draws)]
        if not all("sku" in values.dims for values in pair):
            continue
        before, after = (values.values.ravel() for values in pair)
        median = [float(np.median(v)) for v in (before, after)]
        if factor["link"] == "log":
            median = [float(np.exp(v)) for v in median]
        rows.append(
            {
                "factor": factor["name"],
                "units": factor["units"],
                "before": median[0],
                "after": median[1],
                **_moved(before, after),
            }
        )
    return rows


def _shared(found: Updated) -> list[dict[str, Any]]:
    """Variables that all SKUs share, or those of one architecture, that moved; farthest first."""
    rows: list[dict[str, Any]] = []
    for name, held in found.parent.data_vars.items():
        extra = [str(d) for d in held.dims if d not in ("chain", "draw")]
        if "chain" not in held.dims or extra not in ([], ["architecture"]):
            continue
        for label in held[extra[0]].values if extra else [""]:
            at = {extra[0]: label} if extra else {}
            row = _moved(held.sel(at).values, found.draws[name].sel(at).values)
            if abs(row["moved"]) >= MOVED:
                rows.append({"variable": str(name), "of": str(label), **row})
    return sorted(rows, key=lambda row: -abs(row["moved"]))[:MOST]


def _some(table: Any, sizes: tuple[str, ...], labels: tuple[str, ...]) -> Any:
    """Cells from the quickest to the slowest measured, evenly spaced in the order of times."""
    cells = table.groupby([*labels, *sizes], sort=True)["op_time"].median().reset_index()
    cells = cells.sort_values("op_time", kind="stable")
    chosen = np.unique(np.linspace(0, len(cells) - 1, min(SHAPES, len(cells))).round().astype(int))
    return cells.iloc[chosen]


def _times(
    parent: xr.Dataset, draws: xr.Dataset, sheet: xr.Dataset, table: Any, seed: int
) -> list[dict[str, Any]]:
    """Predicted times of some measured cells in the benchmark regime, before and after [s].

    Of the build that all rows are of, where a posterior knows it.
    """
    law = law_of(draws)
    some = _some(table, law.sizes, law.labels)
    cells = xr.Dataset({v: ("cell", some[v].to_numpy()) for v in (*law.labels, *law.sizes)})
    builds = sorted(set(table["backend"]))
    found = []
    for held in (parent, draws):
        known = "backend" in held.coords and builds[0] in held["backend"].values
        backend = str(builds[0]) if len(builds) == 1 and known else "any"
        time = predict_units(held, cells, sheet, regime="benchmark", backend=backend, seed=seed)
        found.append(summary(time.squeeze("sku", drop=True)))
    return [
        {
            **{v: int(row[v]) for v in law.sizes},
            "measured": float(row["op_time"]),
            **{
                when: {k: float(held[k][i]) for k in ("median", "low", "high")}
                for when, held in zip(("before", "after"), found, strict=True)
            },
        }
        for i, row in enumerate(some.to_dict("records"))
    ]


def _rankings(
    found: Updated, parent: xr.Dataset, draws: xr.Dataset, others: xr.Dataset
) -> list[dict[str, Any]]:
    """Who is best at some measured shapes, served, before and after."""
    law = law_of(draws)
    if law.variant is not None:
        return []
    some = _some(found.table, law.sizes, law.labels)
    cells = xr.Dataset({v: ("workload", some[v].to_numpy()) for v in law.sizes})
    settings: dict[str, Any] = {"regime": "served", "backend": "any", "seed": found.seed}
    rows: list[dict[str, Any]] = [{v: int(x[v]) for v in law.sizes} for _, x in some.iterrows()]
    for when, held in (("before", parent), ("after", draws)):
        ranked = rank(predict_units(held, cells, others, **settings))
        for i, row in enumerate(rows):
            best = ranked["p_best"].isel(workload=i)
            first = str(best["sku"].values[int(np.argmax(best.values))])
            mine = {str(s): float(best.sel(sku=s)) for s in found.units if s in best["sku"].values}
            row[when] = {"best": first, "p_best": float(best.max()), "p_best_of": mine}
    return rows
