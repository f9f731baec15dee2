"""What every model is made of: pooled factors, and the likelihood of repeated runs of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from m2bayes.discrepancy import cell_scale
from m2bayes.errors import UnknownNameError
from m2bayes.measurements import GEMM
from m2bayes.mechanism.gemm import gemm_terms, sustained_share
from m2bayes.mechanism.laws import Law

TAIL = 4.0  # degrees of freedom of the Student-t errors
SPREAD = 0.3  # log-normal width of the prior of every spread


class Frame:
    """The labels of one fit, and the way from a SKU's factor to the rows of its cells.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Cells from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        One row a SKU that the posterior shall hold.
    clock : Dataset, dims (reading, sweep), optional
        Clock telemetry from `m2bayes.measurements.clock_readings`.
    law : Law
        Of the kernels.

    Raises
    ------
    UnknownNameError
        For a SKU in `data` without a datasheet.
    """

    def __init__(
        self,
        data: xr.Dataset,
        datasheets: xr.Dataset,
        clock: xr.Dataset | None = None,
        *,
        law: Law = GEMM,
    ) -> None:
        skus = datasheets.indexes["sku"]
        for name in np.unique(data["sku"].values):  # PyMC itself would not notice
            if name not in skus:
                raise UnknownNameError("SKU", str(name), [str(s) for s in skus])
        families, at = np.unique(datasheets["architecture"].values, return_inverse=True)
        backends = np.unique(data["backend"].values[data["backend"].values != ""])
        self.data, self.sheet, self.law = data, datasheets.sel(sku=data["sku"]), law
        # of each SKU, in units of the usual one
        self.spread = datasheets["spread"].values if "spread" in datasheets else None
        self.at = at  # architecture of each SKU
        self.coords = {"sku": skus.values, "architecture": families, "backend": backends}
        # PyMC would take a label that it does not know for another one: look them up here
        self.sku_at = np.array([skus.get_loc(name) for name in data["sku"].values])
        known = {name: i for i, name in enumerate(backends)} | {"": 0}
        self.build_at = np.vectorize(known.__getitem__)(data["backend"].values)
        self.clock = clock
        if clock is not None:
            self.clock_sheet = datasheets.sel(sku=clock["sku"])
            self.clock_at = np.array([skus.get_loc(name) for name in clock["sku"].values])

    def inputs(self) -> dict[str, np.ndarray]:
        """Everything measured or computed that enters the model, dims (cell, …), by name.

        The model holds each as mutable data, so a compiled model takes the inputs of another
        frame with the same labels: how a SKU is left out without compiling again.
        """
        backend = self.data["backend"]
        terms = self.law.terms(self.data, self.sheet, regime="benchmark", backend=backend)
        observed = self.data["op_time"].values
        present = np.isfinite(observed)
        return {
            **_arrays(terms, self.data[self.law.sizes[0]]),
            **self._clock_inputs(),
            "sku_at": self.sku_at,
            "build_at": self.build_at,
            "present": present.astype(float),
            "log_op_time": np.log(np.where(present, observed, 1.0)),
        }

    def _clock_inputs(self) -> dict[str, np.ndarray]:
        """Terms of the served regime for each clock reading, and the readings."""
        if self.clock is None:
            return {}
        terms = gemm_terms(self.clock, self.clock_sheet, regime="served")
        arrays = _arrays(terms, self.clock["M"])
        return {
            **{f"clock_{name}": array for name, array in arrays.items()},
            "reading_at": self.clock_at,
            **{str(k): v.values for k, v in self.clock.data_vars.items() if k not in GEMM.sizes},
        }

    def terms(self) -> dict[str, Any]:
        """Constants of the law, dims (cell, run) or (cell, 1), and all inputs, as model data."""
        self.held = {name: pm.Data(name, value) for name, value in self.inputs().items()}
        return {k: v if v.ndim == 2 else v[:, None] for k, v in self.held.items()}

    def rows(self, factors: dict[str, Any], at: str = "sku_at") -> dict[str, Any]:
        """Gather factors by SKU to their cells, dims (cell, 1); shared ones stay scalars."""
        where = self.held[at]
        return {k: v if v.ndim == 0 else v[where][:, None] for k, v in factors.items()}

    def pooled(
        self,
        name: str,
        mean: tuple[float, float],
        *,
        architecture: float | None = None,
        sku: float | tuple[float, float] | None = None,
        centred: tuple[str, ...] = (),
    ) -> Any:
        """One factor on the log scale [1], pooled population → architecture → SKU.

        Registers ``<name>_mean``; with `architecture` also ``<name>_architecture`` and its
        ``_sd``; with `sku` also ``<name>`` and ``<name>_sku_sd``: the names by which
        `m2bayes.predictive.with_skus` draws the factor of a SKU that nobody measured.

        Parameters
        ----------
        name : str
            ``log_`` and the factor's name.
        mean : tuple of float
            Centre and standard deviation of the population's normal prior [1].
        architecture, sku : float, optional
            Median spread between architectures, and between SKUs of one architecture [1]; the
            spread itself has a log-normal prior of width `SPREAD`, or `sku` is a pair of both.
        centred : tuple of str
            Levels, ``architecture`` or ``sku``, of which the value itself is sampled, not its
            standardised offset: for factors that the data of one label tell well. ``loose``: that
            of the units alone which differ more than usual.

        Returns
        -------
        TensorVariable, dims (sku,) or ()
            The factor on the log scale.
        """
        level = pm.Normal(f"{name}_mean", *mean)
        if architecture is not None:
            sd = pm.LogNormal(f"{name}_architecture_sd", np.log(architecture), SPREAD)
            level = self._below(f"{name}_architecture", level, sd, "architecture", centred)[self.at]
        if sku is None:
            return level
        median, width = sku if isinstance(sku, tuple) else (sku, SPREAD)
        sd = pm.LogNormal(f"{name}_sku_sd", np.log(median), width)
        sd = sd if self.spread is None else sd * self.spread
        return self._below(name, level, sd, "sku", centred)

    def _below(self, name: str, level: Any, sd: Any, dim: str, centred: tuple[str, ...]) -> Any:
        """Value of each label of one level, normal around the level above, dims (dim,)."""
        if dim in centred:
            return pm.Normal(name, level, sd, dims=dim)
        if dim == "sku" and "loose" in centred and self.spread is not None:
            own = (self.spread > 1.0).astype(float)  # 1: centred, 0: standardised
            raw = pm.Normal(f"{name}_sku_offset", own * level, sd**own, dims=dim)
            return pm.Deterministic(name, own * raw + (1 - own) * (level + sd * raw), dims=dim)
        offset = pm.Normal(f"{name.removesuffix(f'_{dim}')}_{dim}_offset", 0, 1, dims=dim)
        return pm.Deterministic(name, level + sd * offset, dims=dim)

    def observe_clock(self, factors: dict[str, Any]) -> None:
        """Likelihood of the clock telemetry given the factors by SKU, if there is any.

        A reading is normal around the modelled share of boost [1], with its own error and a
        misfit that all share; the cap sweep informs ``cap_slope``, the exponent [1] with which
        the clock of one card follows its power limit.
        """
        if self.clock is None:
            return
        terms = {k[6:]: v[:, None] for k, v in self.held.items() if k.startswith("clock_")}
        share = sustained_share(terms, self.rows(factors, at="reading_at"))[:, 0]
        misfit = pm.LogNormal("clock_misfit", np.log(0.05), 0.5)
        spread = pt.sqrt(misfit**2 + self.held["reading_error"] ** 2)
        observed = self.held["reading_log_share"]
        pm.StudentT("reading", nu=TAIL, mu=pt.log(share), sigma=spread, observed=observed)
        slope = pm.Normal("cap_slope", 1 / 3, 0.1)
        power = self.held["cap_log_power"]
        pm.Normal("cap", slope * power, misfit * power, observed=self.held["cap_log_clock"])

    def observe(
        self,
        time: Any,
        *,
        run: float | None = None,
        absolute: float | None = 0.3,
        relative: float = 0.06,
    ) -> None:
        """Likelihood of the log time of each run, given its modelled `time` [s], dims (cell, run).

        Adds the build effect of each SKU and backend where a SKU has several, the spread of the
        discrepancy between shapes and that of a run, and the observed ``log_time``. Where cells
        have one run each, its spread cannot be told from the discrepancy's: `run` is then the
        centre of its prior [1], the same for all. `absolute` is the median spread between SKUs of
        the discrepancy's fixed part; None where all share it. `relative` is the centre of the
        prior of its share of the time [1].
        """
        at = self.held["sku_at"]
        # each run its own entry, or all runs of a cell would be drawn with one noise
        effect = 0.0 * self.held["present"]
        if self.law.variant is None:
            effect = self._build_effect()[at[:, None], self.held["build_at"]]
        share = pt.exp(self.pooled("log_sigma_cell", (np.log(relative), 0.4), sku=0.3))
        fixed = pt.exp(self.pooled("log_sigma_time", (np.log(3e-7), 0.7), sku=absolute))
        if run is None:
            sigma_run = pt.exp(self.pooled("log_sigma_run", (np.log(0.03), 0.4), sku=0.3))[at]
        else:
            sigma_run = pt.exp(self.pooled("log_sigma_run", (np.log(run), 0.2))) + 0.0 * at
        sigma_cell = cell_scale(
            share[at],
            fixed + 0.0 * at if absolute is None else fixed[at],
            time.mean(axis=1),
            self.law.steady(self.held),
        )
        pm.CustomDist(
            "log_time",
            pt.log(time) + effect,
            self.held["present"],
            sigma_cell,
            sigma_run,
            logp=cell_logp,
            random=cell_random,
            signature="(c,r),(c,r),(c),(c)->(c,r)",
            observed=self.held["log_op_time"],
        )

    def _build_effect(self) -> Any:
        """Effect of each SKU's builds [1], dims (sku, backend), with mean 0 over them."""
        spread = pm.LogNormal("build_sd", np.log(0.03), 0.5)
        offset = pm.Normal("build_offset", 0, 1, dims=("sku", "backend"))
        centred = offset - offset.mean(axis=1, keepdims=True)  # the level belongs to the factors
        return pm.Deterministic("build_effect", spread * centred, dims=("sku", "backend"))


