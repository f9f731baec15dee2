"""Calibrated mode: a few timed steps of one engine say how long its host keeps the GPU waiting.

What is learnt is one additive scalar, and how far the timings stray from the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from m2bayes._random import labelled_rng
from m2bayes.errors import DataError

SPREADS = (0.005, 1.0)  # [1] range of both spreads
GRID = 25  # values of each spread
RUN = 0.02  # [1] run-to-run spread of a timed step: how well a timing tells its own misfit
SCALES = tuple(np.geomspace(5e-5, 5e-3, 7).tolist())  # [s] of a host time, one as likely as another
APART = 1e-6  # correlation [1] below which a step says nothing of another
LENGTH = 4.0  # octaves of batch or context over which misfits of steps are alike
LEAST = 0.1  # [1] a calibrated step keeps at least this share of the predicted time


@dataclass(frozen=True)
class Calibration:
    """One host time and two spreads for each draw of a predictor, dims (draw,).

    Parameters
    ----------
    host : ndarray, dims (draw,)
        Host time of one step [s].
    spread : ndarray, dims (draw,)
        Relative misfit of a single cell [1].
    group_spread : ndarray, dims (draw,)
        Relative misfit that the cells of a group, such as an LLM, share, against the mean of the
        calibrated groups [1].
    places : ndarray, dims (obs, axis)
        Where the timed cells lie [octave], see `m2bayes.workload.Step`; none if nobody says it.
    shown : ndarray, dims (draw, obs)
        Log of their times over `point` [1].
    """

    host: np.ndarray
    spread: np.ndarray
    group_spread: np.ndarray
    places: np.ndarray | None = None
    shown: np.ndarray | None = None

    def point(self, predicted: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
        """Predicted plus host time, without misfit [s], dims (draw, obs).

        Parameters
        ----------
        predicted : ndarray, dims (draw, obs)
            Step times of the same predictor, the same draws in the same order [s].
        floor : ndarray, dims (draw, obs)
            Time that no host time goes below [s], such as that of the kernels; by default a tenth.
        """
        least = LEAST * predicted if floor is None else floor
        return np.maximum(predicted + self.host[:, None], least)

    def applied(
        self,
        predicted: np.ndarray,
        *,
        group: Sequence[str] | None = None,
        label: Sequence[str] | None = None,
        place: np.ndarray | None = None,
        floor: np.ndarray | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        r"""Times of cells [s], dims (draw, obs).

        Misfits of cells d octaves apart correlate as :math:`e^{-d/4}`: where it is known where
        cells lie, one that was timed keeps what its timings show, but for run noise, and others
        do the less, the farther they are (kriging); of a kind of step that nobody timed no misfit
        is known, and none is drawn. Else each cell and group draws a misfit anew.

        Parameters
        ----------
        predicted : ndarray, dims (draw, obs)
            Step times of the same predictor, the same draws in the same order [s].
        group : sequence of str, dims (obs,)
            Group of each cell; one group if it is left out.
        label : sequence of str, dims (obs,)
            Name of each cell: the same name has the same misfit, whatever else is asked for.
        place : ndarray, dims (obs, axis)
            Where each cell lies [octave]; without, what timed cells show is not used.
        floor : ndarray, dims (draw, obs)
            See `point`.
        seed : int
            Of the misfits.
        """
        draws, cells = predicted.shape
        names = [str(i) for i in range(cells)] if label is None else label
        rngs = [labelled_rng(seed, "calibration", "cell", name) for name in names]
        noise = np.stack([rng.standard_normal(draws) for rng in rngs], axis=1)
        if place is not None and self.places is not None and self.shown is not None:
            misfit = self._kriged(self.places, self.shown, place, noise)
        else:
            misfit = self.spread[:, None] * noise + self._of_groups(group, cells, seed)
        return self.point(predicted, floor) * np.exp(misfit)

    def _of_groups(self, group: Sequence[str] | None, cells: int, seed: int) -> np.ndarray:
        """Misfit that the cells of a group share, drawn anew, dims (draw, obs) [1]."""
        labels = ["all"] * cells if group is None else [str(g) for g in group]
        shared = {
            g: labelled_rng(seed, "calibration", "group", g).standard_normal(len(self.host))
            for g in set(labels)
        }
        return self.group_spread[:, None] * np.stack([shared[g] for g in labels], axis=1)

    def _kriged(
        self, places: np.ndarray, shown: np.ndarray, place: np.ndarray, normal: np.ndarray
    ) -> np.ndarray:
        """Misfits of cells given those that timings have shown, dims (draw, obs) [1]."""
        among, to_new = _correlation(places, places), _correlation(place, places)
        out, spread = np.empty_like(normal), np.hypot(self.spread, self.group_spread)
        for one in np.unique(spread):  # few: they are drawn from a grid
            at = spread == one
            known = one**2 * among + RUN**2 * np.eye(len(among))
            gain = np.linalg.solve(known, one**2 * to_new.T).T
            left = one**2 * (1 - (gain * to_new).sum(axis=1))
            out[at] = shown[at] @ gain.T + np.sqrt(np.maximum(left, 0)) * normal[at]
        return np.where(to_new.max(axis=1) > APART, out, 0.0)


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation [1] of misfits at two sets of places [octave], dims (a, b)."""
    return np.exp(-np.abs(a[:, None] - b[None]).sum(axis=-1) / LENGTH)


