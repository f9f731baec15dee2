r"""The discrepancy δ of a shape: a function of (draw, SKU, shape), not noise.

A library picks one kernel for a shape, every time; so a shape is faster or slower than the law in
every layer, call and workload, its neighbours tend to be too, and cards of one architecture share
much of it. What a kernel loses while it reads from L2 says little of what it loses when it reads
from HBM. So δ is a stationary random field over the log2 of each size and the log factor by which
L2 shortens the kernel, with exponential covariance, part of it the architecture's and part
the SKU's own. Where shapes nearby were measured, their residuals move its mean and shrink its
variance (kriging on the nearest cells); elsewhere it has its prior. Draws come from random Fourier
features [1]_: the features are fixed, their weights are standard normal and belong to (seed,
architecture or SKU), so the same shape has the same value wherever it is asked for. Student-t
marginals [2]_ with 4 degrees of freedom come from four more such fields, whose mean square is the
scale that a shape also lends to the noise of a run. Conditioning on the nearest cells alone is
Vecchia's [3]_.

References
----------
.. [1] Rahimi, Recht (2007). *Random features for large-scale kernel machines*. NIPS 20.
.. [2] Shah, Wilson, Ghahramani (2014). *Student-t processes as alternatives to Gaussian
   processes*. https://proceedings.mlr.press/v33/shah14.html
.. [3] Vecchia (1988). *Estimation and model identification for continuous spatial processes*.
   https://doi.org/10.1111/j.2517-6161.1988.tb01729.x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from m2bayes._math import minimum
from m2bayes._order import smallest
from m2bayes._random import labelled_rng
from m2bayes.random_fields import (
    FREQUENCIES,
    ROUGH,
    ROUGH_LENGTH,
    TAIL,
    Lengths,
    features,
    fields,
    located,
)

WIDEST = 4.0  # the tail scale ends here (0.7 % of draws): the mean of exp(t) would not exist
SHARED = 0.75  # share of the variance that cards of one architecture have in common
NEAREST = 64  # measured cells that a shape is conditioned on
SILENT = 1e12  # noise of a cell that must not be heard
STEADY = 0.7  # part of the relative error that steady time is spared
OUTLIER = 6.0  # residuals beyond this many scales are pulled in to it
BLOCK = 32  # shapes conditioned at once


@dataclass(frozen=True)
class Residuals:
    """What measured cells of one architecture say of the discrepancy, in units of its scale.

    Parameters
    ----------
    shapes : array, dims (cell, size)
        The sizes and, if given, the log gain from L2 [1].
    sku : array of str, dims (cell,)
        Whose cell it is.
    unit : array, dims (cell,)
        Log of measured over modelled time, over the SKU's ``sigma_cell`` [1].
    noise : array, dims (cell,)
        Variance of `unit` that run noise explains [1].
    wider : float
        How much wider the SKU's errors are than the conditional sd says [1], see
        `m2bayes.residuals.inflation`.
    """

    shapes: np.ndarray
    sku: np.ndarray
    unit: np.ndarray
    noise: np.ndarray
    wider: float = 1.0


@dataclass(frozen=True)
class Moments:
    """Conditional moments of the unit discrepancy [1], each with dims (shape,).

    ``shared`` is the share of the variance that the cards of an architecture have in common.
    """

    mean: np.ndarray
    sd: np.ndarray
    shared: np.ndarray


def cell_scale(relative: Any, absolute: Any, time: Any, steady: Any = None) -> Any:
    r"""Scale of the discrepancy of a shape [1], dims broadcast.

    .. math:: \sigma = \sqrt{\sigma_{rel}^2\,(1 - 0.7\,t_s/t)^2 + (\sigma_{abs} / t)^2}

    A kernel is off by a share of its time, less of what a datasheet's bandwidth decides, and by a
    fraction of a microsecond whatever its length.

    Parameters
    ----------
    relative, absolute : array_like, dims (sku,)
        ``sigma_cell`` [1] and ``sigma_time`` [s].
    time, steady : array_like
        Modelled kernel time, and what of it is steady if any, see `m2bayes.mechanism.laws.Law` [s].

    Examples
    --------
    >>> cell_scale(0.3, 0.4e-6, 1e-6)
    0.5
    """
    if steady is not None:
        relative = relative * (1 - STEADY * minimum(steady / time, 1.0))
    return (relative**2 + (absolute / time) ** 2) ** 0.5


def tapered(delta: np.ndarray) -> np.ndarray:
    """Log error [1] of which what is beyond an e-fold adds to the time, dims kept.

    Most of a large error is a scatter of microseconds on a short kernel, and a share of its time is
    a log only while it is small. Without the taper a card whose scatter nobody measured spends
    seconds in a kernel of microseconds in one draw of some thousand, and the mean is that draw.

    >>> np.exp(tapered(np.array([0.5, 1.0, 3.0])) - [0.5, 1.0, 1.0]).round(3).tolist()
    [1.0, 1.0, 3.0]
    """
    return np.where(delta > 1, 1 + np.log(np.maximum(delta, 1)), delta)


def correlation(a: np.ndarray, b: np.ndarray, lengths: Lengths) -> np.ndarray:
    """Correlation [1] of one field at places `a` and `b` of `located`, dims (..., a, b)."""
    distance = np.abs(a[..., :, None, 0] - b[..., None, :, 0]) / lengths[0]
    for i, length in enumerate(lengths[1:], start=1):
        distance += np.abs(a[..., :, None, i] - b[..., None, :, i]) / length
    return (1 - ROUGH) * np.exp(-distance) + ROUGH * np.exp(-distance / ROUGH_LENGTH)


def moments(
    shapes: np.ndarray,
    *,
    sku: str,
    residuals: Residuals | None,
    lengths: Lengths,
    left_out: bool = False,
) -> Moments:
    """Condition the unit discrepancy of `shapes` on measured cells of the same architecture.

    Parameters
    ----------
    shapes : array, dims (shape, size)
        The sizes and, if given, the log gain from L2 [1].
    sku : str
        Whose discrepancy; its own cells count fully, its architecture's in part.
    residuals : Residuals or None
        Of the architecture; None for the prior.
    lengths : tuple of float
        Correlation length in octaves of each size, and in log gain from L2.
    left_out : bool
        Condition on cells of other shapes only, as if these shapes had not been measured.

    Returns
    -------
    Moments, dims (shape,)
        Each shape is conditioned on its `NEAREST` cells alone, so it does not depend on what
        other shapes are asked for.
    """
    n = len(shapes)
    if residuals is None or len(residuals.unit) == 0:
        return Moments(np.zeros(n), np.ones(n), np.full(n, SHARED))
    parts = [
        _local_moments(shapes[i : i + BLOCK], sku, residuals, lengths, left_out)
        for i in range(0, n, BLOCK)
    ]
    mean, variance, common = (np.concatenate(p) for p in zip(*parts, strict=True))
    variance = np.clip(variance, 1e-6, 1.0)
    share = np.clip(common / variance, 0.0, 1.0)
    # a shape with no measured cell near it keeps its prior scale
    learnt = 1 - variance
    return Moments(mean, np.sqrt(variance) * (1 + learnt * (residuals.wider - 1)), share)


def _local_moments(
    shapes: np.ndarray, sku: str, known: Residuals, lengths: Lengths, left_out: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variance, and covariance with a sister card, dims (shape,)."""
    at, cells = located(shapes, lengths), located(known.shapes, lengths)
    own = known.sku == sku
    sisters = max(len(set(known.sku[~own])), 1)
    near = correlation(at, cells, lengths)
    weight = np.where(own, 1.0, SHARED)
    k = min(NEAREST, len(cells))
    barred = np.zeros(near.shape, dtype=bool)
    if left_out:
        barred = (at[:, None, :-1] == cells[None, :, :-1]).all(axis=-1)
    chosen = smallest(barred - near * weight, k)
    labels = np.unique(known.sku, return_inverse=True)[1][chosen]
    alike = labels[:, :, None] == labels[:, None, :]
    covariance = correlation(cells[chosen], cells[chosen], lengths) * np.where(alike, 1.0, SHARED)
    silent = np.where(np.take_along_axis(barred, chosen, axis=1), SILENT, 0.0)
    covariance[:, np.arange(k), np.arange(k)] += known.noise[chosen] + silent
    near = np.take_along_axis(near, chosen, axis=1)
    to_own = near * weight[chosen]
    to_sister = near * np.where(own[chosen], SHARED, SHARED + (1 - SHARED) / sisters)
    gain = np.linalg.solve(covariance, to_own[:, :, None])[:, :, 0]
    unit = np.clip(known.unit, -OUTLIER, OUTLIER)[chosen]
    return (
        (gain * unit).sum(axis=1),
        1 - (gain * to_own).sum(axis=1),
        SHARED - (gain * to_sister).sum(axis=1),
    )


