"""Simulation-based calibration: a model's own data, refitted, must give even ranks of the truth.

Parameters are drawn from the prior, data from them, and the sampler is run on the data. If prior,
likelihood and sampler agree, the truth is as likely to have one rank among independent posterior
draws as any other [1]_, [2]_. Whatever is measured is mutable data, so a model is compiled once.

References
----------
.. [1] Talts, Betancourt, Simpson, Vehtari, Gelman (2018). *Validating Bayesian inference algorithms
   with simulation-based calibration*. https://arxiv.org/abs/1804.06788
.. [2] Modrák et al. (2023). *Simulation-based calibration checking for Bayesian computation: the
   choice of test quantities shapes sensitivity*. https://doi.org/10.1214/23-BA1404
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._files import read_json, write_whole
from m2bayes.errors import RecordError
from m2bayes.posterior import chains_of, silent

if TYPE_CHECKING:
    import pymc as pm

OBSERVED = {  # variable that the model draws, and the data that hold what is measured of it
    "log_time": "log_op_time",
    "reading": "reading_log_share",
    "cap": "cap_log_clock",
}
TARGET = 0.9  # of the sampler's acceptance
EVERY = 20  # simulations after which the cache is written


@dataclass(frozen=True)
class Effort:
    """How many simulations, and how long each one's chain is.

    Parameters
    ----------
    simulations, kept : int
        Simulated data sets, and draws that the truth is ranked among [1].
    tune, thin : int
        Discarded draws, and draws for each that is kept [1].
    ess : float
        Effective draws that every parameter needs [1]; with fewer the chain is run again,
        longer by the next of `longer` [1].
    longer : tuple of int
        Factors of tuning and draws [1]; after the last one the simulation is given up.
    """

    simulations: int = 320
    kept: int = 31
    tune: int = 400
    thin: int = 32
    ess: float = 50.0
    longer: tuple[int, ...] = (1, 4, 16)


Job = tuple[dict[str, np.ndarray], dict[str, float], Effort, int]  # data, truth, effort, seed


@dataclass(frozen=True)
class Simulated:
    """Truths and the data drawn from them.

    Parameters
    ----------
    truth : Dataset, dims (simulation,)
        Every parameter without a dim, in its own unit.
    data : dict of array, dims (simulation, …)
        By the name of the model's data.
    """

    truth: xr.Dataset
    data: dict[str, np.ndarray]


def top_level(model: pm.Model) -> list[str]:
    """Names of the parameters above all labels: population means, every spread, shared slopes."""
    return [str(rv.name) for rv in model.free_RVs if rv.ndim == 0]


def simulate(
    model: pm.Model, simulations: int, *, seed: int, wrong: str = "", shift: float = 0.0
) -> Simulated:
    """Draw parameters from the prior, and data from them.

    Parameters
    ----------
    model : pymc.Model
        From a file in ``models/``, on some design.
    simulations, seed : int
        How many [1], and seed.
    wrong : str
        Parameter whose truth is drawn from another prior than the model's: the control.
    shift : float
        By how many of its prior's standard deviations that prior lies higher [1].

    Returns
    -------
    Simulated, dims (simulation,)
    """
    names, seen = top_level(model), [str(rv.name) for rv in model.observed_RVs]
    if wrong:
        prior = drawn(model, [wrong], simulations, seed=seed)
        held = prior + shift * prior.std()
        rest = [*(name for name in names if name != wrong), *seen]
        found = drawn(model, rest, simulations, seed=seed + 1, given=held).merge(held)
    else:
        found = drawn(model, [*names, *seen], simulations, seed=seed)
    found = found.isel(chain=0, drop=True).rename(draw="simulation")
    return Simulated(found[names], {OBSERVED[name]: found[name].values for name in seen})


def drawn(
    model: pm.Model, names: list[str], draws: int, *, seed: int, given: xr.Dataset | None = None
) -> xr.Dataset:
    """Draw variables of a model from its prior.

    Parameters
    ----------
    model : pymc.Model
        Whose variables.
    names : list of str
        Parameters, what is made of them, and what is observed.
    draws, seed : int
        How many [1], and seed.
    given : Dataset, dims (chain, draw), optional
        Parameters above these that are not drawn but taken from here.

    Returns
    -------
    Dataset, dims (chain, draw, …)
        With one chain.
    """
    import pymc as pm

    # the compiled sampler of a custom distribution would warn that it is not compiled
    settings = {"model": model, "random_seed": seed, "compile_kwargs": {"mode": "FAST_COMPILE"}}
    with silent("pymc"):
        if given is None:
            tree = pm.sample_prior_predictive(draws, var_names=names, **settings)
            groups = [tree[g].to_dataset() for g in ("prior", "prior_predictive") if g in tree]
        else:
            tree = pm.sample_posterior_predictive(
                given, var_names=names, progressbar=False, **settings
            )
            groups = [tree["posterior_predictive"].to_dataset()]
    return xr.merge(groups)[names].drop_attrs()


def ranks(
    compiled: Callable[[], Any],
    simulated: Simulated,
    effort: Effort,
    *,
    file: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    run: Callable[[Sequence[Job]], Iterable[dict[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """Rank each truth among the posterior draws that its data give.

    Parameters
    ----------
    compiled : callable
        Gives the model from `m2bayes.posterior.compiled_model`, if anything is left to do.
    simulated : Simulated, dims (simulation,)
        From `simulate`.
    effort : Effort
        Lengths of the chains.
    file : path, optional
        Where what is done is kept, and found again by the next run.
    tell : callable
        Told how far it is.
    run : callable, optional
        Gives `ranked` of each job in order, by other processes: nothing is compiled here.

    Returns
    -------
    list of dict
        For each simulation ``rank`` by parameter, from 0 to `Effort.kept` [1], or None and why it
        was ``discarded``; ``ess`` of the worst parameter, ``longer``, ``divergences`` [1].
    """
    total = simulated.truth.sizes["simulation"]
    done: list[dict[str, Any]] = []
    if file is not None and file.is_file():
        done = read_json(file, RecordError)["done"]
    jobs = [_job(simulated, effort, i) for i in range(len(done), total)]
    if run is None:
        ready = compiled() if jobs else None
        found: Iterable[dict[str, Any]] = (ranked(ready, job) for job in jobs)
    else:
        found = run(jobs) if jobs else ()
    for one in found:
        done.append(one)
        if file is not None and (len(done) % EVERY == 0 or len(done) == total):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"done": done}).encode())
            tell(f"{len(done)} of {total} simulations")
    return done


def _job(simulated: Simulated, effort: Effort, i: int) -> Job:
    data = {name: held[i] for name, held in simulated.data.items()}
    truth = {str(k): float(v) for k, v in simulated.truth.isel(simulation=i).data_vars.items()}
    return data, truth, effort, i


def ranked(compiled: Any, job: Job) -> dict[str, Any]:
    """One simulation: rank of every parameter [1], or why there is none, see `ranks`.

    Parameters
    ----------
    compiled : CompiledModel
        From `m2bayes.posterior.compiled_model`.
    job : tuple
        Data by name, dims (…); truth by parameter, in its own unit; effort; seed [1].
    """
    data, truth, effort, seed = job
    out: dict[str, Any] = {"rank": None, "discarded": "", "ess": 0.0, "longer": 0, "divergences": 0}
    if not all(np.isfinite(held).all() for held in data.values()):
        return out | {"discarded": "simulated data not finite"}
    fitted = compiled.with_data(**data)
    for longer in effort.longer:
        out["longer"] = longer
        try:
            draws, divergences = _sampled(fitted, list(truth), effort, longer, seed)
        except RuntimeError:
            out["discarded"] = "the sampler found no start"
            continue
        out |= {"ess": _worst_ess(draws), "divergences": divergences, "discarded": ""}
        if out["ess"] < effort.ess:
            out["discarded"] = "too few effective draws"
            continue
        step = effort.thin * longer
        thin = draws.isel(draw=slice(step - 1, None, step))
        return out | {
            "rank": {name: int((thin[name] < value).sum()) for name, value in truth.items()}
        }
    return out


def _sampled(
    fitted: Any, names: list[str], effort: Effort, longer: int, seed: int
) -> tuple[xr.Dataset, int]:
    """Draws of the parameters in `names`, dims (chain, draw), and divergences [1]."""
    tree = chains_of(
        fitted,
        draws=effort.kept * effort.thin * longer,
        tune=effort.tune * longer,
        chains=1,
        seed=seed,
        target_accept=TARGET,
    )
    return tree["posterior"].to_dataset()[names], int(tree["sample_stats"]["diverging"].sum())


def _worst_ess(draws: xr.Dataset) -> float:
    """Bulk effective draws of the worst parameter [1]; 0 of one that never moves."""
    import arviz_stats as az

    found = az.ess(draws, method="bulk")
    return float(np.nan_to_num(min(float(v) for v in found.data_vars.values())))


def key(fingerprint: list[float], effort: Effort, *more: Any) -> str:
    """Name of what is kept of a model on its design, by everything that decides the ranks."""
    held = json.dumps([fingerprint, asdict(effort), TARGET, OBSERVED, *more])
    return hashlib.sha256(held.encode()).hexdigest()[:24]