def host_scalar(
    predicted: np.ndarray,
    observed: np.ndarray,
    *,
    prior_sd: float | Sequence[float] = 0.01,
    prior_spread: float = 0.1,
    prior_group_spread: float = 0.1,
    group: Sequence[str] | None = None,
    place: np.ndarray | None = None,
    floor: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    spread: float | None = None,
    group_spread: float | None = None,
    seed: int = 0,
) -> Calibration:
    r"""Host time of an engine's step, from measured steps, for each draw of a predictor.

    For draw s, cell i of group g and the scale :math:`c_i` of the cell:

    .. math:: y_i = x_{si} + h_s + c_i (u_{sg} - \bar u_s + e_{si}), \quad
        h_s \sim N(0, \kappa^2),\; u_{sg} \sim N(0, \tau_s^2),\; e_{si} \sim N(0, \sigma_s^2)

    with half-normal priors on :math:`\sigma` and :math:`\tau`. Given the spreads all is normal:
    the u are integrated out, the spreads are drawn from their exact posterior on a grid, then h
    from its normal posterior. What all groups err alike, :math:`\bar u`, is h's to absorb, so
    that it stays the scalar that serves best; a new group errs by :math:`u - \bar u`, with
    variance :math:`\tau^2 (1 + 1/G)` after G groups.

    This is modular ("cut") inference [1]_: the timings inform h, σ and τ, never the draws of the
    predictor, which keep equal weight. A draw that predicts too fast gets a longer host time, so
    an error that the predictor makes everywhere is absorbed and h is no pure host time. The
    residuals hold the predictor's own discrepancy and the spread of its draws as well as noise,
    so the spreads, given to new cells as misfit, err on the wide side.

    One group alone says nothing of τ, which then keeps its prior: another LLM may differ, and the
    cells of one cannot tell by how much. Misfit that grows with
    batch or context is not modelled: calibrate on the range that is asked about.

    Parameters
    ----------
    predicted : ndarray, dims (draw, obs)
        Step times [s].
    observed : ndarray, dims (obs,)
        Measured times of the same steps [s].
    prior_sd : float or sequence of float
        Prior standard deviation κ of the host time [s]; of several each is as likely.
    prior_spread, prior_group_spread : float
        Scales of the half-normal priors of σ and τ [1].
    group : sequence of str, dims (obs,)
        What may err together, such as the LLM; one group if it is left out.
    place : ndarray, dims (obs, axis)
        Where each cell lies [octave], for `Calibration.applied`.
    floor : ndarray, dims (draw, obs)
        See `Calibration.point`.
    scale : ndarray, dims (obs,)
        Time to which the misfit is relative [s]; the observed time if it is left out, which
        favours short times a little (a share of σ², 1 % at σ = 0.1).
    spread, group_spread : float
        Values of σ and τ [1] if they are known.
    seed : int
        Of everything drawn.

    Returns
    -------
    Calibration, dims (draw,)
        Host time [s] and spreads [1], one for each draw.

    Raises
    ------
    DataError
        If shapes differ, nothing was measured, or a time is not above zero.

    References
    ----------
    .. [1] Plummer (2015). *Cuts in Bayesian graphical models*.
       https://doi.org/10.1007/s11222-014-9503-z

    Examples
    --------
    Many equal cells that take 2 ms longer than predicted, known to 1 %:

    >>> x = np.full((4000, 100), 8e-3)
    >>> found = host_scalar(x, np.full(100, 1e-2), spread=0.01, group_spread=0.0)
    >>> round(float(found.host.mean()), 5)
    0.002
    """
    x, y = np.asarray(predicted, dtype=float), np.asarray(observed, dtype=float)
    scales = np.atleast_1d(np.asarray(prior_sd, dtype=float))
    _check(x, y, scales)
    c = y if scale is None else np.asarray(scale, dtype=float)
    labels = np.zeros(len(y), int) if group is None else np.unique(group, return_inverse=True)[1]
    sigma, sigma_prior = _values(spread, prior_spread)
    tau, tau_prior = _values(group_spread, prior_group_spread)
    settings = (y - x) / c, c, labels, (sigma, tau)
    parts = [_normals(*settings, one) for one in scales]
    mean, sd, weight = (np.stack([part[i] for part in parts]) for i in range(3))
    weight = weight + sigma_prior[:, None, None] + tau_prior[None, :, None]
    flat = weight.reshape(-1, len(x))
    rng = labelled_rng(seed, "calibration", "scalar")
    share = np.exp(flat - flat.max(axis=0)).cumsum(axis=0)
    at = (share < rng.random(len(x)) * share[-1]).sum(axis=0)
    k, i, j = np.unravel_index(at, weight.shape[:3])
    host = mean[k, i, j, np.arange(len(x))] + sd[k, i, j, 0] * rng.standard_normal(len(x))
    found = Calibration(host, sigma[i], tau[j] * np.sqrt(1 + 1 / (labels.max() + 1)))
    if place is None:
        return found
    return replace(found, places=place, shown=np.log(y / found.point(x, floor)))


