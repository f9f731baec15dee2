"""Which factor of which SKU the uncertainty of a comparison comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MOST = 3  # factors that are named


def dominant(ratio: np.ndarray, factors: Mapping[tuple[str, str], np.ndarray]) -> list[Any]:
    r"""Factors by the share of a log ratio's variance that goes with them.

    The share of a factor is the squared correlation of its ranks with those of the log ratio: the
    first-order Sobol index of a linear, or any monotone, dependence, from the draws at hand
    (Saltelli et al. 2008, section 1.2). Factors that are correlated share what they explain, so
    shares need not sum to 1. One under :math:`2 \ln(100 k)/n`, which the largest of k factors
    without influence exceeds once in a hundred times over n draws, is left out.

    Parameters
    ----------
    ratio : ndarray, dims (draw,)
        Log of one choice's metric over another's [1]; draws that are not finite are left out.
    factors : mapping of ndarray, dims (draw,)
        Draws [any unit] by SKU (or ``all``) and name.

    Returns
    -------
    list of dict
        ``sku``, ``factor`` and ``share`` [1] of the `MOST` largest, the largest first.

    References
    ----------
    .. [1] Saltelli et al. (2008). Global sensitivity analysis: the primer.

    Examples
    --------
    >>> x, y = np.arange(100.0), np.tile([1.0, -1, -1, 1], 25)
    >>> dominant(2 * x, {("a", "speed"): x, ("b", "speed"): y})
    [{'sku': 'a', 'factor': 'speed', 'share': 1.0}]
    """
    kept = np.isfinite(ratio)
    if kept.sum() < 4 or np.ptp(ratio[kept]) == 0:
        return []
    draws = {key: values[kept] for key, values in factors.items()}
    vary = {key: _scores(values) for key, values in draws.items() if np.ptp(values) > 0}
    if not vary:
        return []
    shares = (np.stack([*vary.values()]) @ _scores(ratio[kept])) ** 2
    least = 2 * np.log(100 * len(factors)) / kept.sum()
    found = [
        {"sku": sku, "factor": name, "share": round(float(share), 12)}
        for (sku, name), share in zip(vary, shares, strict=True)
        if share > least
    ]
    return sorted(found, key=lambda row: -float(row["share"]))[:MOST]  # type: ignore[arg-type]


def _scores(values: np.ndarray) -> np.ndarray:
    """Ranks less their mean, of length 1; ties share theirs, dims kept."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - (times - 1) / 2)[place]
    ranks -= ranks.mean()
    return np.asarray(ranks / np.sqrt((ranks**2).sum()))
