"""Which cells to measure: few, so spread that every other cell has one like it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.factors import with_skus
from m2bayes.predictive import law_of

THINNED = 50  # draws of each chain that tell what bounds a cell


def design(
    places: np.ndarray, n: int, *, seed: int = 0, taken: np.ndarray | None = None
) -> np.ndarray:
    """Choose cells by the mean distance of all candidates to the nearest chosen one.

    The first cell is drawn at random, each further one is that which shortens the mean distance
    most. So a design fills the space evenly, in the order of what is learnt soonest, and other
    seeds give other designs of the same kind. Farthest-point designs, which go to the corners of
    the space, predict the rest of it worse.

    Parameters
    ----------
    places : array, dims (cell, axis)
        Of the candidates, from `places_of` [1].
    n : int
        Cells to choose, at most as many as there are [1].
    seed : int
        Of the start.
    taken : array, dims (cell, axis), optional
        Places of cells that are measured already [1]; then nothing is drawn.

    Returns
    -------
    array, dims (cell,)
        Positions of the chosen candidates, in the order chosen [1].

    Examples
    --------
    >>> design(np.array([[0.0], [1.0], [2.0], [9.0]]), 2, taken=np.array([[1.0]])).tolist()
    [3, 0]
    """
    away = np.sqrt(((places[:, None, :] - places[None, :, :]) ** 2).sum(axis=2))
    nearest, chosen = np.full(len(places), np.inf), list[int]()
    if taken is not None and len(taken):
        far = ((places[:, None, :] - np.asarray(taken)[None, :, :]) ** 2).sum(axis=2)
        nearest = np.sqrt(far).min(axis=1)
    elif n and len(places):
        chosen.append(int(labelled_rng(seed, "design").integers(len(places))))
        nearest = away[chosen[0]]
    while len(chosen) < min(n, len(places)):
        left = np.minimum(nearest, away).mean(axis=1)
        left[chosen] = np.inf
        chosen.append(int(left.argmin()))
        nearest = np.minimum(nearest, away[chosen[-1]])
    return np.array(chosen, dtype=int)


def places_of(
    posterior: xr.Dataset, cells: xr.Dataset, sheet: xr.Dataset, *, seed: int = 0
) -> np.ndarray:
    """Where cells lie in size, and in the share of their time that each resource asks.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Draws; of a SKU or unit that nobody measured its relatives tell.
    cells : Dataset
        The sizes of the law [1], dims (cell,).
    sheet : Dataset, dims (sku,)
        Datasheet of the SKU or unit alone.
    seed : int
        Of what is drawn for a SKU that nobody measured.

    Returns
    -------
    array, dims (cell, axis)
        log2 of each size over its range among the cells, and shares of the time [1].
    """
    law = law_of(posterior)
    names = [*law.sizes, *law.given, *law.labels]
    bare = {v: ("cell", cells[v].values) for v in names if v in cells}
    bare |= {v: ("cell", np.full(len(cells["cell"]), float(x))) for v, x in law.given.items()}
    sizes = np.log2(np.stack([cells[v].values.astype(float) for v in law.sizes], axis=1))
    span = np.ptp(sizes, axis=0)
    scaled = (sizes - sizes.min(axis=0)) / np.where(span > 0, span, 1.0)
    if law.bounds is None:
        return scaled
    some = posterior.isel(draw=slice(None, None, max(1, posterior.sizes["draw"] // THINNED)))
    factors = with_skus(some, sheet, seed=seed)
    factors = factors.isel(sku=0, drop=True) if "sku" in factors.dims else factors
    columns = {str(k): v.values.reshape(-1, 1) for k, v in factors.data_vars.items()}
    terms = law.terms(
        xr.Dataset(bare), sheet.isel(sku=0, drop=True), regime="benchmark", backend="any"
    )
    rows: Mapping[str, np.ndarray] = {
        str(k): np.atleast_2d(v.values) for k, v in terms.data_vars.items()
    }
    time = law.time(rows, columns)
    parts = law.bounds(rows, columns).values()
    shares = [np.broadcast_to(part / time, time.shape).mean(axis=0) for part in parts]
    return np.column_stack([scaled, *shares])