def _arrays(terms: xr.Dataset, like: xr.DataArray) -> dict[str, np.ndarray]:
    """Terms as arrays with the dims of `like` first."""
    dims = like.dims
    return {
        str(name): term.broadcast_like(like).transpose(*dims, ...).values
        for name, term in terms.data_vars.items()
    }


def cell_logp(value: Any, mu: Any, present: Any, sigma_cell: Any, sigma_run: Any) -> Any:
    r"""Log density of the runs of each cell [1], dims (cell,).

    The runs of one cell share the discrepancy of its shape and differ by run noise; both are
    scaled by one heavy-tailed factor, so a cell is multivariate Student-t with 4 degrees of freedom
    and covariance :math:`\sigma_{cell}^2 J + \sigma_{run}^2 I`, in closed form.

    Parameters
    ----------
    value, mu, present : tensor, dims (cell, run)
        Log time, its location, and 1 where a run measured the cell, else 0 [1].
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


def cell_random(  # noqa: PLR0917  PyMC passes the parameters by position
    mu: Any, present: Any, sigma_cell: Any, sigma_run: Any, rng: Any = None, size: Any = None
) -> Any:
    """Draw the runs of each cell [1], dims (cell, run); absent runs come out as 0."""
    shape = (*size, *mu.shape[-2:]) if size else mu.shape  # PyMC passes () for one draw
    scale = 1 / np.sqrt(rng.chisquare(TAIL, size=shape[:-1]) / TAIL)
    shared = (sigma_cell * scale * rng.standard_normal(shape[:-1]))[..., None]
    own = (sigma_run * scale)[..., None] * rng.standard_normal(shape)
    return (mu + shared + own) * present
