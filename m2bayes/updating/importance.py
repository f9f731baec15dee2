"""Importance sampling of what belongs to one SKU, given draws of what it shares with others.

For every draw the target is a standard normal prior times the likelihood of the new measurements.
A second-order expansion of the log-likelihood at one mode gives each draw a Gaussian of its own in
closed form, and a Student-t of that shape proposes: the proposals fit the new target and not the
old one [1]_. The sum of a draw's weights is what the measurements say of what SKUs share.
Pareto-smoothed weights [2]_ tell whether the result may be used, see `GOOD`.

References
----------
.. [1] Paananen, Piironen, Bürkner, Vehtari (2021). *Implicitly adaptive importance sampling*.
   https://doi.org/10.1007/s11222-020-09982-2
.. [2] Vehtari, Simpson, Gelman, Yao, Gabry (2024). *Pareto smoothed importance sampling*.
   https://jmlr.org/papers/v25/19-556.html
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma

import numpy as np

from m2bayes._random import labelled_rng
from m2bayes.updating.coordinates import Coordinates

EVEN = 1e-9  # range of log weights that are all the same
GOOD = 0.7  # Pareto k up to which smoothed weights may be used
STEP = 0.02  # of finite differences, in prior sd
TAIL = 8.0  # degrees of freedom of the proposal
EACH = 4  # proposals for each draw
NEWTON, ENOUGH = 50, 1e-6  # steps to the mode at most, and the gain that ends them
HALVINGS = 12  # of a step that does not gain
LogLikelihood = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Weighted:
    """Weighted samples of (draw, coordinates).

    Parameters
    ----------
    draw : array, dims (sample,)
        Position of the draw that each sample belongs to [1].
    z : array, dims (sample, coordinate)
        Coordinates [1].
    log_weight : array, dims (sample,)
        Log of the importance ratios [1].
    weight : array, dims (sample,)
        The same smoothed, sums to 1 [1].
    pareto_k : float
        Shape of the weights' tail [1].
    ess : float
        Effective number of draws, all samples of a draw taken together [1].
    """

    draw: np.ndarray
    z: np.ndarray
    log_weight: np.ndarray
    weight: np.ndarray
    pareto_k: float
    ess: float


@dataclass(frozen=True)
class Expansion:
    """Second-order expansion of a log-likelihood at a point, dims (variable,) and twice that."""

    point: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray


def smoothed(
    log_weight: np.ndarray, draw: np.ndarray | None = None
) -> tuple[np.ndarray, float, float]:
    """Pareto-smoothed weights that sum to 1, dims (sample,), their Pareto k, and the ESS [1].

    Parameters
    ----------
    log_weight : array, dims (sample,)
        Log of the importance ratios [1].
    draw : array, dims (sample,), optional
        Which draw a sample belongs to: the effective size counts draws, not samples.
    """
    from arviz_stats.base import array_stats

    log_smooth, k = log_weight, 0.0
    if np.ptp(log_weight) > EVEN:
        log_smooth, k = array_stats.psislw(-log_weight)  # it takes log-likelihoods left out
    weight = np.exp(log_smooth - log_smooth.max())
    weight = weight / weight.sum()
    by_draw = weight if draw is None else np.bincount(draw, weight)
    return weight, float(k), float(1 / np.sum(by_draw**2))


def expansion(log_likelihood: LogLikelihood, at: np.ndarray, scale: np.ndarray) -> Expansion:
    """Gradient and negative Hessian of a log-likelihood by central differences.

    Parameters
    ----------
    log_likelihood : callable
        Of variables with dims (sample, variable), dims (sample,).
    at, scale : array, dims (variable,)
        Where, and by what steps [1]; a variable of scale 0 has no effect.
    """
    moving = np.flatnonzero(scale > 0)
    n, step = len(moving), np.zeros((len(moving), len(at)))
    step[np.arange(n), moving] = scale[moving]
    one, two = np.triu_indices(n, k=1)
    pairs = step[one] + step[two]
    points = np.concatenate([np.zeros((1, len(at))), step, -step, pairs, -pairs])
    value = log_likelihood(at + points)
    centre, up, down = value[0], value[1 : n + 1], value[n + 1 : 2 * n + 1]
    both, neither = np.split(value[2 * n + 1 :], 2)
    width = scale[moving]
    gradient, curvature = np.zeros(len(at)), np.zeros((len(at), len(at)))
    gradient[moving] = (up - down) / (2 * width)
    curvature[moving, moving] = -(up + down - 2 * centre) / width**2
    cross = both + neither - up[one] - up[two] - down[one] - down[two] + 2 * centre
    cross = -cross / (2 * width[one] * width[two])
    curvature[moving[one], moving[two]] = curvature[moving[two], moving[one]] = cross
    return Expansion(at, gradient, curvature)


def mode(
    log_likelihood: LogLikelihood, centre: np.ndarray, loading: np.ndarray, scale: np.ndarray
) -> Expansion:
    """Expansion at the mode of prior times likelihood, for one typical draw.

    Parameters
    ----------
    log_likelihood : callable
        See `expansion`.
    centre, scale : array, dims (variable,)
        Variables at ``z = 0`` and steps of the finite differences.
    loading : array, dims (variable, coordinate)
        Step of the variables for a step of the coordinates [1].
    """
    z = np.zeros(loading.shape[1])

    def density(points: np.ndarray) -> np.ndarray:
        return log_likelihood(centre + points @ loading.T) - (points**2).sum(axis=1) / 2

    now = density(z[None])[0]
    for _ in range(NEWTON):
        found = expansion(log_likelihood, centre + loading @ z, scale)
        slope = loading.T @ found.gradient - z
        values, vectors = np.linalg.eigh(loading.T @ found.curvature @ loading + np.eye(len(z)))
        move = vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), 1.0))
        tried = z + move * 0.5 ** np.arange(HALVINGS)[:, None]
        gained = density(tried)
        best = int(np.argmax(gained))
        if not gained[best] > now + ENOUGH:
            break
        z, now = tried[best], gained[best]
    return expansion(log_likelihood, centre + loading @ z, scale)


def gaussians(
    found: Expansion, centre: np.ndarray, loading: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian that prior and expansion make of every draw.

    Parameters
    ----------
    found : Expansion
        Of the log-likelihood; directions in which it curves upwards count as flat.
    centre, loading : array, dims (sample, variable) and (sample, variable, coordinate)
        See `m2bayes.updating.coordinates.Coordinates`.

    Returns
    -------
    tuple of array, dims (sample, coordinate) and (sample, coordinate, coordinate)
        Mean, and lower Cholesky factor of the covariance [1].
    """
    values, vectors = np.linalg.eigh(found.curvature)
    curvature = (vectors * np.maximum(values, 0.0)) @ vectors.T
    precision = np.eye(loading.shape[2]) + loading.transpose(0, 2, 1) @ curvature @ loading
    pull = found.gradient - (centre - found.point) @ curvature
    covariance = np.linalg.inv(precision)
    mean = np.einsum("skl,svl,sv->sk", covariance, loading, pull, optimize=True)
    return mean, np.linalg.cholesky(covariance)


