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
        ``p_change``, the probability that another SKU is chosen afterwards [1]; ``evpi`` and
        ``evpi_mcse``, no dims, are those of knowing everything.

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

    Parameters
    ----------
    loss, readings, known
        As of `value_of_information`, dims (chain, draw, sku) and (chain, draw, candidate) [1].
    count : int
        How many [1]; fewer if nothing is left that adds anything.
    advance : callable
        Told after each.

    Returns
    -------
    Dataset, dims (candidate,)
        As from `value_of_information`, in the order chosen; each value is that of all so far.
    """
    problem = _Problem(loss, readings)
    chosen, start = list[int](), [problem.place(name) for name in known]
    rows = list[tuple[float, float, float]]()
    before = problem.value(start)[0] if start else 0.0
    for _ in range(min(count, len(problem.names))):
        rest = [c for c in range(len(problem.names)) if c not in (*start, *chosen)]
        found = [problem.value([*start, *chosen, c]) for c in rest]
        best = int(np.argmax([value for value, _, _ in found]))
        if not found[best][0] > before:
            break
        chosen.append(rest[best])
        rows.append(found[best])
        before = found[best][0]
        advance(1)
    return problem.dataset(rows, chosen)


class _Problem:
    """Losses and readings as arrays, in two halves of the draws: each judges the other's fit."""

    def __init__(self, loss: xr.DataArray, readings: xr.DataArray) -> None:
        flat = loss.transpose(*SAMPLE, "sku").values.reshape(-1, loss.sizes["sku"]).astype(float)
        self.loss = flat[:, np.isfinite(flat).all(axis=0)]
        if not self.loss.shape[1]:
            raise WorkloadError("no SKU can be chosen, so nothing is worth measuring")
        self.names = [str(c) for c in readings["candidate"].values]
        seen = readings.transpose(*SAMPLE, "candidate").values.reshape(len(flat), -1)
        sd = seen.std(axis=0)
        unit = (seen - seen.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
        unit = np.clip(unit, -FARTHEST, FARTHEST)
        columns = np.stack([unit, unit**2 - 1], axis=2).reshape(len(flat), -1)
        self.columns = np.concatenate([np.ones((len(flat), 1)), columns], axis=1)
        half = np.arange(len(flat)) >= len(flat) // 2  # of chains, not of neighbouring draws
        self.folds = [np.flatnonzero(half), np.flatnonzero(~half)]
        self.gram = [self.columns[at].T @ self.columns[at] for at in self.folds]
        self.pull = [self.columns[at].T @ self.loss[at] for at in self.folds]
        self.first = int(self.loss.mean(axis=0).argmin())
        gains = self.loss[:, self.first] - self.loss.min(axis=1)
        self.evpi, self.evpi_mcse = float(gains.mean()), _error(gains)

    def place(self, name: str) -> int:
        """Position of a candidate [1]."""
        if name not in self.names:
            raise WorkloadError(f"{name} is no candidate measurement")
        return self.names.index(name)

    def value(self, places: Sequence[int]) -> tuple[float, float, float]:
        """Value of some measurements together, its error, and the probability of a change."""
        at = [0, *[column for p in places for column in (1 + 2 * p, 2 + 2 * p)]]
        gains, changed = np.empty(len(self.loss)), np.empty(len(self.loss), dtype=bool)
        for fitted, judged in ((0, 1), (1, 0)):
            gram = self.gram[fitted][np.ix_(at, at)]
            ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
            belief = np.linalg.solve(gram + ridge, self.pull[fitted][at])
            rows = self.folds[judged]
            choice = (self.columns[rows][:, at] @ belief).argmin(axis=1)
            gains[rows] = self.loss[rows, self.first] - self.loss[rows, choice]
            changed[rows] = choice != self.first
        return float(gains.mean()), _error(gains), float(changed.mean())

    def dataset(
        self, rows: Sequence[tuple[float, float, float]], places: Sequence[int] | None = None
    ) -> xr.Dataset:
        """Values as a Dataset, dims (candidate,)."""
        names = self.names if places is None else [self.names[p] for p in places]
        columns = np.array(rows, dtype=float).reshape(-1, 3)
        held = {
            name: ("candidate", columns[:, i])
            for i, name in enumerate(("evsi", "evsi_mcse", "p_change"))
        }
        return xr.Dataset(
            held | {"evpi": self.evpi, "evpi_mcse": self.evpi_mcse}, coords={"candidate": names}
        )


def _error(gains: np.ndarray) -> float:
    """Monte Carlo error of a mean over draws [units of the values]."""
    return float(gains.std(ddof=1) / np.sqrt(len(gains)))
