r"""The discrepancy δ of a shape: a function of (draw, SKU, shape), not noise.

A library picks one kernel for a shape, every time; so a shape is faster or slower than the law in
every layer, call and workload, its neighbours tend to be too, and cards of one architecture share
much of it. δ is drawn as a stationary random field over ``(log2 M, log2 N, log2 K)`` with
exponential covariance, by random Fourier features [1]_: the features are fixed, their weights are
standard normal and belong to (seed, architecture or SKU). Student-t marginals with 4 degrees of
freedom come from four more such fields, whose mean square is the scale that a shape also lends to
the noise of a run.

References
----------
.. [1] Rahimi, Recht (2007). *Random features for large-scale kernel machines*. NIPS 20.
.. [2] Shah, Wilson, Ghahramani (2014). *Student-t processes as alternatives to Gaussian
   processes*. https://proceedings.mlr.press/v33/shah14.html
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from m2bayes._random import labelled_rng

FREQUENCIES = (64, 16)  # of the discrepancy itself, and of each field of its tail scale
LENGTHS = (2.0, 0.7, 1.2)  # correlation length in octaves of M, N and K
TAIL = 4  # degrees of freedom
SHARED = 0.6  # share of the variance that cards of one architecture have in common


def _features(shapes: np.ndarray, frequencies: int) -> np.ndarray:
    """Cosine and sine features of log2 shapes, dims (shape, feature); the rows have norm 1."""
    rng = labelled_rng(0, "discrepancy frequencies")
    phase = np.log2(shapes) @ (rng.standard_cauchy((frequencies, 3)) / LENGTHS).T
    waves = np.concatenate([np.cos(phase), np.sin(phase)], axis=1)
    return (waves / np.sqrt(frequencies)).astype(np.float32)


def _field(features: np.ndarray, draws: int, seed: int, *labels: str) -> np.ndarray:
    """Standard normal field, dims (draw, shape), whose weights belong to `seed` and `labels`."""
    rng = labelled_rng(seed, "discrepancy", *labels)
    weights = rng.standard_normal((draws, features.shape[1]), dtype=np.float32)
    return np.asarray(weights @ features.T)


def unit_fields(
    shapes: np.ndarray, *, sku: str, architecture: str, draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a unit discrepancy and its tail scale, each with dims (draw, shape).

    Parameters
    ----------
    shapes : array, dims (shape, 3)
        ``M``, ``N``, ``K`` [1] of each shape.
    sku, architecture : str
        Whose field; cards of one architecture share part of it.
    draws, seed : int
        Number of draws [1] and seed.

    Returns
    -------
    tuple of array, dims (draw, shape)
        Student-t field with scale 1 [1]: multiply by the SKU's ``sigma_cell``; and the factor
        [1] by which the same shapes widen run noise.
    """
    shapes = np.asarray(shapes, dtype=float)
    owners = ((f"architecture {architecture}", SHARED), (f"sku {sku}", 1 - SHARED))
    fields = []
    for i in range(1 + TAIL):
        features = _features(shapes, FREQUENCIES[min(i, 1)])
        parts = [
            np.sqrt(np.float32(share)) * _field(features, draws, seed, label, str(i))
            for label, share in owners
        ]
        fields.append(parts[0] + parts[1])
    widening = 1 / np.sqrt(np.mean([field**2 for field in fields[1:]], axis=0))
    return fields[0] * widening, widening


def run_noise(
    labels: Sequence[str], *, sku: str, backend: str, draws: int, runs: int, seed: int
) -> np.ndarray:
    """Standard normal noise of `runs` new runs of a build [1], dims (run, draw, shape)."""
    noise = [
        labelled_rng(seed, "run", sku, backend, label).standard_normal(
            (runs, draws), dtype=np.float32
        )
        for label in labels
    ]
    return np.stack(noise, axis=-1)
