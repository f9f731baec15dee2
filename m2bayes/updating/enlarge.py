"""A posterior with one more SKU, or with other weights: draws in, draws of the same shape out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.updating.coordinates import BUILD, LEVEL, SAMPLE, Variable, stored_names


def equal(weight: np.ndarray, n: int, *, seed: int) -> np.ndarray:
    """Positions of `n` samples of equal weight, in the order of the weighted ones, dims (n,).

    Systematic resampling: a sample of weight w is taken ``n w`` times, rounded up or down.

    >>> equal(np.array([0.5, 0.0, 0.5]), 4, seed=0).tolist()
    [0, 0, 2, 2]
    """
    start = labelled_rng(seed, "resampling").random()
    edges = np.cumsum(weight) / np.sum(weight)
    return np.searchsorted(edges, (start + np.arange(n)) / n).clip(max=len(weight) - 1)


def reordered(posterior: xr.Dataset, draw: np.ndarray) -> xr.Dataset:
    """Draws at the positions `draw` [1] of all chains together, dims as they were."""
    chains, draws = (posterior.sizes[d] for d in SAMPLE)
    out = {}
    for name, held in posterior.data_vars.items():
        if not set(SAMPLE) <= set(held.dims):
            out[name] = held
            continue
        rest = [d for d in held.dims if d not in SAMPLE]
        values = held.transpose(*SAMPLE, *rest).values
        picked = values.reshape(chains * draws, *values.shape[2:])[draw]
        out[name] = xr.DataArray(picked.reshape(values.shape), dims=(*SAMPLE, *rest))
    return xr.Dataset(out, coords=posterior.coords, attrs=posterior.attrs)


def with_builds(posterior: xr.Dataset, backends: Sequence[str]) -> xr.Dataset:
    """Draws with a place for effects [1] of more builds, NaN until `builds_drawn`; dims kept.

    A posterior without build effects comes back as it is.
    """
    if "build_effect" not in posterior:
        return posterior
    names = sorted({*map(str, posterior["backend"].values), *backends})
    effect = posterior["build_effect"].transpose(*SAMPLE, "sku", "backend")
    if len(names) == effect.sizes["backend"]:
        return posterior
    rest = posterior.drop_vars(["build_effect", "backend"])
    return rest.assign(build_effect=effect.reindex(backend=names))


def builds_drawn(posterior: xr.Dataset, *, seed: int) -> xr.Dataset:
    """Draws with effects [1] drawn of builds that nobody measured on a SKU, dims kept."""
    if "build_effect" not in posterior:
        return posterior
    effect = posterior["build_effect"].transpose(*SAMPLE, "sku", "backend").copy()
    spread = posterior["build_sd"].transpose(*SAMPLE).values
    for i, sku in enumerate(effect["sku"].values):
        for j, backend in enumerate(effect["backend"].values):
            if np.isnan(effect.values[0, 0, i, j]):
                rng = labelled_rng(seed, "build", str(sku), str(backend))
                effect.values[:, :, i, j] = spread * rng.standard_normal(spread.shape)
    return posterior.assign(build_effect=effect)


def enlarged(
    posterior: xr.Dataset,
    variables: Sequence[Variable],
    values: np.ndarray,
    *,
    sku: str,
    family: str,
) -> xr.Dataset:
    """Draws with one more SKU or unit, and with its family where that is new.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Draws without residuals, one for each row of `values`.
    variables : sequence of Variable
        What `values` are of, from `m2bayes.updating.coordinates.recipe`.
    values : array, dims (sample, variable)
        Of the SKU, on the link scale [1].
    sku, family : str
        Labels of the SKU and its architecture.
    """
    column = {v.name: x for v, x in zip(variables, values.T, strict=True)}
    at_sku = {held: column[name] for name, held, _ in stored_names(posterior)}
    effects = [x for name, x in column.items() if name.startswith(BUILD)]
    if effects:
        at_sku["build_effect"] = np.stack(effects, axis=-1)
    levels = {name: x for name, x in column.items() if name.endswith(LEVEL)}
    labels = {"sku": sku} | ({"architecture": family} if levels else {})
    coords = {str(d): posterior[d].values for d in posterior.coords}
    at = {d: int(np.searchsorted(coords[d], label)) for d, label in labels.items()}
    out = {}
    for name, old in posterior.data_vars.items():
        held = old
        for dim, new in (("sku", at_sku), ("architecture", levels)):
            if dim in at and dim in old.dims:
                held = _inserted(held, new[str(name)], dim, at[dim])
        out[name] = (held.dims, held.values)
    coords |= {d: np.insert(coords[d].astype(object), at[d], labels[d]).astype(str) for d in at}
    return xr.Dataset(out, coords=coords, attrs=posterior.attrs)


def _inserted(old: xr.DataArray, column: np.ndarray, dim: str, at: int) -> xr.DataArray:
    """Draws of a variable with the values of one more label at position `at`, without labels."""
    rest = [d for d in old.dims if d not in (*SAMPLE, dim)]
    values = old.transpose(*SAMPLE, dim, *rest).values
    shape = (values.shape[0], values.shape[1], *values.shape[3:])
    return xr.DataArray(
        np.insert(values, at, column.reshape(shape), axis=2), dims=(*SAMPLE, dim, *rest)
    )


def with_effects(
    posterior: xr.Dataset, variables: Sequence[Variable], values: np.ndarray, *, sku: str
) -> xr.Dataset:
    """Draws with the effects [1] of a measured SKU's new builds; dims as of `enlarged`."""
    effect = posterior["build_effect"].copy() if "build_effect" in posterior else None
    for variable, column in zip(variables, values.T, strict=True):
        if effect is not None and variable.name.startswith(BUILD) and variable.steps:
            shape = tuple(posterior.sizes[d] for d in SAMPLE)
            at = {"sku": sku, "backend": variable.name.removeprefix(BUILD)}
            effect.loc[at] = xr.DataArray(column.reshape(shape), dims=SAMPLE)
    return posterior if effect is None else posterior.assign(build_effect=effect)
