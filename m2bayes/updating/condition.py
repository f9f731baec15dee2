"""A posterior given new runs of one SKU or unit, measured before or not, by importance sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.discrepancy import Residuals
from m2bayes.factors import families
from m2bayes.predictive import law_of
from m2bayes.residuals import known
from m2bayes.updating.coordinates import Coordinates, Variable, coordinates, natural, recipe
from m2bayes.updating.enlarge import enlarged, equal, reordered, with_effects
from m2bayes.updating.importance import Weighted, expanded, weighted
from m2bayes.updating.likelihood import Runs, log_likelihood
from m2bayes.updating.rows import context, informed, noise, ordered, places, runs, shapes, together


@dataclass(frozen=True)
class Unit:
    """New rows of one SKU or unit beside a posterior, ready to be weighed.

    Parameters
    ----------
    sku, family : str
        Labels of the SKU or unit and its architecture or family.
    sheet : Dataset, dims (sku,)
        Its datasheet alone.
    table : DataFrame
        Its rows, in the order of the runs.
    variables : tuple of Variable
        How its variables follow from the draws.
    runs : Runs
        The rows, with what is known of their cells' discrepancies.
    """

    sku: str
    family: str
    sheet: xr.Dataset
    table: pd.DataFrame
    variables: tuple[Variable, ...]
    runs: Runs

    @property
    def free(self) -> bool:
        """Whether any variable is not the draws' own."""
        return any(variable.steps for variable in self.variables)

    def log_likelihood(self, values: np.ndarray) -> np.ndarray:
        """Log density of the rows [1], dims (sample,), given variables (sample, variable)."""
        return log_likelihood(self.runs, *filled(self.variables, values))


def filled(variables: tuple[Variable, ...], values: np.ndarray) -> tuple[dict[str, Any], Any]:
    """Factors, dims (sample, 1), and effects [1], dims (sample, backend), of link-scale values."""
    return natural(variables, lambda i: values[:, i : i + 1], np.concatenate)


def unit(
    posterior: xr.Dataset, sheet: xr.Dataset, table: pd.DataFrame, *, alone: bool = False
) -> Unit:
    """Make rows of one SKU or unit ready.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        From `m2bayes.database.Database.draws`, and with the builds of `table`.
    sheet : Dataset, dims (sku,)
        Its datasheet alone, from `m2bayes.kernels.unit_sheets`.
    table : DataFrame
        Its rows [s], from `m2bayes.measurements.checked`.
    alone : bool
        Whether new cells tell nothing of one another, only stored ones do.
    """
    law, family = law_of(posterior), families(sheet)[0]
    sku = str(sheet["sku"].values[0])
    builds = [str(b) for b in posterior["backend"].values] if "build_effect" in posterior else []
    spread = float(sheet["spread"].values[0]) if "spread" in sheet else 1.0
    variables = recipe(posterior, sku=sku, family=family, spread=spread, backends=builds)
    held = runs(law, table, sheet, builds)
    bare = Unit(sku, family, sheet, ordered(law, table), variables, held)
    found = known(posterior, family, sku)
    if found is None:
        none = np.zeros(0)
        found = Residuals(np.ones((0, len(law.sizes) + 1)), none.astype(str), none, none)
    centre = coordinates(posterior, variables)
    return _informed(bare, found, centre, alone)


def _informed(bare: Unit, found: Residuals, centre: Coordinates, alone: bool) -> Unit:
    """Unit with what neighbours say of its cells: at an average draw, then at the mode."""
    at = centre.centre.mean(axis=0)[None]
    mine, law = found.sku == bare.sku, bare.runs.law
    own, peers = (
        replace(found, **{k: getattr(found, k)[which] for k in ("shapes", "sku", "unit", "noise")})
        for which in (mine, ~mine)
    )
    labels = {name: str(bare.table[name].iloc[0]) for name in law.labels}
    sizes = shapes(law, bare.table)
    before = context(law, own, bare.sheet, sizes, filled(bare.variables, at)[0], labels=labels)
    held, stored = bare.runs, np.zeros(0)
    if before is not None:
        held, stored = together(before[0], held), before[2]
    place = np.zeros((0, sizes.shape[1] + 1)) if before is None else before[1]
    for _ in range(2):
        factors, effect = filled(bare.variables, at)
        variance = noise(held, factors, effect)
        variance[: len(stored)] = stored
        new = places(bare.runs, sizes, factors)
        held = informed(held, np.concatenate([place, new]), variance, peers, alone=alone)
        now = replace(bare, runs=held)
        at = expanded(now.log_likelihood, centre).point[None]
    return now


def weigh(posterior: xr.Dataset, one: Unit, *, seed: int) -> Weighted:
    """Weights [1] of the posterior's draws, dims (chain, draw, …), given a unit's rows."""
    return weighted(one.log_likelihood, coordinates(posterior, one.variables), seed=seed)


def conditioned(posterior: xr.Dataset, one: Unit, found: Weighted, *, seed: int) -> xr.Dataset:
    """Draws of equal weight [1], with the unit where it is new; without residuals.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        That `found` weighs.
    one : Unit
        Whose rows they are.
    found : Weighted
        From `weigh`.
    seed : int
        Of the resampling.
    """
    held = coordinates(posterior, one.variables)
    picked = equal(found.weight, len(held.centre), seed=seed)
    draw = found.draw[picked]
    bare = reordered(without_residuals(posterior), draw)
    return added(bare, one, one.variables, held.values(found.z[picked], draw))


def added(
    draws: xr.Dataset, one: Unit, variables: Sequence[Variable], values: np.ndarray
) -> xr.Dataset:
    """Draws, dims (chain, draw, …), with a unit's `variables` at `values` [1]."""
    if one.sku in draws.indexes["sku"]:
        return with_effects(draws, variables, values, sku=one.sku)
    return enlarged(draws, variables, values, sku=one.sku, family=one.family)


def without_residuals(posterior: xr.Dataset) -> xr.Dataset:
    """Draws, dims (chain, draw, …), without what measured cells say of discrepancies [1]."""
    found = [v for v in posterior.data_vars if str(v).startswith("residual")]
    return posterior.drop_vars(found)


def evidence(posterior: xr.Dataset, one: Unit, *, seed: int) -> np.ndarray:
    """Log likelihood [1] of a unit's rows, its own variables integrated out, dims (sample,)."""
    found = weigh(posterior, one, seed=seed)
    by_draw = found.log_weight.reshape(-1, len(found.draw) // (found.draw[-1] + 1))
    most = by_draw.max(axis=1)
    return np.asarray(most + np.log(np.exp(by_draw - most[:, None]).mean(axis=1)))


def cut(found: Weighted) -> Weighted:
    """Weights that leave every draw as likely as it was, dims (sample,)."""
    by_draw = found.log_weight.reshape(-1, len(found.draw) // (found.draw[-1] + 1))
    most = by_draw.max(axis=1, keepdims=True)
    alike = by_draw - most - np.log(np.exp(by_draw - most).sum(axis=1, keepdims=True))
    weight = np.exp(alike).ravel() / len(alike)
    return replace(found, log_weight=alike.ravel(), weight=weight, ess=float(len(alike)))
