"""The smooth knee between compute and memory time, against a hard maximum on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.database import labelled
from m2bayes.evaluate import by_build, median_of_builds
from m2bayes.factors import with_skus
from m2bayes.inputs import Inputs
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.mechanism.gemm import gemm_branches, gemm_terms
from m2bayes.mechanism.laws import LAWS
from m2bayes.score import absolute_percentage_error

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16_test",)
JUDGED = ("posterior",)  # fields of the setting
HARD = 60.0  # sharpness at which the smooth maximum is within 1.2 % of the hard one, everywhere
NEAR = 2.0  # ratio of the branches up to which the knee matters
MIDDLE = (64, 512)  # tokens
RESAMPLES = 4000
STAGES = (6.0, 10.0, 20.0, 35.0)  # sharpness on the way to the hard maximum
STEPS, QUICK = 20000, 20  # of L-BFGS, at most


def run(setting: Setting) -> dict[str, Any]:
    """Fit the model twice, with its knee and with a hard maximum, and score unseen cells.

    Both fits are posterior modes from the same rows. Predictions are the law times the build
    effect, without what measured neighbours say of a shape, so the laws alone are compared. The
    branches that say which cells are near the knee come from either fit in turn.

    Returns
    -------
    dict
        ``sharpness`` of the smooth fit by architecture [1]; ``log density`` of the smooth mode and
        of the hard one from both starts; and by part of the cells: ``cells``, MAPE ``smooth`` and
        ``hard`` [1], their ``difference`` with its 90 % interval and that by SKU, see `compared`.
    """
    database = setting.database
    record = database.posterior(setting.posterior)
    inputs = Inputs.recorded(database, record)
    card = database.model(record.model)
    built = inputs.build(database.builder(record.model))
    cells = runs_by_cell(checked(database.table(DATA[0]), origin=DATA[0]), skus=inputs.skus)
    observed = median_of_builds(by_build(cells)).drop_vars("sku", errors="ignore")
    points, density = both_modes(built, setting.tell, steps=QUICK if setting.quick else STEPS)
    error, near, sharpness = {}, {}, {}
    for name, point in points.items():
        draws = labelled(point, card, name=record.name, dtype=record.dtype)
        time, near[name] = predicted(draws, cells, inputs.datasheets)
        error[name] = absolute_percentage_error(time, observed).values
        knee = with_skus(draws, inputs.datasheets, seed=0)["knee"]
        sharpness[name] = by_architecture(1 + knee, inputs.datasheets)
    tokens = cells["M"].values
    parts = {
        "all": np.ones(len(tokens), dtype=bool),
        "near the knee, by the hard fit": near["hard"],
        "near the knee, by the smooth fit": near["smooth"],
        "away from the knee, by both": ~near["hard"] & ~near["smooth"],
        f"M from {MIDDLE[0]} to {MIDDLE[1]}": (tokens >= MIDDLE[0]) & (tokens <= MIDDLE[1]),
    }
    skus = cells["sku"].values.astype(str)
    return {
        "sharpness": sharpness,
        "log density": density,
        "parts": {
            name: compared(error["smooth"][at], error["hard"][at], skus[at], seed=setting.seed)
            for name, at in parts.items()
            if at.any()
        },
    }


def both_modes(
    built: Any, tell: Callable[[str], None], *, steps: int = STEPS
) -> tuple[dict[str, xr.Dataset], dict[str, float]]:
    """Posterior modes with the model's knee and with a hard one, and their log densities.

    A hard maximum has kinks on which a search can stall, so the hard mode is sought twice: from
    the same start as the smooth one, and from the smooth mode by raising the sharpness in steps.
    The better one is kept.

    Returns
    -------
    tuple of dict
        ``smooth`` and ``hard``: one draw each, dims (chain, draw, …); log densities [1].
    """
    tell("fitting the smooth knee")
    climb = climber(built, steps=steps)
    smooth, height = climb(built.initial_point())
    model, name, held = hardened(built)
    climb = climber(model, steps=steps)
    tell("fitting the hard knee")
    cold, cold_height = climb(model.initial_point())
    tell("fitting the hard knee from the smooth fit")
    warm, warm_height = smooth, -np.inf
    for sharpness in (*STAGES, HARD):
        held.set_value(np.full(held.get_value().shape, np.log(sharpness - 1)))
        warm, warm_height = climb(warm)
    hard = as_draws(model, warm if warm_height > cold_height else cold)
    dims = ("chain", "draw", *built.named_vars_to_dims.get(name, ()))
    points = {
        "smooth": as_draws(built, smooth),
        "hard": hard.assign({name: (dims, held.get_value()[None, None])}),
    }
    density = {"smooth": height, "hard": cold_height, "hard, from the smooth fit": warm_height}
    return points, density


def hardened(model: Any) -> tuple[Any, str, Any]:
    """The same model with its knee held at a sharpness of `HARD`: a hard maximum, in effect.

    The variable that the law reads is replaced, the lowest level of the pooled ``log_knee``; the
    levels above it keep their priors and no longer touch the times.

    Returns
    -------
    tuple
        The model, the name of the variable that is held, and its value as a shared variable [1].
    """
    import pymc as pm

    names = ("log_knee", "log_knee_architecture", "log_knee_mean")
    name = next(n for n in names if n in model.named_vars)
    shape = tuple(int(model.dim_lengths[d].eval()) for d in model.named_vars_to_dims.get(name, ()))
    held = pm.do(model, {name: np.full(shape, np.log(HARD - 1))})
    return held, name, held[name]


def climber(
    model: Any, *, steps: int = STEPS
) -> Callable[[dict[str, Any]], tuple[dict[str, Any], float]]:
    """Compile a search for the posterior mode: from a point to a better one and its log density.

    The search runs on the sampled scale, dims of the point's values, density [1].
    """
    from pymc.blocking import DictToArrayBijection, RaveledVars
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    limits = {"maxiter": steps, "maxfun": steps}

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        density, gradient = function(x)
        return -float(density), -np.asarray(gradient)

    def climb(point: dict[str, Any]) -> tuple[dict[str, Any], float]:
        start = DictToArrayBijection.map({k: point[k] for k in model.initial_point()})
        best = minimize(negative, start.data, jac=True, method="L-BFGS-B", options=limits)
        found = DictToArrayBijection.rmap(RaveledVars(best.x, start.point_map_info))
        return found, -float(best.fun)

    return climb


def as_draws(model: Any, point: dict[str, Any]) -> xr.Dataset:
    """A point of the sampled scale as one draw of every variable, dims (chain, draw, …)."""
    variables = model.unobserved_value_vars
    values = model.compile_fn(variables, inputs=model.value_vars)(point)
    dims = model.named_vars_to_dims
    coords = {d: list(model.coords[d]) for d in ("sku", "architecture", "backend")}
    held = {
        str(v.name): (("chain", "draw", *dims.get(v.name, ())), np.asarray(value)[None, None])
        for v, value in zip(variables, values, strict=True)
        if v.name in model.named_vars
    }
    return xr.Dataset(held, coords={"chain": [0], "draw": [0], **coords})


def predicted(
    draws: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset
) -> tuple[xr.DataArray, np.ndarray]:
    """Time [s] of each cell by the law, median over its builds, and whether it is near the knee.

    Parameters
    ----------
    draws : Dataset, dims (chain, draw, …)
        One draw, from `mode`.
    cells : Dataset, dims (cell, run)
        Measured cells, for shapes, SKUs and builds.
    sheets : Dataset, dims (sku,)
        Datasheets of the SKUs.

    Returns
    -------
    tuple of DataArray, dims (cell,), and array of bool, dims (cell,)
        Near: the branches differ by a factor of `NEAR` at most.
    """
    at = cells["sku"].drop_vars("sku")
    factors = with_skus(draws, sheets, seed=0).isel(chain=0, draw=0, drop=True)
    factors = factors.sel(sku=at).drop_vars("sku")
    sheet, shapes = sheets.sel(sku=at), cells[["M", "N", "K"]].drop_vars("sku")
    measured = by_build(cells)
    law, effect = LAWS[str(draws.attrs["law"])], draws["build_effect"].isel(chain=0, draw=0)
    columns, near = [], []
    for build in measured["build"].values:
        terms = gemm_terms(shapes, sheet, regime="benchmark", backend=str(build)).drop_vars("sku")
        own = effect.sel(backend=str(build)).sel(sku=at).drop_vars("sku")
        time = law.time(terms, factors) * np.exp(own)
        columns.append(np.where(np.isfinite(measured.sel(build=build)), time.values, np.nan))
        compute, memory = gemm_branches(terms, factors)
        near.append(abs(np.log(compute / memory)).values <= np.log(NEAR))
    of_builds = measured.copy(data=np.stack(columns, axis=1))
    return median_of_builds(of_builds).drop_vars("sku", errors="ignore"), np.any(near, axis=0)


def compared(
    smooth: np.ndarray, hard: np.ndarray, skus: np.ndarray, *, seed: int
) -> dict[str, Any]:
    """Mean errors of two predictors on the same cells, and their difference by whole SKUs [1].

    Parameters
    ----------
    smooth, hard : array, dims (cell,)
        Absolute percentage errors as shares [1].
    skus : array of str, dims (cell,)
        SKU of each cell: cells of one card share its errors, so a bootstrap draws cards.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        ``cells``, ``smooth``, ``hard``, ``difference`` (smooth less hard: negative where the
        smooth knee is better), ``low`` and ``high`` of its 90 % interval, ``by SKU``.

    Examples
    --------
    >>> found = compared(np.array([0.1, 0.1]), np.array([0.3, 0.2]), np.array(["a", "b"]), seed=0)
    >>> round(found["difference"], 12), round(found["low"], 12), round(found["high"], 12)
    (-0.15, -0.2, -0.1)
    """
    names, block = np.unique(skus, return_inverse=True)
    count = np.bincount(block)
    total = np.bincount(block, weights=smooth - hard)
    rng = labelled_rng(seed, "knee")
    drawn = rng.integers(len(names), size=(RESAMPLES, len(names)))
    low, high = np.quantile(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), [0.05, 0.95])
    return {
        "cells": len(skus),
        "smooth": float(smooth.mean()),
        "hard": float(hard.mean()),
        "difference": float((smooth - hard).mean()),
        "low": float(low),
        "high": float(high),
        "by SKU": {str(n): float(total[i] / count[i]) for i, n in enumerate(names)},
    }


def by_architecture(value: xr.DataArray, sheets: xr.Dataset) -> dict[str, float]:
    """A factor's value in one draw by architecture [1], dims (sku,) or shared by all."""
    families = sheets["architecture"].values.astype(str)
    held = np.broadcast_to(value.isel(chain=0, draw=0).values, families.shape)
    return {str(f): float(held[families == f].mean()) for f in np.unique(families)}
