"""Which new measurements the posterior cannot believe."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from m2bayes.discrepancy import WIDEST
from m2bayes.random_fields import TAIL
from m2bayes.updating.condition import Unit, filled
from m2bayes.updating.coordinates import coordinates
from m2bayes.updating.likelihood import misfit

NAMED = 0.5  # probability from which an outlier is named
SOME = 400  # draws that the probability is the mean of


def outliers(posterior: xr.Dataset, one: Unit) -> list[dict[str, Any]]:
    """Rows that the posterior holds for outliers, most likely first.

    The errors of a cell are normal with a scale of their own, whose prior makes them Student-t. A
    cell is an outlier where that scale is beyond `WIDEST` times the usual, which has a prior
    probability of 0.7 %. Of its runs that is named which lies farthest from the others; where they
    agree none is, since then the shape is slow and not its measurement.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        That the rows have updated, without residuals.
    one : Unit
        Whose rows they are, made ready beside the updated draws.

    Returns
    -------
    list of dict
        ``place``, label of the row in the unit's table; ``sku``, ``backend`` and sizes of the row;
        ``probability`` [1]; ``op_time`` and ``expected`` [s].
    """
    held = coordinates(posterior, one.variables)
    step = max(1, len(held.centre) // SOME)
    values = held.centre[::step]
    found = misfit(one.runs, *filled(one.variables, values))
    belief = _wide((TAIL + one.runs.count) / 2, (TAIL + found.square) / 2).mean(axis=0)
    residual, first = np.median(found.residual, axis=0), len(one.runs.log_time) - len(one.table)
    out = []
    for cell in np.flatnonzero((belief > NAMED) & (one.runs.counted > 0)):
        runs = np.flatnonzero(one.runs.member[:, cell])
        for run in runs[_farthest(residual[runs])]:
            out.append(_said(one, int(run) - first, float(belief[cell]), float(residual[run])))
    return sorted(out, key=lambda row: -row["probability"])


def _said(one: Unit, at: int, belief: float, residual: float) -> dict[str, Any]:
    """What is said of one row, [s] and [1]."""
    row = one.table.iloc[at]
    sizes = {name: int(row[name]) for name in one.runs.law.sizes}
    labels = {name: str(row[name]) for name in ("sku", "backend", *one.runs.law.labels)}
    time = float(row["op_time"])
    return {
        "place": one.table.index[at],
        **labels,
        **sizes,
        "op_time": time,
        "expected": float(time / np.exp(residual)),
        "probability": belief,
    }


def _wide(shape: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Probability that a gamma precision is below that of `WIDEST` times the usual scale [1]."""
    from scipy.special import gammainc  # type: ignore[import-untyped]

    return np.asarray(gammainc(shape, rate / WIDEST**2))


def _farthest(residual: np.ndarray) -> list[int]:
    """The run of an outlying cell to name, unless its runs agree: then it is the shape's own.

    Of two that disagree it is the one that is farther from what is expected.

    >>> _farthest(np.array([0.02, 1.39, 0.0])), _farthest(np.array([1.3, 1.4]))
    ([1], [])
    >>> _farthest(np.array([0.0, 3.4]))
    [1]
    """
    if len(residual) == 1:
        return [0]
    others = [np.median(np.delete(residual, i)) for i in range(len(residual))]
    away = np.abs(residual - others)
    far = int(np.lexsort([np.abs(residual), away])[-1])
    return [far] if away[far] > abs(others[far]) else []