def _contrasts(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthogonal columns W of what groups do differently, dims (obs, contrast), and W'W [1].

    The u − ū of the groups have the covariance τ²WW' over cells; one group has no contrast.
    """
    groups = int(labels.max()) + 1
    member = (labels[:, None] == np.arange(groups)).astype(float)
    basis = member @ np.linalg.svd(np.eye(groups) - 1 / groups)[0][:, : groups - 1]
    square, axes = np.linalg.eigh(basis.T @ basis)
    return basis @ axes, square


def _normals(
    residual: np.ndarray,
    scale: np.ndarray,
    labels: np.ndarray,
    spreads: tuple[np.ndarray, np.ndarray],
    prior_sd: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and sd [s] of h for each pair of spreads, and their log likelihood.

    Residuals are relative, dims (draw, obs) [1]; the results' dims (σ, τ, draw), of the sd
    (σ, τ, 1). The covariance is σ²I + τ²WW', with inverse (I − WkW')/σ² and diagonal k.
    """
    contrasts, square = _contrasts(labels)
    s2, t2 = spreads[0][:, None, None] ** 2, spreads[1][None, :, None] ** 2
    inner = s2 + t2 * square  # (σ, τ, contrast)
    k = t2 / inner
    inverse = 1 / scale
    wg, wr = inverse @ contrasts, residual @ contrasts
    gg = (inverse @ inverse - (k @ wg**2)[..., None]) / s2
    gr = (residual @ inverse - (k * wg) @ wr.T) / s2
    rr = ((residual**2).sum(axis=1) - k @ (wr**2).T) / s2
    precision = 1 / prior_sd**2 + gg
    log_det = (len(scale) - len(square)) * np.log(s2) + np.log(precision)
    log_det = log_det + np.log(inner).sum(axis=-1, keepdims=True)
    log_det = log_det + 2 * np.log(prior_sd)
    return gr / precision, precision**-0.5, -0.5 * (rr - gr**2 / precision + log_det)


def _values(known: float | None, prior: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of one spread and their log prior, half-normal, on a grid even in the logarithm."""
    if known is not None:
        return np.array([float(known)]), np.zeros(1)
    values = np.geomspace(*SPREADS, GRID)
    return values, -0.5 * (values / prior) ** 2 + np.log(values)


def _check(x: np.ndarray, y: np.ndarray, scales: np.ndarray) -> None:
    if x.ndim != 2 or y.shape != x.shape[1:] or not x.size:
        raise DataError(
            f"predicted has shape {x.shape}, observed {y.shape}; expected (draw, obs) and (obs,)"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (y > 0).all() and (x > 0).all()):
        raise DataError("calibration needs finite times above zero")
    if not (scales > 0).all():
        raise DataError(f"prior_sd is {scales.min()}; give a time above zero, in seconds")
