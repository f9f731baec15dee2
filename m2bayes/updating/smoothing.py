"""Draws moved towards a sharper posterior in small steps, where reweighting them would collapse.

Each step raises the power of the new likelihood as far as half the draws still count, resamples,
and replaces every draw by a kernel around it that keeps mean and covariance [1]_. Between the draws
the old posterior is then taken for normal: an approximation, as good as the posterior is normal on
the log scale, and quick.

References
----------
.. [1] Liu, West (2001). *Combined parameter and state estimation in simulation-based filtering*.
   In Sequential Monte Carlo Methods in Practice. https://doi.org/10.1007/978-1-4757-3437-9_10
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.updating.coordinates import SAMPLE
from m2bayes.updating.enlarge import equal

KEPT = 0.5  # share of the draws that must count in each step
WIDTH = 0.4  # of the kernel, in sd of the draws
STEPS = 50  # more are given up
BISECTIONS = 30


def moved(
    posterior: xr.Dataset, evidence: Callable[[xr.Dataset], np.ndarray], *, seed: int
) -> tuple[xr.Dataset, int]:
    """Move draws to the posterior times the evidence that new rows give each of them.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Draws of equal weight.
    evidence : callable
        Log of the likelihood of the rows in each draw [1], dims (sample,).
    seed : int
        Of resampling and kernel.

    Returns
    -------
    tuple of Dataset and int
        Draws of the same shape, and the number of steps.
    """
    power, steps = 0.0, 0
    while power < 1 and steps < STEPS:
        found = evidence(posterior)
        step = _step(found, 1 - power)
        weight = np.exp(step * (found - found.max()))
        picked = equal(weight, len(found), seed=seed + steps)
        posterior = _kernel(posterior, picked, seed=seed + steps)
        power, steps = power + step, steps + 1
    return posterior, steps


def _step(log_weight: np.ndarray, most: float) -> float:
    """Largest power up to `most` at which `KEPT` of the draws count [1]."""

    def enough(power: float) -> bool:
        weight = np.exp(power * (log_weight - log_weight.max()))
        return bool(weight.sum() ** 2 / (weight**2).sum() >= KEPT * len(weight))

    if enough(most):
        return most
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _kernel(posterior: xr.Dataset, picked: np.ndarray, *, seed: int) -> xr.Dataset:
    """Draws `picked`, each drawn anew from a kernel around it; mean and covariance stay."""
    rng, n = labelled_rng(seed, "kernel"), len(picked)
    drawn = {k: v for k, v in posterior.data_vars.items() if set(SAMPLE) <= set(v.dims)}
    shapes = {k: v.transpose(*SAMPLE, ...) for k, v in drawn.items()}
    columns = {k: v.values.reshape(n, -1).astype(float) for k, v in shapes.items()}
    logs = {k for k, v in columns.items() if (v > 0).all()}
    flat = np.concatenate([np.log(v) if k in logs else v for k, v in columns.items()], axis=1)
    flat = flat[picked]
    centre = flat.mean(axis=0)
    away = flat - centre
    noise = rng.standard_normal((n, n)) @ away / np.sqrt(n)
    flat = centre + np.sqrt(1 - WIDTH**2) * away + WIDTH * noise
    ends = np.cumsum([v.shape[1] for v in columns.values()])[:-1]
    out = {}
    for name, part in zip(columns, np.split(flat, ends, axis=1), strict=True):
        values = (np.exp(part) if name in logs else part).reshape(shapes[name].shape)
        out[name] = (shapes[name].dims, values.astype(shapes[name].dtype))
    return posterior.assign(out)
