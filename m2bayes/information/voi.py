"""Value of information: what a measurement is worth to a decision before it is taken.

A draw of the posterior says how long each SKU takes and what each measurement would read.
Regressing the former on the latter over the draws gives what one would believe after any reading
[1]_, hence what one would choose; how much better that choice does, on draws that the regression
has not seen, is the value of the measurement.

References
----------
.. [1] Strong, Oakley, Brennan, Breeze (2015). *Estimating the expected value of sample information
   using the probabilistic sensitivity analysis sample*. https://doi.org/10.1177/0272989X15575286
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from m2bayes.errors import WorkloadError

FARTHEST = 4.0  # sd at which a simulated reading is pulled in: one far draw must not bend the fit
LEAST, BEYOND = 1e-3, 2.0  # share of variance worth resolving, errors that a value must exceed
IQR = 1.349  # of a standard normal
RIDGE = 1e-9  # of readings that say the same, relative
SAMPLE = ("chain", "draw")


def value_of_information(
    loss: xr.DataArray, readings: xr.DataArray, *, known: Sequence[str] = ()
) -> xr.Dataset:
    """Expected value of each measurement, in the units of the loss.

    Parameters
    ----------
    loss : DataArray, dims (chain, draw, sku)
        What choosing each SKU costs; NaN for one that cannot be chosen [any unit].
    readings : DataArray, dims (chain, draw, candidate)
        What each measurement would read, its own noise included; of times the log [1].
    known : sequence of str
        Candidates that are taken anyway, before the one that is valued.

    Returns
    -------
    Dataset, dims (candidate,)
        ``evsi`` with its Monte Carlo error ``evsi_mcse`` [units of loss], never above ``evpi``;
        ``p_change``, the probability that another SKU is chosen afterwards [1]; ``resolved``, the
        share of the variance between the choice and its closest rival that the reading explains
        [1]; ``evpi`` and ``evpi_mcse``, no dims, are those of knowing everything.

    Raises
    ------
    WorkloadError
        If no SKU can be chosen, or a candidate is unknown.

    Examples
    --------
    Two SKUs whose losses are standard normal: knowing everything is worth 1/√π.

    >>> z = np.random.default_rng(0).standard_normal((4, 5000, 2))
    >>> loss = xr.DataArray(z, dims=("chain", "draw", "sku"), coords={"sku": ["a", "b"]})
    >>> first = loss.isel(sku=[0]).rename(sku="candidate").assign_coords(candidate=["a"])
    >>> found = value_of_information(loss, first)
    >>> round(float(found["evpi"]), 1), round(float(found["evsi"][0]), 1)
    (0.6, 0.4)
    """
    problem = _Problem(loss, readings)
    start = [problem.place(name) for name in known]
    rows = [problem.value([*start, c]) for c in range(len(problem.names))]
    return problem.dataset(rows)


def sequence(
    loss: xr.DataArray,
    readings: xr.DataArray,
    count: int,
    *,
    known: Sequence[str] = (),
    advance: Callable[[int], None] = lambda done: None,
) -> xr.Dataset:
    """Measurements taken together, each the one that adds most to those before it.

    Where none adds any value beyond its error, the one that resolves most of the variance between
    the choice and its closest rival.

    Parameters
    ----------
    loss, readings, known
        As of `value_of_information`, dims (chain, draw, sku) and (chain, draw, candidate) [1].
    count : int
        How many [1]; fewer if nothing is left that adds anything, and none without a doubt.
    advance : callable
        Told after each.

    Returns
    -------
    Dataset, dims (candidate,)
        As from `value_of_information`, in the order chosen; each value is that of all so far.
    """
    problem = _Problem(loss, readings)
    chosen, start = list[int](), [problem.place(name) for name in known]
    rows = list[_Value]()
    before = problem.value(start) if start else (0.0, 0.0, 0.0, 0.0)
    for _ in range(min(count, len(problem.names)) if problem.evpi > 0 else 0):
        rest = [c for c in range(len(problem.names)) if c not in (*start, *chosen)]
        found = [problem.value([*start, *chosen, c]) for c in rest]
        best = max(range(len(rest)), key=lambda i: _gain(found[i], before))
        if _gain(found[best], before) <= (0.0, LEAST):
            break
        chosen.append(rest[best])
        rows.append(found[best])
        before = found[best]
        advance(1)
    return problem.dataset(rows, chosen)


def assimilated(values: np.ndarray, reading: np.ndarray, observed: float) -> np.ndarray:
    r"""Draws moved to what they would be had a measurement read `observed`: Bayes linear.

    .. math:: v_d + \frac{\mathrm{cov}(v, r)}{\mathrm{var}(r)} (o - r_d)

    Exact where values and reading are jointly normal, as logs of times nearly are.

    Parameters
    ----------
    values : ndarray, dims (draw, value)
        Of anything [any unit].
    reading : ndarray, dims (draw,)
        What the measurement would read in each draw, its noise included [1].
    observed : float
        What it read [1].
    """
    centred = pulled_in(reading[:, None])[:, 0]
    centred = centred - centred.mean()
    variance = float(centred @ centred)
    if variance == 0:
        return values
    bulk = pulled_in(values)
    slope = centred @ (bulk - bulk.mean(axis=0)) / variance
    return np.asarray(values + (observed - reading)[:, None] * slope)


def pulled_in(values: np.ndarray) -> np.ndarray:
    """Draws with their far tails at `FARTHEST` sd, the sd that of their middle half.

    A few far draws would decide covariances alone: the discrepancy between shapes has heavy tails.

    Parameters
    ----------
    values : ndarray, dims (draw, value)
        Of anything [any unit].
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    reach = FARTHEST * (high - low) / IQR
    return np.clip(values, middle - reach, middle + reach)