def unit_fields(
    shapes: np.ndarray,
    *,
    sku: str,
    architecture: str,
    draws: int,
    seed: int,
    lengths: Lengths,
    residuals: Residuals | None = None,
    chosen: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a unit discrepancy and its tail scale, each with dims (draw, shape).

    Parameters
    ----------
    shapes : array, dims (shape, size)
        The sizes and, if given, the log gain from L2 [1].
    sku, architecture : str
        Whose field; cards of one architecture share part of it.
    draws, seed : int
        Number of draws [1] and seed.
    lengths : tuple of float
        Correlation length in octaves of each size, and in log gain from L2.
    residuals : Residuals, optional
        Of measured cells of the architecture.
    chosen : array of int, optional
        Places of the draws that are asked for; by default all.

    Returns
    -------
    tuple of array, dims (draw, shape)
        Student-t field [1] with its far tail cut, of scale 1 where nothing nearby was measured:
        multiply by `cell_scale`; and the factor [1] by which the same shapes widen run noise.
    """
    shapes = np.asarray(shapes, dtype=float)
    known = moments(shapes, sku=sku, residuals=residuals, lengths=lengths)
    chosen = np.arange(draws) if chosen is None else chosen
    waves = [features(shapes, FREQUENCIES[0], lengths)]
    waves += [features(shapes, FREQUENCIES[1], lengths)] * TAIL
    common, own = (
        fields(waves, chosen, draws, seed, label)
        for label in (f"architecture {architecture}", f"sku {sku}")
    )
    shared = np.full((len(waves), 1, len(shapes)), SHARED, dtype=np.float32)
    shared[0] = known.shared
    normal = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    squares = normal[1] ** 2
    for field in normal[2:]:
        squares += field**2
    widening = 1 / np.sqrt(squares / np.float32(TAIL))
    widening = np.minimum(widening, WIDEST)
    unit = known.mean.astype(np.float32) + known.sd.astype(np.float32) * normal[0] * widening
    return unit, widening


def run_noise(
    labels: Sequence[str], *, sku: str, backend: str, draws: int, runs: int, seed: int
) -> np.ndarray:
    """Standard normal noise of `runs` new runs of a build [1], dims (run, draw, shape)."""
    rngs = [labelled_rng(seed, "run", sku, backend, label) for label in labels]
    noise = [rng.standard_normal((runs, draws), dtype=np.float32) for rng in rngs]
    return np.stack(noise, axis=-1)
