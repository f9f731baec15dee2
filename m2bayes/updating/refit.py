"""A posterior given new runs, by sampling its model with the likelihood of the runs added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.diagnostics import check, diagnostics
from m2bayes.posterior import kept, sample
from m2bayes.updating.condition import Unit, added, without_residuals
from m2bayes.updating.coordinates import BUILD, SAMPLE, Variable, coordinates, natural, recipe
from m2bayes.updating.enlarge import with_builds
from m2bayes.updating.likelihood import cell_densities

if TYPE_CHECKING:
    import pymc as pm

OWN = "own"  # coordinates of the SKUs whose runs are new
DRAWS, TUNE, CHAINS, TARGET = 1000, 500, 4, 0.9


def refitted(
    model: pm.Model, posterior: xr.Dataset, units: Sequence[Unit], *, seed: int
) -> tuple[xr.Dataset, dict[str, float]]:
    """Sample the model that a posterior belongs to, given the runs of `units` too.

    Parameters
    ----------
    model : pymc.Model
        That the posterior was fitted with, on its own data.
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Its draws: where the chains start.
    units : sequence of Unit
        Made ready beside `posterior`.
    seed : int
        Of the chains.

    Returns
    -------
    tuple of Dataset, dims (chain, draw, sku, architecture), and dict
        Draws with the units, without residuals; diagnostics of the chains [1].

    Raises
    ------
    ConvergenceError
        If the chains fail `m2bayes.diagnostics.check`.
    """
    labels = add_runs(model, units)
    warm(model, posterior)
    tree = sample(
        model,
        draws=DRAWS,
        tune=TUNE,
        chains=CHAINS,
        seed=seed,
        target_accept=TARGET,
        jitter=False,
    )
    checks = diagnostics(tree)
    check(checks, name=str(posterior.attrs.get("name", "")))
    draws = kept(tree)
    z = {}
    if labels:
        own = draws[OWN].transpose(*SAMPLE, ...).values.reshape(CHAINS * DRAWS, len(labels))
        z = dict(zip(labels, own.T.astype(float), strict=True))
        draws = draws.drop_dims(next(str(d) for d in draws[OWN].dims if d not in SAMPLE))
    draws = draws.assign_attrs(posterior.attrs)
    names = [v.name for one in units for v in one.variables]
    draws = with_builds(draws, [n.removeprefix(BUILD) for n in names if n.startswith(BUILD)])
    for one in units:
        draws = _with(draws, one, z)
    return draws, checks


def add_runs(model: pm.Model, units: Sequence[Unit]) -> list[str]:
    """Add the coordinates of the units and the likelihood of their runs to `model`.

    Returns the labels of the coordinates, dims (coordinate,).
    """
    import pymc as pm
    import pytensor.tensor as pt

    names = [_label(one, k) for one in units for v in one.variables for k in v.steps]
    labels = list(dict.fromkeys(names))
    with model:
        own = pm.Normal(OWN, 0, 1, shape=len(labels)) if labels else None
        for i, one in enumerate(units):
            values = [_symbolic(model, one, v, own, labels) for v in one.variables]

            def value(j: int, held: list[Any] = values) -> Any:
                return held[j].reshape((1, 1))

            factors, effect = natural(one.variables, value, pt.concatenate)
            density = cell_densities(one.runs, factors, effect)
            pm.Potential(f"rows_{i}", (density * one.runs.counted).sum())
    return labels


def _label(one: Unit, coordinate: str) -> str:
    """Label of a coordinate; that of an architecture's level is one for all its SKUs."""
    shared = coordinate.endswith(f" of {one.family}")
    return coordinate if shared else f"{one.sku}: {coordinate}"


def _symbolic(model: pm.Model, one: Unit, variable: Variable, own: Any, labels: list[str]) -> Any:
    """Variable of a unit in terms of the model's."""
    import pytensor.tensor as pt

    value = pt.as_tensor_variable(0.0)
    if variable.base is not None:
        stored, at = variable.base
        value = model[stored]
        for dim in model.named_vars_to_dims.get(stored) or ():
            value = value[list(model.coords[dim]).index(at[dim])]
    for coordinate, (spread, by) in variable.steps.items():
        value = value + by * model[spread] * own[labels.index(_label(one, coordinate))]
    return value


def _with(draws: xr.Dataset, one: Unit, z: dict[str, np.ndarray]) -> xr.Dataset:
    """Draws with one unit's variables at the sampled coordinates."""
    spread = float(one.sheet["spread"].values[0]) if "spread" in one.sheet else 1.0
    builds = [str(b) for b in draws["backend"].values] if "build_effect" in draws else []
    made = recipe(draws, sku=one.sku, family=one.family, spread=spread, backends=builds)
    held = coordinates(draws, made)
    own = np.zeros((len(held.centre), len(held.labels)))
    for i, coordinate in enumerate(held.labels):
        own[:, i] = z[_label(one, coordinate)]
    return added(without_residuals(draws), one, made, held.values(own))


def warm(model: pm.Model, posterior: xr.Dataset) -> None:
    """Let chains of `model` start near the mean [1] of draws of its posterior, dims (chain, draw).

    A standardised offset starts where value, level and spread put it; what the draws do not hold
    keeps the prior's centre.
    """
    mean = without_residuals(posterior).mean(SAMPLE)
    for rv in model.free_RVs:
        dims = model.named_vars_to_dims.get(rv.name) or ()
        at = {d: [str(v) for v in model.coords[d]] for d in dims if d in mean.coords}
        if rv.name in mean and set(dims) <= set(mean[rv.name].dims):
            model.set_initval(rv, mean[rv.name].sel(at).transpose(*dims).values.astype(float))
        elif rv.name == "build_offset":
            effect = mean["build_effect"].sel(at).transpose(*dims)
            model.set_initval(rv, (effect / mean["build_sd"]).values.astype(float))
        elif rv.name.endswith("_architecture_offset"):
            name = rv.name.removesuffix("_offset")
            offset = (mean[name] - mean[f"{name.removesuffix('_architecture')}_mean"]).sel(at)
            model.set_initval(rv, (offset / mean[f"{name}_sd"]).values.astype(float))
