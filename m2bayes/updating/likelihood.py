"""Log density of measured runs given the factors, as the models have it; needs no PyMC.

The discrepancy of a cell is not news where neighbours tell it: cells enter one after another, each
given the cells before it and those that the posterior knows (Vecchia's factorisation [1]_ of the
field of `m2bayes.discrepancy`), so that many rows of one shape do not count as many shapes. Written
on `m2bayes._math`, for arrays of draws and for PyTensor variables alike.

References
----------
.. [1] Vecchia (1988). *Estimation and model identification for continuous spatial processes*.
   https://doi.org/10.1111/j.2517-6161.1988.tb01729.x
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lgamma
from typing import Any

import numpy as np

from m2bayes._math import log, log1p, maximum, minimum
from m2bayes.discrepancy import OUTLIER, cell_scale
from m2bayes.mechanism.laws import Law
from m2bayes.random_fields import TAIL

BLOCK = 300_000  # samples times runs at once


@dataclass(frozen=True)
class Runs:
    """Runs of one SKU or unit, and what is known of their cells' discrepancies beforehand.

    Parameters
    ----------
    law : Law
        Of the kernels.
    terms : dict of array, dims (1, run)
        What the law knows of each run without a parameter, in the benchmark regime.
    log_time : array, dims (run,)
        Log of the measured time in seconds [1].
    build : array, dims (backend, run)
        1 for the build of each run; all 0 for a run whose build effect is taken off already [1].
    member : array, dims (run, cell)
        1 for the cell of each run [1].
    counted : array, dims (cell,)
        1 for a cell that is news, 0 for one that the posterior knows and only tells of others [1].
    mean, sd : array, dims (cell,)
        Moments of the discrepancy given cells of other SKUs and all cells before it, those of
        the latter left out of the mean, in units of its scale [1].
    carry : array, dims (cell, cell)
        What the discrepancy of an earlier cell adds to the mean of a later one [1].
    """

    law: Law
    terms: dict[str, np.ndarray]
    log_time: np.ndarray
    build: np.ndarray
    member: np.ndarray
    counted: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    carry: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Number of runs of each cell [1], dims (cell,)."""
        return np.asarray(self.member.sum(axis=0))


@dataclass(frozen=True)
class Misfit:
    """How far the runs lie from the law; arrays or PyTensor variables.

    Parameters
    ----------
    residual : array, dims (sample, run)
        Log of measured over modelled time, less build effect and the mean of the discrepancy [1].
    scale : array, dims (sample, cell)
        Scale of the discrepancy of each cell [1].
    unit : array, dims (sample, cell)
        Mean over runs of measured over modelled log time, less build effect, over the scale [1].
    square : array, dims (sample, cell)
        Squared distance of a cell in units of the scales of discrepancy and run noise [1].
    log_det : array, dims (sample, cell)
        Log determinant of the covariance of its runs [1].
    """

    residual: Any
    scale: Any
    unit: Any
    square: Any
    log_det: Any


def misfit(held: Runs, factors: Mapping[str, Any], effect: Any) -> Misfit:
    """Distance of each cell's runs from the law of `factors`.

    Parameters
    ----------
    held : Runs
        Of one SKU or unit.
    factors : mapping
        Of the law on their natural scale, and ``sigma_cell``, ``sigma_run`` [1], ``sigma_time``
        [s]; arrays with dims (sample, 1), or PyTensor variables that broadcast so.
    effect : array, dims (sample, backend), or None
        Build effects [1], if the law has any.
    """
    n, run = held.count, factors["sigma_run"] ** 2
    time = held.law.time(held.terms, factors)
    residual = held.log_time - log(time)
    if effect is not None:
        residual = residual - effect @ held.build
    steady = held.law.steady(held.terms)
    scale = cell_scale(
        factors["sigma_cell"],
        factors["sigma_time"],
        time @ held.member / n,
        None if steady is None else steady @ held.member / n,
    )
    unit = (residual @ held.member) / n / scale
    pulled = minimum(maximum(unit, -OUTLIER), OUTLIER)
    residual = residual - (scale * (held.mean + pulled @ held.carry.T)) @ held.member.T
    cell = (scale * held.sd) ** 2
    total = run + n * cell
    squares, sums = (residual**2) @ held.member, residual @ held.member
    square = (squares - cell / total * sums**2) / run
    return Misfit(residual, scale, unit, square, (n - 1) * log(run) + log(total))


def cell_densities(held: Runs, factors: Mapping[str, Any], effect: Any) -> Any:
    r"""Log density of the runs of each cell [1], dims (sample, cell).

    A cell is multivariate Student-t with 4 degrees of freedom and covariance
    :math:`\sigma_{cell}^2 J + \sigma_{run}^2 I`, as in `m2bayes.hierarchy.cell_logp`, moved and
    narrowed by what is known of its discrepancy. Parameters as of `misfit`.
    """
    n, found = held.count, misfit(held, factors, effect)
    constant = np.array([lgamma((TAIL + k) / 2) for k in n]) - lgamma(TAIL / 2)
    constant = constant - n / 2 * np.log(TAIL * np.pi)
    return constant - found.log_det / 2 - (TAIL + n) / 2 * log1p(found.square / TAIL)


def log_likelihood(
    held: Runs, factors: Mapping[str, np.ndarray], effect: np.ndarray | None
) -> np.ndarray:
    """Log density of all counted runs of one SKU or unit [1], dims (sample,), block by block.

    Parameters as of `misfit`, of arrays.
    """
    step, parts = max(1, BLOCK // len(held.log_time)), []
    for i in range(0, len(factors["sigma_run"]), step):
        block = {k: v[i : i + step] for k, v in factors.items()}
        own = None if effect is None else effect[i : i + step]
        parts.append(cell_densities(held, block, own) @ held.counted)
    return np.concatenate(parts)
