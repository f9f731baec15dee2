"""The two building blocks of every model: a pooled factor, and the likelihood of replicated cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

TAIL = 4.0  # degrees of freedom of the Student-t errors


def pooled(
    name: str,
    mean: tuple[float, float],
    *,
    architecture: float | None = None,
    sku: float | None = None,
    at: np.ndarray | None = None,
    centred: bool = False,
    spread: float = 0.3,
) -> Any:
    """One factor on the log scale [1], pooled population → architecture → SKU.

    Registers ``<name>_mean``; with `architecture` also ``<name>_architecture`` and its ``_sd``;
    with `sku` also ``<name>_sku_sd``; and ``<name>`` itself by the finest level. Those names are
    what `m2bayes.predictive.with_skus` reads to draw the factor of a SKU that nobody measured.

    Parameters
    ----------
    name : str
        ``log_`` and the factor's name.
    mean : tuple of float
        Centre and standard deviation of the population's normal prior [1].
    architecture, sku : float, optional
        Median spread between architectures, and between SKUs of one architecture [1]; the
        spread itself has a log-normal prior of width `spread`.
    at : array of int, dims (sku,)
        Position of each SKU's architecture.
    centred : bool
        Sample the SKU's value itself rather than its standardised offset: for data-rich factors.

    Returns
    -------
    TensorVariable, dims (sku,), (architecture,) or ()
        The factor on the log scale.
    """
    level = pm.Normal(f"{name}_mean", *mean)
    if architecture is not None:
        sd = pm.LogNormal(f"{name}_architecture_sd", np.log(architecture), spread)
        offset = pm.Normal(f"{name}_architecture_offset", 0, 1, dims="architecture")
        deviation = sd * offset
        level = level + deviation
        level = pm.Deterministic(f"{name}_architecture", level, dims="architecture")
    if sku is None:
        return level if architecture is None else pm.Deterministic(name, level, dims="architecture")
    if architecture is not None:
        level = level[at]
    sd = pm.LogNormal(f"{name}_sku_sd", np.log(sku), spread)
    if centred:
        return pm.Normal(name, level, sd, dims="sku")
    offset = pm.Normal(f"{name}_sku_offset", 0, 1, dims="sku")
    return pm.Deterministic(name, level + sd * offset, dims="sku")


def cell_logp(
    value: Any, mu: Any, present: Any, sigma_cell: Any, sigma_run: Any
) -> Any:
    r"""Log density of the builds of each cell [1], dims (cell,).

    The builds of one cell share the discrepancy of its shape and differ by run noise; both are
    scaled by one heavy-tailed factor, so a cell is multivariate Student-t with 4 degrees of freedom
    and covariance :math:`\sigma_{cell}^2 J + \sigma_{run}^2 I`, in closed form.

    Parameters
    ----------
    value, mu, present : tensor, dims (cell, backend)
        Log time, its location, and 1 where a build measured the cell, else 0 [1].
    sigma_cell, sigma_run : tensor, dims (cell,)
        Scale of the discrepancy and of a run [1].
    """
    n = present.sum(axis=1)
    residual = (value - mu) * present
    run, cell = sigma_run**2, sigma_cell**2
    total = run + n * cell
    square = ((residual**2).sum(axis=1) - cell / total * residual.sum(axis=1) ** 2) / run
    log_det = (n - 1) * pt.log(run) + pt.log(total)
    return (
        pt.gammaln((TAIL + n) / 2)
        - pt.gammaln(TAIL / 2)
        - n / 2 * np.log(TAIL * np.pi)
        - log_det / 2
        - (TAIL + n) / 2 * pt.log1p(square / TAIL)
    )


def cell_random(
    mu: Any, present: Any, sigma_cell: Any, sigma_run: Any, rng: Any = None, size: Any = None
) -> Any:
    """Draw the builds of each cell [1], dims (cell, backend); absent builds come out as 0."""
    shape = size if size is not None else mu.shape
    scale = 1 / np.sqrt(rng.chisquare(TAIL, size=shape[:-1]) / TAIL)
    shared = (sigma_cell * scale * rng.standard_normal(shape[:-1]))[..., None]
    own = (sigma_run * scale)[..., None] * rng.standard_normal(shape)
    return (mu + shared + own) * present
