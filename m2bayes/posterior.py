"""From a model and a data set to a posterior worth storing."""

from __future__ import annotations

import datetime
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.database import Database, Model, Posterior, digest
from m2bayes.diagnostics import check, diagnostics, fingerprint
from m2bayes.inputs import Inputs
from m2bayes.kernels import card_of
from m2bayes.mechanism.laws import LAWS
from m2bayes.step import spaced

if TYPE_CHECKING:
    import pymc as pm

PRIOR_DRAWS = 2000
NEAR = 0.05  # of the prior's centre, where chains start that are not strewn
PACKAGES = ("pymc", "pytensor", "nutpie", "arviz", "xarray", "numpy", "m2bayes")


def sample(
    model: pm.Model,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    seed: int = 0,
    target_accept: float = 0.9,
    progress: bool = False,
    jitter: bool = True,
) -> xr.DataTree:
    """Sample a model with NUTS and return its draws.

    Parameters
    ----------
    model : pymc.Model
        From a file in ``models/``.
    draws, tune, chains, seed : int
        Kept and discarded draws of each chain, chains, and seed [1]: the same numbers come out
        for the same seed, versions and machine.
    target_accept : float
        Step-size target [1].
    progress : bool
        Show a progress bar on standard error.
    jitter : bool
        Start each chain up to 1 away from the prior's centre in every direction, else all near it.

    Returns
    -------
    DataTree
        Groups ``posterior`` and ``sample_stats``, dims (chain, draw, …).
    """
    settings: dict[str, Any] = {"draws": draws, "tune": tune, "chains": chains, "seed": seed}
    compiled = compiled_model(model, jitter=jitter)
    return chains_of(compiled, target_accept=target_accept, progress=progress, **settings)


def chains_of(
    compiled: Any,
    *,
    draws: int,
    tune: int,
    chains: int,
    seed: int,
    target_accept: float,
    progress: bool = False,
) -> xr.DataTree:
    """Sample what `compiled_model` returns, with its data or others, on two cores at most.

    Parameters
    ----------
    compiled : nutpie.CompiledModel
        With the data that count.
    draws, tune, chains, seed, target_accept, progress
        See `sample` [1].

    Returns
    -------
    DataTree
        Groups ``posterior`` and ``sample_stats``, dims (chain, draw, …).
    """
    import nutpie

    return nutpie.sample(
        compiled,
        draws=draws,
        tune=tune,
        chains=chains,
        cores=min(chains, 2),
        seed=seed,
        target_accept=target_accept,
        save_warmup=False,
        progress_bar=progress,
    )


def compiled_model(model: pm.Model, *, jitter: bool) -> Any:
    """Model compiled for nutpie, with its chains' start, see `sample`."""
    import nutpie

    if jitter:
        return nutpie.compile_pymc_model(model)
    rng, start = labelled_rng(0, "start"), {}
    for name, value in model.initial_point().items():
        # not at the centre itself, where a gradient of 0 would tell nothing of the scale
        near = value + NEAR * rng.standard_normal(np.shape(value))
        bare = name.removesuffix("_log__")
        start[bare] = np.exp(near) if bare != name else near
    return nutpie.compile_pymc_model(model, initial_points=start, jitter_rvs=set())


def kept(tree: xr.DataTree, *, keep: int | None = None) -> xr.Dataset:
    """Return the variables that prediction needs, in single precision: no offsets, no data.

    With `keep`, that many evenly spaced draws of each chain [1], rounded to 12 binary digits, a
    relative error of 1e-4: half the size of a file, and far below any Monte Carlo error.
    """
    posterior = tree["posterior"].to_dataset()
    kept = [str(v) for v in posterior.data_vars if not str(v).endswith("_offset")]
    posterior = posterior[kept].astype("float32")
    used = {d for v in posterior.data_vars.values() for d in v.dims}
    posterior = posterior.drop_dims([d for d in posterior.dims if d not in used])
    for dim in posterior.dims:
        if posterior[dim].dtype == object:
            posterior[dim] = posterior[dim].astype(str)
    posterior.attrs = {}
    if keep is None:
        return posterior
    thin = spaced(posterior, keep).assign_coords(draw=np.arange(keep))
    return thin.map(_rounded, keep_attrs=True)


