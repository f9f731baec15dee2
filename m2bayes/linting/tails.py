"""Measurements that disagree: with a posterior's predictive, or with their own repeats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import Database
from m2bayes.errors import M2BayesError
from m2bayes.importers._parts import Part
from m2bayes.linting.plausible import Finding
from m2bayes.mechanism.laws import LAWS
from m2bayes.predictive import backends, predict

SHARE = 0.01  # of rows that are outliers, beforehand
WIDTH = float(np.log(4))  # of the log error of an outlier
NAMED = 0.9  # probability from which a row is named
LEAST = float(np.log(1.25))  # log error that is worth a word
DRAWS = 100
MOST_SHAPES = 4000  # of one card and backend that are judged; more are thinned evenly
OWN_LEVEL = 10  # rows from which a card's own level is taken out
MOST_SAID = 50


def tail_probability(z: np.ndarray) -> np.ndarray:
    """Two-sided tail of a Student-t with 4 degrees of freedom and unit variance, elementwise [1].

    >>> float(tail_probability(np.array(0.0)))
    1.0
    """
    t = np.abs(z) * np.sqrt(2.0)
    root = 1 + t**2 / 4
    return 1 - 0.75 * t / np.sqrt(root) * (1 - t**2 / (12 * root))


def outlier_probability(error: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Probability that a row comes from the wide part of a mixture, elementwise [1].

    Parameters
    ----------
    error : ndarray
        Log of measured over predicted time [1].
    sd : ndarray
        Standard deviation of the predictive, in the log [1].

    Examples
    --------
    >>> outlier_probability(np.log([1.0, 4.0]), np.array([0.05, 0.05])).round(2).tolist()
    [0.0, 1.0]
    """
    scale = sd / np.sqrt(2.0)
    inside = (1 - SHARE) * 0.375 / scale * (1 + (error / scale) ** 2 / 4) ** -2.5
    wide = SHARE * np.exp(-0.5 * (error / WIDTH) ** 2) / (WIDTH * np.sqrt(2 * np.pi))
    return wide / (wide + inside)


def posterior_of(database: Database, law: str) -> str:
    """Name of the posterior that predicts a law's kernels, empty if there is none."""
    parts = [p for name in database.assemblies() for p in database.assembly(name).parts.values()]
    for name in [*parts, *database.posteriors()]:
        if database.model(database.posterior(name).model).law == law:
            return name
    return ""


def predicted(
    database: Database, part: Part, sheets: xr.Dataset, *, posterior: str = ""
) -> pd.DataFrame:
    """Log error of each row against the posterior predictive of one run.

    Parameters
    ----------
    database : Database
        That holds the posterior.
    part : Part
        Kernels of one law, their values sound; dims (measurement,).
    sheets : Dataset, dims (sku,)
        Datasheets of all its cards.
    posterior : str
        Its name; by default the one of an assembly.

    Returns
    -------
    DataFrame, dims (measurement,)
        ``predicted`` median [s], ``error``, ``sd`` of the log, ``tail`` and ``outlier``
        probability [1]; the level of a card with ten rows or more is its own.
        NaN for rows that were thinned out.
    """
    draws = database.draws(posterior or posterior_of(database, part.kind))
    draws = draws.isel(draw=slice(None, None, max(draws.sizes["draw"] // (DRAWS // 2), 1)))
    law, rows = LAWS[part.kind], part.rows
    known = {"any"} if law.variant is not None and not law.by_backend else set(_known(draws))
    shape = [*law.labels, *law.sizes]
    centre, spread = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    backend = rows["backend"].astype(str).where(rows["backend"].astype(str).isin(known), "any")
    groups = pd.DataFrame({"sku": rows["sku"].astype(str).to_numpy(), "b": backend.to_numpy()})
    for (sku, name), alike in groups.groupby(["sku", "b"]):
        at = alike.index.to_numpy()
        own = rows.iloc[at][shape].astype({**dict.fromkeys(law.labels, str)})
        cells = own.drop_duplicates().sort_values(shape, ignore_index=True)
        cells = cells.iloc[:: -(-len(cells) // MOST_SHAPES)].reset_index(drop=True)
        data = {v: ("shape", cells[v].to_numpy()) for v in shape}
        given = {v: ("shape", np.full(len(cells), float(x))) for v, x in law.given.items()}
        settings: dict[str, Any] = {"regime": "benchmark", "backend": str(name), "noise": 1}
        time = predict(draws, xr.Dataset({**data, **given}), sheets.sel(sku=[sku]), **settings)
        log = np.log(time.isel(sku=0).values)
        cells = cells.assign(centre=np.median(log, axis=(0, 1)), spread=log.std(axis=(0, 1)))
        held = own.merge(cells, on=shape, how="left")
        centre[at], spread[at] = held["centre"], held["spread"]
    error = np.log(rows["op_time"].to_numpy(dtype=float)) - centre
    for _, alike in groups.groupby(["sku", "b"]):
        at = alike.index.to_numpy()
        if np.isfinite(error[at]).sum() >= OWN_LEVEL:
            error[at] -= np.nanmedian(error[at])
    return pd.DataFrame(
        {
            "predicted": np.exp(centre),
            "error": error,
            "sd": spread,
            "tail": tail_probability(error / spread),
            "outlier": outlier_probability(error, spread),
        }
    )


def _known(draws: xr.Dataset) -> list[str]:
    """Backends that a posterior knows."""
    if "backend" in draws.coords:
        return [str(b) for b in draws["backend"].values]
    return backends(draws) if any("/" in str(s) for s in draws["sku"].values) else []


def kernels(database: Database, part: Part, sheets: xr.Dataset) -> Iterator[Finding]:
    """Rows of a kernel table that the posterior predictive does not hold, dims (measurement,) [s].

    Nothing is said of a law without posterior.
    """
    name = posterior_of(database, part.kind)
    if not name:
        return
    try:
        judged = predicted(database, part, sheets, posterior=name)
    except M2BayesError as fault:
        yield Finding("note", "outliers", "", f"rows are not held against {name}: {fault}", 0)
        return
    thinned = int(judged["error"].isna().sum())
    if thinned:
        text = f"{thinned:,} rows are not held against {name}: there are too many shapes"
        yield Finding("note", "outliers", "", text, thinned)
    far = (judged["outlier"] > NAMED) & (judged["error"].abs() > LEAST)
    shape = (*LAWS[part.kind].labels, *LAWS[part.kind].sizes)
    order = (
        judged[far].reset_index(names="at").join(part.rows[far.to_numpy()].reset_index()[[*shape]])
    )
    order["far"] = order["error"].abs()
    order = order.sort_values(["far", *shape], ascending=False, ignore_index=True)
    for _, row in order.head(MOST_SAID).iterrows():
        held = part.rows.iloc[int(row["at"])]
        cell = ", ".join(f"{v}={held[v]}" for v in shape).replace(".0", "")
        text = (
            f"{held['file']}: row {held['row']}, column {held['column']}: "
            f"{held['op_time']:.3g} s is {np.exp(row['error']):.2f} times what {name} and the "
            f"other rows expect of {held['sku']} ({cell}): tail probability {row['tail']:.1g}, "
            f"outlier with probability {row['outlier']:.2f}"
        )
        yield Finding("warning", "outlier", cell, text, 1, (int(held["row"]),))
    if len(order) > MOST_SAID:
        text = f"{len(order) - MOST_SAID:,} more rows are outliers; is the table one of this law?"
        yield Finding("warning", "outlier", "", text, len(order) - MOST_SAID)
