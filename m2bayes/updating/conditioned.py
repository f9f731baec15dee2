"""Draws conditioned on new rows: by weights where they last, by steps, or by sampling the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.errors import ConvergenceError
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.predictive import law_of
from m2bayes.updating.carried import with_residuals
from m2bayes.updating.condition import (
    Unit,
    conditioned,
    cut,
    evidence,
    unit,
    weigh,
    without_residuals,
)
from m2bayes.updating.enlarge import builds_drawn, with_builds
from m2bayes.updating.importance import GOOD, smoothed
from m2bayes.updating.outlying import outliers
from m2bayes.updating.smoothing import moved

PATHS = ("reweighting", "steps", "sampling")
LEAST = 400.0  # effective draws that weights must leave
MOST_STEPS = (
    4  # of `m2bayes.updating.smoothing`; what needs more is too far to take draws for normal
)
Sampled = tuple[xr.Dataset, dict[str, float]]


@dataclass(frozen=True)
class Updated:
    """What an update comes to.

    Parameters
    ----------
    draws, parent : Dataset, dims (chain, draw, sku, architecture)
        After and before.
    units : dict of Unit
        The rows of each SKU or unit, made ready beside `draws`.
    table : DataFrame
        All rows.
    sheets : Dataset, dims (sku,)
        Datasheets of the SKUs or units.
    path : str
        One of `PATHS`.
    figures : dict
        ``pareto_k`` and ``ess`` [1], or those of `m2bayes.diagnostics.diagnostics`.
    outliers : list of dict
        Rows that the posterior cannot believe, see `m2bayes.updating.outlying.outliers`.
    seed : int
        Of everything drawn.
    """

    draws: xr.Dataset
    parent: xr.Dataset
    units: dict[str, Unit]
    table: pd.DataFrame
    sheets: xr.Dataset
    path: str
    figures: dict[str, float]
    outliers: list[dict[str, Any]]
    seed: int


def updated(
    parent: xr.Dataset,
    table: pd.DataFrame,
    sheets: xr.Dataset,
    *,
    seed: int = 0,
    path: str | None = None,
    least: float = LEAST,
    sample: Callable[[list[Unit]], Sampled] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Updated:
    """Condition draws on new rows.

    Parameters
    ----------
    parent : Dataset, dims (chain, draw, sku, architecture)
        From `m2bayes.database.Database.draws`.
    table : DataFrame
        Rows, from `m2bayes.measurements.checked`.
    sheets : Dataset, dims (sku,)
        Datasheets of their SKUs.
    seed : int
        Of everything drawn.
    path : str, optional
        One of `PATHS` to take; by default the first that may be trusted.
    least : float
        Effective number of draws that weights must leave [1].
    sample : callable, optional
        Samples the model given units, see `m2bayes.updating.refit.refitted`.
    tell : callable
        Told what is being done, and why a path was left.

    Raises
    ------
    ConvergenceError
        If no path that may be taken can be trusted.
    """
    law = law_of(parent)
    labels = unit_labels(law, table["sku"], table, table["backend"])
    names = [str(label) for label in np.unique(labels)]
    units = unit_sheets(law, sheets, names)
    rows = {name: table[labels == name] for name in names}
    start = with_builds(parent, [] if law.variant else sorted(set(table["backend"])))
    settings: dict[str, Any] = {"seed": seed, "path": path, "least": least, "sample": sample}
    draws, taken, figures = _first(start, rows, units, tell=tell, **settings)
    ready, found = _judged(draws, parent, rows, units, seed)
    believed = table.drop([row["place"] for row in found])
    draws = builds_drawn(draws.assign_attrs(parent.attrs), seed=seed)
    whole = with_residuals(draws, parent, believed, units)
    return Updated(whole, parent, ready, table, units, taken, figures, found, seed)


def unsampled(
    parent: xr.Dataset,
    table: pd.DataFrame,
    sheets: xr.Dataset,
    *,
    seed: int = 0,
    least: float = LEAST,
    tell: Callable[[str], None] = lambda text: None,
) -> Updated:
    """Condition draws by weights where they last, else by steps, however many; sample nothing.

    Parameters as of `updated`, dims (chain, draw, sku, architecture), (row,), (sku,) [s, 1].
    """
    settings: dict[str, Any] = {"seed": seed, "least": least, "tell": tell}
    try:
        return updated(parent, table, sheets, path="reweighting", **settings)
    except ConvergenceError:
        return updated(parent, table, sheets, path="steps", **settings)


def _first(
    start: xr.Dataset,
    rows: Mapping[str, pd.DataFrame],
    sheets: xr.Dataset,
    *,
    seed: int,
    path: str | None,
    least: float,
    sample: Callable[[list[Unit]], Sampled] | None,
    tell: Callable[[str], None],
) -> tuple[xr.Dataset, str, dict[str, float]]:
    """Draws by the first path that may be trusted, its name, and its figures."""
    reason = ""
    for taken in (path,) if path else PATHS:
        try:
            if taken == "reweighting":
                draws, figures = _reweighted(start, rows, sheets, seed=seed, least=least)
            elif taken == "steps":
                most = np.inf if path else MOST_STEPS
                draws, figures = _stepped(start, rows, sheets, seed=seed, most=most)
            else:
                draws, figures = _sampled(start, rows, sheets, sample, reason)
            return draws, taken, figures
        except ConvergenceError as fault:
            if path or taken == PATHS[-1]:
                raise
            reason = str(fault)
            tell(reason)
    raise ConvergenceError(reason)


def _judged(
    draws: xr.Dataset,
    parent: xr.Dataset,
    rows: Mapping[str, pd.DataFrame],
    sheets: xr.Dataset,
    seed: int,
) -> tuple[dict[str, Unit], list[dict[str, Any]]]:
    """The rows beside the updated draws, and which of them are outliers."""
    drawn = builds_drawn(draws.assign_attrs(parent.attrs), seed=seed)
    before = with_residuals(drawn, parent, next(iter(rows.values())).iloc[:0], sheets)
    ready = {name: unit(before, sheets.sel(sku=[name]), held) for name, held in rows.items()}
    return ready, [row for one in ready.values() for row in outliers(before, one)]


def _reweighted(
    posterior: xr.Dataset,
    rows: Mapping[str, pd.DataFrame],
    sheets: xr.Dataset,
    *,
    seed: int,
    least: float,
) -> Sampled:
    """Draws weighted by the rows of one unit after another, and resampled."""
    worst, ess = -np.inf, float(posterior.sizes["chain"] * posterior.sizes["draw"])
    residuals = {k: v for k, v in posterior.data_vars.items() if str(k).startswith("residual")}
    draws = posterior
    for name, table in rows.items():
        one = unit(draws, sheets.sel(sku=[name]), table)
        found = weigh(draws, one, seed=seed)
        worst, ess = max(worst, found.pareto_k), min(ess, found.ess)
        if not (found.pareto_k <= GOOD and found.ess >= least):
            raise ConvergenceError(
                f"reweighting by the rows of {name} leaves {found.ess:.0f} effective draws, "
                f"Pareto k {found.pareto_k:.2f}",
                {"pareto_k": found.pareto_k, "ess": found.ess},
            )
        draws = _with(conditioned(draws, one, found, seed=seed), residuals)
    return without_residuals(draws), {"pareto_k": worst, "ess": ess}


def _stepped(
    posterior: xr.Dataset,
    rows: Mapping[str, pd.DataFrame],
    sheets: xr.Dataset,
    *,
    seed: int,
    most: float,
) -> Sampled:
    """Draws moved in at most `most` small steps, one unit after another."""
    worst, all_steps = -np.inf, 0
    residuals = {k: v for k, v in posterior.data_vars.items() if str(k).startswith("residual")}
    draws = posterior
    for name, table in rows.items():
        one = unit(draws, sheets.sel(sku=[name]), table)
        told = partial(evidence, one=one, seed=seed)
        bare, steps = moved(without_residuals(draws), told, seed=seed)
        found = cut(weigh(bare, one, seed=seed + 1))
        k = smoothed(found.log_weight)[1] if one.free else -np.inf
        if steps > most or k > GOOD:
            raise ConvergenceError(
                f"the rows of {name} move the posterior by {steps} steps, Pareto k {k:.2f}: too "
                "far to take it for normal",
                {"pareto_k": k, "steps": steps},
            )
        worst, all_steps = max(worst, k), all_steps + steps
        draws = _with(conditioned(bare, one, found, seed=seed), residuals)
    figures = {"steps": float(all_steps)} | ({"pareto_k": worst} if np.isfinite(worst) else {})
    return without_residuals(draws), figures


def _sampled(
    posterior: xr.Dataset,
    rows: Mapping[str, pd.DataFrame],
    sheets: xr.Dataset,
    sample: Callable[[list[Unit]], Sampled] | None,
    reason: str,
) -> Sampled:
    """Draws of the model with the rows added to it."""
    if sample is None:
        raise ConvergenceError(
            f"{reason or 'these rows'}: the model must be sampled, and cannot be here; fit it to "
            "the old rows and the new ones together"
        )
    return sample([unit(posterior, sheets.sel(sku=[name]), held) for name, held in rows.items()])


def _with(draws: xr.Dataset, residuals: Mapping[Any, xr.DataArray]) -> xr.Dataset:
    """Draws with what the parent says of discrepancies, and nothing said of new SKUs."""
    out = draws
    for name, held in residuals.items():
        filled = held.reindex(sku=draws["sku"], fill_value=1.0) if "sku" in held.dims else held
        out = out.assign({name: (filled.dims, filled.values)})
    return out