def _rounded(values: xr.DataArray) -> xr.DataArray:
    """Single-precision values rounded to 12 binary digits, dims kept."""
    if values.dtype != np.float32:
        return values
    # in the order of a file's: sums over draws, of residuals for one, depend on it
    bits = np.ascontiguousarray(values.values).view(np.uint32)
    rounded = (bits + np.uint32(1 << 10)) & ~np.uint32((1 << 11) - 1)
    return values.copy(data=rounded.view(np.float32))


def prior_quantiles(model: pm.Model, card: Model) -> dict[str, list[float]]:
    """5, 50 and 95 % quantile of each factor's prior, and its sd on the prior's scale [1].

    Of a factor pooled over SKUs, the prior of one SKU; log scale where the card's link is log.
    """
    import pymc as pm

    names = {}
    for factor in card.factors:
        base = f"log_{factor['name']}" if factor["link"] == "log" else factor["name"]
        options = (base, f"{base}_architecture", f"{base}_mean")
        names[factor["name"]] = next(n for n in options if n in model.named_vars)
    with model, silent("pymc"):
        tree = pm.sample_prior_predictive(PRIOR_DRAWS, var_names=[*names.values()], random_seed=0)
    prior, out = tree["prior"], {}
    for factor in card.factors:
        values = prior[names[factor["name"]]].values
        cuts = np.quantile(values, [0.05, 0.5, 0.95])
        cuts = np.exp(cuts) if factor["link"] == "log" else cuts
        out[factor["name"]] = [float(c) for c in cuts] + [float(values.std())]
    return out


@contextmanager
def silent(name: str) -> Iterator[None]:
    """Let a logger say warnings only, for as long as this lasts."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that made a fit."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def fit(
    database: Database,
    model: str,
    data: str,
    *,
    clock: str | None = None,
    shapes: str | None = None,
    dtype: str = "",
    keep: int | None = None,
    begin: Callable[[], None] = lambda: None,
    **settings: int | float | bool,
) -> tuple[Posterior, xr.Dataset]:
    """Fit a model to a data set and return the record and draws of the posterior.

    Parameters
    ----------
    database : Database
        Where model, data set and datasheets are.
    model, data : str
        Name of a model; name of a data set or path of a CSV with the same columns.
    clock : str, optional
        Data set of clock telemetry, for a model that takes it.
    shapes : str, optional
        More kernel times: with those of `data` they inform the discrepancy between shapes.
    dtype : str
        Of the measured kernels; by default the model's.
    keep : int, optional
        Draws of each chain that are stored [1], see `kept`; by default all.
    begin : callable
        Called once everything that was named is read and sound, before the long work.
    **settings
        Of `sample`: draws, tune, chains, seed [1], target_accept [1], progress.

    Returns
    -------
    tuple of Posterior and Dataset, dims (chain, draw, sku, architecture, backend)
        Ready for `m2bayes.database.store`.

    Raises
    ------
    ConvergenceError
        If the chains fail `m2bayes.diagnostics.check`.
    """
    card = database.model(model)
    dtype = dtype or str(card.domain["dtype"][0])
    inputs = Inputs.read(database, data, clock, shapes, dtype, law=LAWS[card.law])
    built = inputs.build(database.builder(model))
    begin()
    # of some hundred factors of kernels, 1 away on the log scale is no start at all
    tree = sample(built, jitter=inputs.law.variant is None, **settings)  # type: ignore[arg-type]
    name = f"{inputs.sources[0]['name']}-{card.name}"
    checks = diagnostics(tree)
    check(checks, name=name)
    draws = kept(tree, keep=keep)
    if shapes is not None:
        draws = draws.merge(inputs.residuals(draws, card))
    record = Posterior(
        name=name,
        model=card.name,
        data=inputs.sources,
        datasheets={c: digest(database.sku_card(c)[0]) for c in map(card_of, inputs.skus)},
        dtype=dtype,
        fingerprint=fingerprint(built),
        inference={"sampler": "nutpie NUTS"}
        | {k: v for k, v in settings.items() if k != "progress"}
        | ({} if keep is None else {"keep": keep}),
        checks=checks,
        prior=prior_quantiles(built, card),
        draws={},
        versions=versions(),
        created=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    return record, draws