def weighted(
    log_likelihood: LogLikelihood, held: Coordinates, *, seed: int, each: int = EACH
) -> Weighted:
    """Sample coordinates in every draw and weight them by the new measurements.

    Parameters
    ----------
    log_likelihood : callable
        Of variables on the link scale with dims (sample, variable), dims (sample,).
    held : Coordinates
        Of one SKU; without any coordinate the draws themselves are weighted.
    seed : int
        Of the proposals.
    each : int
        Proposals for each draw [1].
    """
    draws, _, size = held.loading.shape
    if not size:
        draw, z, correction = np.arange(draws), np.zeros((draws, 0)), 0.0
    else:
        found = expanded(log_likelihood, held)
        mean, factor = gaussians(found, held.centre, held.loading)
        draw = np.repeat(np.arange(draws), each)
        unit = _student(labelled_rng(seed, "proposals"), len(draw), size)
        z = mean[draw] + np.einsum("skl,sl->sk", factor[draw], unit)
        spread = np.log(np.einsum("skk->sk", factor)).sum(axis=1)[draw]
        correction = spread - (z**2).sum(axis=1) / 2 - _log_student(unit)
    log_weight = log_likelihood(held.values(z, draw)) + correction
    weight, k, ess = smoothed(log_weight, draw)
    return Weighted(draw, z, log_weight, weight, k, ess)


def expanded(log_likelihood: LogLikelihood, held: Coordinates) -> Expansion:
    """Expansion at the mode in an average draw, dims (variable,) and twice that."""
    variance = (held.loading**2).sum(axis=2).mean(axis=0) + held.centre.var(axis=0)
    return mode(
        log_likelihood,
        held.centre.mean(axis=0),
        held.loading.mean(axis=0),
        STEP * np.sqrt(variance),
    )


def _log_student(unit: np.ndarray) -> np.ndarray:
    """Log density of a standard Student-t with `TAIL` degrees of freedom, dims (sample,)."""
    n = unit.shape[1]
    constant = lgamma((TAIL + n) / 2) - lgamma(TAIL / 2) - n / 2 * np.log(TAIL * np.pi)
    return np.asarray(constant - (TAIL + n) / 2 * np.log1p((unit**2).sum(axis=1) / TAIL))


def _student(rng: np.random.Generator, n: int, dims: int) -> np.ndarray:
    """Draws of a standard Student-t, dims (sample, coordinate)."""
    scale = np.sqrt(rng.chisquare(TAIL, size=(n, 1)) / TAIL)
    return np.asarray(rng.standard_normal((n, dims)) / scale)
