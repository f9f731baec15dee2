"""Whether new measurements agree with a posterior that has not seen them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.evaluate import coverage_band
from m2bayes.factors import basis
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.measurements import runs_by_cell
from m2bayes.predictive import law_of, predict_units
from m2bayes.random_fields import TAIL
from m2bayes.updating.condition import filled, unit
from m2bayes.updating.coordinates import coordinates
from m2bayes.updating.enlarge import builds_drawn, with_builds
from m2bayes.updating.likelihood import misfit

LEVEL = 0.05  # of false discoveries, and of each test of a group after Holm
MASS = 0.9
SAID = 20  # rows that are named at most


def drift(
    posterior: xr.Dataset,
    table: pd.DataFrame,
    sheets: xr.Dataset,
    *,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Hold rows against the posterior predictive of a new run of each.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        From `m2bayes.database.Database.draws`.
    table : DataFrame
        Rows, from `m2bayes.measurements.checked`.
    sheets : Dataset, dims (sku,)
        Datasheets of their SKUs.
    seed : int
        Of everything drawn.
    tell : callable
        Told what is being done.

    Returns
    -------
    dict
        ``groups``: of each SKU or unit and backend ``rows``, ``bias`` (median log of measured
        over predicted), its 90 % predictive interval ``low`` to ``high``, two-sided ``p`` and
        Holm's ``p_holm``, ``coverage_90`` with its band, ``pit_mean`` [1]; ``rows``: those whose
        false discovery rate ``q`` [1]_ is below `LEVEL`, with two-sided tail probability ``p``
        and ``pit`` [1], ``op_time`` and ``expected`` [s]; ``unlikely``, their number;
        ``agrees``.

    References
    ----------
    .. [1] Benjamini, Hochberg (1995). *Controlling the false discovery rate*.
       https://doi.org/10.1111/j.2517-6161.1995.tb02031.x
    """
    law = law_of(posterior)
    labels = unit_labels(law, table["sku"], table, table["backend"])
    names = [str(label) for label in np.unique(labels)]
    units = unit_sheets(law, sheets, names)
    builds = [] if law.variant else sorted(set(table["backend"]))
    known = builds_drawn(with_builds(posterior, builds), seed=seed)
    groups, rows = [], []
    for name in names:
        tell(f"posterior predictive on {name}")
        sheet, own = units.sel(sku=[name]), table[labels == name]
        rows.append(_tails(known, sheet, own))
        for backend, part in own.groupby("backend", sort=True):
            rests = str(basis(posterior, sheet).item())
            found = _group(known, sheet, part, str(backend), seed)
            groups.append({"sku": name, "backend": str(backend), "basis": rests, **found})
    for group, p in zip(groups, _holm([g["p"] for g in groups]), strict=True):
        group["p_holm"] = p
    every = pd.concat(rows).sort_values("p", kind="stable")
    every["q"] = _discovery_rates(every["p"].to_numpy())
    unlikely = every[every["q"] < LEVEL]
    inside = all(g["band_low"] <= g["coverage_90"] <= g["band_high"] for g in groups)
    level = all(g["p_holm"] >= LEVEL for g in groups)
    return {
        "groups": groups,
        "rows": [_plain(row) for row in unlikely.head(SAID).to_dict("records")],
        "unlikely": len(unlikely),
        "measured": len(every),
        "agrees": bool(inside and level and unlikely.empty),
    }


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    """Values of one row without NumPy's types."""
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in row.items()}


def _tails(posterior: xr.Dataset, sheet: xr.Dataset, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of one unit with PIT and two-sided tail probability [1] and expected time [s].

    Given a draw the log time of a run is Student-t, so the tail is a mean of known tails and
    reaches as far as need be.
    """
    from scipy.special import stdtr  # type: ignore[import-untyped]

    one = unit(posterior, sheet, table, alone=True)
    held = coordinates(posterior, one.variables)
    size = (len(held.centre), len(held.labels))
    z = labelled_rng(0, "drift", one.sku).standard_normal(size)
    found = misfit(one.runs, *filled(one.variables, held.values(z)))
    spread = (found.scale * one.runs.sd) @ one.runs.member.T
    run = filled(one.variables, held.values(z))[0]["sigma_run"]
    pit = stdtr(TAIL, found.residual / np.sqrt(spread**2 + run**2)).mean(axis=0)
    middle = np.median(found.residual, axis=0)
    new = slice(len(middle) - len(one.table), None)
    sizes = [*one.runs.law.labels, *one.runs.law.sizes]
    out = one.table[["sku", "backend", *sizes, "op_time"]].copy()
    out["expected"] = out["op_time"] / np.exp(middle[new])
    out["pit"] = pit[new]
    return out.assign(p=2 * np.minimum(out["pit"], 1 - out["pit"]))


def _group(
    posterior: xr.Dataset, sheet: xr.Dataset, table: pd.DataFrame, backend: str, seed: int
) -> dict[str, Any]:
    """Level and coverage of the rows of one unit and backend, see `drift`.

    Every joint draw in turn plays the measurement, so errors that rows share widen what is allowed.
    """
    law = law_of(posterior)
    cells = runs_by_cell(table, skus=[str(sheet["sku"].values[0])], law=law)
    observed = np.log(np.nanmedian(cells["op_time"].values, axis=1))
    drawn = predict_units(
        posterior, cells, sheet, regime="benchmark", backend=backend, noise=1, seed=seed
    )
    drawn = drawn.squeeze("sku", drop=True).transpose("chain", "draw", "cell")
    log = drawn.copy(data=np.log(drawn.values))
    flat = log.values.reshape(-1, len(observed))
    middle = np.median(flat, axis=0)
    level, simulated = np.median(observed - middle), np.median(flat - middle, axis=1)
    below = (1 + (simulated <= level).sum()) / (1 + len(simulated))
    above = (1 + (simulated >= level).sum()) / (1 + len(simulated))
    edges = np.quantile(flat, [(1 - MASS) / 2, (1 + MASS) / 2], axis=0)
    band = coverage_band(log.drop_vars([c for c in log.coords if c != "cell"]), MASS)
    return {
        "rows": len(table),
        "cells": len(observed),
        "bias": float(level),
        "low": float(np.quantile(simulated, (1 - MASS) / 2)),
        "high": float(np.quantile(simulated, (1 + MASS) / 2)),
        "p": float(min(1.0, 2 * min(below, above))),
        "coverage_90": float(((observed >= edges[0]) & (observed <= edges[1])).mean()),
        "band_low": band[0],
        "band_high": band[1],
        "pit_mean": float((flat < observed).mean()),
    }


def _holm(p: list[float]) -> list[float]:
    """Probabilities adjusted for as many tests, after Holm [1], in the order given.

    >>> _holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    order, out, most = np.argsort(p, kind="stable"), [0.0] * len(p), 0.0
    for i, at in enumerate(order):
        most = max(most, min(1.0, (len(p) - i) * p[at]))
        out[at] = most
    return out


def _discovery_rates(p: np.ndarray) -> np.ndarray:
    """Smallest false discovery rate at which each of the sorted `p` is named [1], dims (row,).

    >>> _discovery_rates(np.array([0.01, 0.04, 0.9])).round(2).tolist()
    [0.03, 0.06, 0.9]
    """
    rates = p * len(p) / np.arange(1, len(p) + 1)
    return np.asarray(np.minimum.accumulate(rates[::-1])[::-1])