_Value = tuple[float, float, float, float]  # value, its error, P(change), variance resolved


def _gain(value: _Value, before: _Value) -> tuple[float, float]:
    """What orders measurements: value that is no error, then variance resolved [1]."""
    more = value[0] - before[0]
    return (more if more > BEYOND * value[1] else 0.0, value[3] - before[3])


class _Problem:
    """Losses and readings as arrays, in two halves of the draws: each judges the other's fit."""

    def __init__(self, loss: xr.DataArray, readings: xr.DataArray) -> None:
        flat = loss.transpose(*SAMPLE, "sku").values.reshape(-1, loss.sizes["sku"]).astype(float)
        self.loss = flat[:, np.isfinite(flat).all(axis=0)]
        if not self.loss.shape[1]:
            raise WorkloadError("no SKU can be chosen, so nothing is worth measuring")
        self.names = [str(c) for c in readings["candidate"].values]
        seen = readings.transpose(*SAMPLE, "candidate").values.reshape(len(flat), -1)
        seen = pulled_in(seen)
        sd = seen.std(axis=0)
        unit = (seen - seen.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
        columns = np.stack([unit, unit**2 - 1], axis=2).reshape(len(flat), -1)
        self.columns = np.concatenate([np.ones((len(flat), 1)), columns], axis=1)
        half = np.arange(len(flat)) >= len(flat) // 2  # of chains, not of neighbouring draws
        self.folds = [np.flatnonzero(half), np.flatnonzero(~half)]
        self.gram = [self.columns[at].T @ self.columns[at] for at in self.folds]
        self.pull = [self.columns[at].T @ self.loss[at] for at in self.folds]
        self.first = int(self.loss.mean(axis=0).argmin())
        rest = np.delete(np.arange(self.loss.shape[1]), self.first)
        rival = rest[self.loss[:, rest].mean(axis=0).argmin()] if len(rest) else self.first
        self.rival = int(rival)
        self.contest = self.loss[:, self.first] - self.loss[:, self.rival]
        gains = self.loss[:, self.first] - self.loss.min(axis=1)
        self.evpi, self.evpi_mcse = float(gains.mean()), _error(gains)

    def place(self, name: str) -> int:
        """Position of a candidate [1]."""
        if name not in self.names:
            raise WorkloadError(f"{name} is no candidate measurement")
        return self.names.index(name)

    def value(self, places: Sequence[int]) -> _Value:
        """Value of some measurements together, its error, P(change), and variance resolved."""
        at = [0, *[column for p in places for column in (1 + 2 * p, 2 + 2 * p)]]
        gains, changed = np.empty(len(self.loss)), np.empty(len(self.loss), dtype=bool)
        left = np.empty(len(self.loss))
        for fitted, judged in ((0, 1), (1, 0)):
            gram = self.gram[fitted][np.ix_(at, at)]
            ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
            belief = np.linalg.solve(gram + ridge, self.pull[fitted][at])
            rows = self.folds[judged]
            believed = self.columns[rows][:, at] @ belief
            choice = believed.argmin(axis=1)
            left[rows] = self.contest[rows] - (believed[:, self.first] - believed[:, self.rival])
            gains[rows] = self.loss[rows, self.first] - self.loss[rows, choice]
            changed[rows] = choice != self.first
        spread = float(self.contest.var())
        resolved = max(0.0, 1 - float((left**2).mean()) / spread) if spread else 0.0
        return float(gains.mean()), _error(gains), float(changed.mean()), resolved

    def dataset(self, rows: Sequence[_Value], places: Sequence[int] | None = None) -> xr.Dataset:
        """Values as a Dataset, dims (candidate,)."""
        names = self.names if places is None else [self.names[p] for p in places]
        columns = np.array(rows, dtype=float).reshape(-1, 4)
        held = {
            name: ("candidate", columns[:, i])
            for i, name in enumerate(("evsi", "evsi_mcse", "p_change", "resolved"))
        }
        return xr.Dataset(
            held | {"evpi": self.evpi, "evpi_mcse": self.evpi_mcse}, coords={"candidate": names}
        )


def _error(gains: np.ndarray) -> float:
    """Monte Carlo error of a mean over draws [units of the values]."""
    return float(gains.std(ddof=1) / np.sqrt(len(gains)))
