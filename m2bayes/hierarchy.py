"""What every model is made of: pooled factors, and the likelihood of repeated runs of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from m2bayes.mechanism.gemm import gemm_terms

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

    Raises
    ------
    KeyError
        For a SKU in `data` without a datasheet: PyMC itself would not notice.
    """

    def __init__(self, data: xr.Dataset, datasheets: xr.Dataset) -> None:
        skus = datasheets.indexes["sku"]
        families, at = np.unique(datasheets["architecture"].values, return_inverse=True)
        backends = np.unique(data["backend"].values[data["backend"].values != ""])
        self.data, self.sheet = data, datasheets.sel(sku=data["sku"])
        self.at = at  # architecture of each SKU
        self.coords = {"sku": skus.values, "architecture": families, "backend": backends}
        # PyMC would take a label that it does not know for another one: look them up here
        self.sku_at = np.array([skus.get_loc(name) for name in data["sku"].values])
        known = {name: i for i, name in enumerate(backends)} | {"": 0}
        self.build_at = np.vectorize(known.__getitem__)(data["backend"].values)

    def inputs(self) -> dict[str, np.ndarray]:
        """Everything measured or computed that enters the model, dims (cell, …), by name.

        The model holds each as mutable data, so a compiled model takes the inputs of another
        frame with the same labels: how a SKU is left out without compiling again.
        """
        terms = gemm_terms(self.data, self.sheet, regime="benchmark", backend=self.data["backend"])
        observed = self.data["op_time"].values
        present = np.isfinite(observed)
        return {
            **{
                str(name): term.broadcast_like(self.data["M"]).transpose("cell", ...).values
                for name, term in terms.data_vars.items()
            },
            "sku_at": self.sku_at,
            "build_at": self.build_at,
            "present": present.astype(float),
            "log_op_time": np.log(np.where(present, observed, 1.0)),
        }

    def terms(self) -> dict[str, Any]:
        """Constants of the law, dims (cell, run) or (cell, 1), and all inputs, as model data."""
        self.held = {name: pm.Data(name, value) for name, value in self.inputs().items()}
        return {k: v if v.ndim == 2 else v[:, None] for k, v in self.held.items()}

    def rows(self, value: Any) -> Any:
        """Gather a factor by SKU to its cells, dims (cell, 1); a shared one stays a scalar."""
        return value if value.ndim == 0 else value[self.held["sku_at"]][:, None]

    def pooled(
        self,
        name: str,
        mean: tuple[float, float],
        *,
        architecture: float | None = None,
        sku: float | None = None,
        centred: bool = False,
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
            spread itself has a log-normal prior of width `SPREAD`.
        centred : bool
            Sample a SKU's value itself, not its standardised offset: for data-rich factors.

        Returns
        -------
        TensorVariable, dims (sku,) or ()
            The factor on the log scale.
        """
        level = pm.Normal(f"{name}_mean", *mean)
        if architecture is not None:
            sd = pm.LogNormal(f"{name}_architecture_sd", np.log(architecture), SPREAD)
            offset = pm.Normal(f"{name}_architecture_offset", 0, 1, dims="architecture")
            level = level + sd * offset
            level = pm.Deterministic(f"{name}_architecture", level, dims="architecture")[self.at]
        if sku is None:
            return level
        sd = pm.LogNormal(f"{name}_sku_sd", np.log(sku), SPREAD)
        if centred:
            return pm.Normal(name, level, sd, dims="sku")
        offset = pm.Normal(f"{name}_sku_offset", 0, 1, dims="sku")
        return pm.Deterministic(name, level + sd * offset, dims="sku")

    def observe(self, time: Any) -> None:
        """Likelihood of the log time of each run, given its modelled `time` [s], dims (cell, run).

        Adds the build effect of each SKU and backend, the spread of the discrepancy between
        shapes and that of a run, and the observed ``log_time``.
        """
        spread = pm.LogNormal("build_sd", np.log(0.03), 0.5)
        offset = pm.Normal("build_offset", 0, 1, dims=("sku", "backend"))
        centred = offset - offset.mean(axis=1, keepdims=True)  # the level belongs to the factors
        effect = pm.Deterministic("build_effect", spread * centred, dims=("sku", "backend"))
        sigma_cell = pt.exp(self.pooled("log_sigma_cell", (np.log(0.06), 0.4), sku=0.3))
        sigma_run = pt.exp(self.pooled("log_sigma_run", (np.log(0.03), 0.4), sku=0.3))
        at, build = self.held["sku_at"], self.held["build_at"]
        pm.CustomDist(
            "log_time",
            pt.log(time) + effect[at[:, None], build],
            self.held["present"],
            sigma_cell[at],
            sigma_run[at],
            logp=cell_logp,
            random=cell_random,
            signature="(c,r),(c,r),(c),(c)->(c,r)",
            observed=self.held["log_op_time"],
        )


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
    shape = size if size is not None else mu.shape
    scale = 1 / np.sqrt(rng.chisquare(TAIL, size=shape[:-1]) / TAIL)
    shared = (sigma_cell * scale * rng.standard_normal(shape[:-1]))[..., None]
    own = (sigma_run * scale)[..., None] * rng.standard_normal(shape)
    return (mu + shared + own) * present
