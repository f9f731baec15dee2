"""Order of numbers in rows."""

from __future__ import annotations

import numpy as np


def smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` [1] smallest of each row, in a stable order, dims (row, rank).

    As a stable `numpy.argsort` has them, without sorting the others.

    >>> smallest(np.array([[3.0, 1.0, 1.0, 0.0, 1.0]]), 3).tolist()
    [[3, 1, 2]]
    """
    count = min(count, keys.shape[1])
    limit = np.partition(keys, count - 1, axis=1)[:, count - 1]
    out = np.empty((len(keys), count), dtype=np.intp)
    for row, key in enumerate(keys):
        near = np.flatnonzero(key <= limit[row])  # ties at the limit among them
        out[row] = near[np.argsort(key[near], kind="stable")[:count]]
    return out
