"""One scalar of an engine on a card, learnt from measured times with a heavy-tailed misfit."""

from __future__ import annotations

from typing import Any

import numpy as np

from m2bayes._random import labelled_rng
from m2bayes.calibrate import host_scalar

KINDS = ("one host time", "one factor")
FACTOR_SD, MOST_ADDED = 0.5, 0.9  # prior of the share that a factor adds, and its end
TAIL = 4.0  # degrees of freedom of the misfit
ROUNDS, EARLY, LEAST = 40, 10, 1e-4  # of the weights of a fit; from the median; least scale
FAR = 3.0  # log misfit at which draws end


def fitted(
    times: np.ndarray,
    observed: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    *,
    kind: str,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of some runs, dims (draw, run), and their points [s], after a fit to others.

    The misfit is Student-t with 4 degrees of freedom, as a mixture of normals: the weight of each
    run divides its variance. A factor 1/(1 - h) is a share h of the measured time that is added.
    """
    x, y = times[:, train], observed[train]
    factor = kind == KINDS[1]
    weight = weights(np.median(x, axis=0), y, factor=factor)
    spread = (1.0 if factor else y) / np.sqrt(weight)
    settings: dict[str, Any] = {"scale": spread, "group_spread": 0.0, "seed": seed}
    if factor:
        found = host_scalar(x / y, np.ones(len(y)), prior_sd=FACTOR_SD, **settings)
        point = times[:, test] / (1 - np.minimum(found.host, MOST_ADDED))[:, None]
    else:
        found = host_scalar(x, y, **settings)
        point = found.point(times[:, test])
    rng = labelled_rng(seed, "misfit", *map(str, test))
    misfit = found.spread[:, None] * rng.standard_t(TAIL, size=point.shape)
    return point * np.exp(np.clip(misfit, -FAR, FAR)), np.median(point, axis=0)


def weights(predicted: np.ndarray, observed: np.ndarray, *, factor: bool) -> np.ndarray:
    """Weight of each run in a heavy-tailed fit of one scalar, dims (run,) [1].

    Examples
    --------
    >>> y = np.array([1.1, 1.12, 1.1, 1.09, 1.1, 1.11, 1.1, 1.1, 2.0])
    >>> w = weights(np.ones(9), y, factor=False)
    >>> bool(w[-1] < 0.05 * w[0])
    True
    """
    each = np.ones(len(observed)) if factor else 1 / observed  # what the scalar adds, over y
    gap = 1 - predicted / observed
    misfit = gap - each * np.median(gap / each)
    weight = np.ones(len(observed))
    for i in range(ROUNDS):
        middle = 1.48 * np.median(np.abs(misfit))
        far = middle if i < EARLY else np.sqrt(weight @ misfit**2 / len(gap))
        weight = (TAIL + 1) / (TAIL + (misfit / max(far, LEAST)) ** 2)
        share = weight * each
        misfit = gap - each * (share @ gap) / (share @ each)
    return np.asarray(weight)
