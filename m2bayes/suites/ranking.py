"""Rankings of SKUs, each held out, on the projections of one layer; beside simple rules."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import median_of_builds
from m2bayes.score import rank_correlation
from m2bayes.suites import _grid

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = (_grid.DATA,)
JUDGED = ("posterior",)  # fields of the setting
SETS = {
    "source's four": ("Ampere", "Hopper", "Ada"),
    "Blackwell four": ("Blackwell",),
    "all nine": ("Ampere", "Hopper", "Ada", "Blackwell", "Blackwell-GB20x"),
}
APART, CLOSE, CLEAR = 0.05, 0.02, 0.1  # gaps of time, and the flip probability of a clear pair


def run(setting: Setting) -> dict[str, Any]:
    """Compare rankings of each set of SKUs with that of the measured medians.

    Returns
    -------
    dict
        For each set, by predictor: ``top1``, ``spearman``, ``pairs``, ``pairs_apart`` (right among
        those over 5 % apart), ``regret`` [1]; for the model also ``wrongly_clear``, the number of
        pairs closer than 2 % that it calls clear and wrong; ``one build`` against the median of
        builds is the ceiling. ``crossovers``: see `crossover`.
    """
    left = setting.left_out(setting.posterior)
    sheets, skus = left.inputs.datasheets, left.inputs.skus
    times = _grid.measured(setting, skus)
    builds = times.sum("op", skipna=False)
    truth = median_of_builds(builds)
    setting.tell("predicting")
    draws = {
        "model, each SKU held out": _grid.held_out(setting, left, times, noise=0),
        "model, SKUs measured": _grid.noisy(
            setting.database.draws(setting.posterior), sheets, times, noise=0, seed=setting.seed
        ),
    }
    steps = {name: held.sum("op") for name, held in draws.items()}
    points = {name: held.sum("op") for name, held in _grid.datasheet_times(sheets, times).items()}
    out: dict[str, Any] = {}
    for name, families in SETS.items():
        at = [s for s, a in zip(skus, sheets["architecture"].values, strict=True) if a in families]
        rows = {}
        for rival, held in steps.items():
            rows[rival] = compared(held.median(("chain", "draw")).sel(sku=at), truth.sel(sku=at))
            rows[rival]["wrongly_clear"] = wrongly_clear(held.sel(sku=at), truth.sel(sku=at))
        rows |= {k: compared(v.sel(sku=at), truth.sel(sku=at)) for k, v in points.items()}
        for build in builds["build"].values:
            one = builds.sel(build=build, drop=True).sel(sku=at)
            rows[f"one build ({build})"] = compared(one, truth.sel(sku=at))
        out[name] = rows
    return out


def compared(guess: xr.DataArray, truth: xr.DataArray) -> dict[str, float]:
    """Agreement of two rankings of SKUs, means over token counts [1]; ties are shared."""
    guess, truth = guess.transpose("sku", "tokens"), truth.transpose("sku", "tokens")
    best = guess == guess.min("sku")
    share = best / best.sum("sku")
    fastest = truth == truth.min("sku")
    right, apart = [], []
    for a, b in combinations(range(truth.sizes["sku"]), 2):
        gap = np.log(truth[a].values / truth[b].values)
        said = np.sign(np.log(guess[a].values / guess[b].values))
        agree = np.where(said == 0, 0.5, said == np.sign(gap))
        right += list(agree)
        apart += list(agree[np.abs(gap) > np.log(1 + APART)])
    clean = truth.drop_vars([c for c in truth.coords if c not in truth.dims])
    return {
        "top1": float((share * fastest).sum("sku").mean()),
        "spearman": float(rank_correlation(guess.copy(data=guess.values), clean).mean()),
        "pairs": float(np.mean(right)),
        "pairs_apart": float(np.mean(apart)),
        "regret": float(((share * truth).sum("sku") / truth.min("sku") - 1).mean()),
    }


def wrongly_clear(draws: xr.DataArray, truth: xr.DataArray) -> int:
    """Number of pairs closer than 2 % whose order is called clear, and is wrong [1]."""
    flat = draws.transpose("sku", "tokens", ...).values.reshape(*truth.shape, -1)
    order = truth.transpose("sku", "tokens").values
    wrong = 0
    for a, b in combinations(range(len(order)), 2):
        faster = (flat[a] < flat[b]).mean(axis=-1)
        clear = np.minimum(faster, 1 - faster) < CLEAR
        close = np.abs(np.log(order[a] / order[b])) < np.log(1 + CLOSE)
        wrong += int((clear & close & ((faster > 0.5) != (order[a] < order[b]))).sum())
    return wrong
