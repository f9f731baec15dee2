"""What each part of the GEMM model is worth: leave-one-cell-out along a ladder of models."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.step import spaced
from m2bayes.suites._density import log_likelihood
from m2bayes.suites._ladder import RUNGS, Ladder

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16",)
JUDGED = ("posterior", "baseline")  # fields of the setting
TIMES = ("log_time",)  # what a rung is judged by
FEW = 50  # draws of each chain when there is little time
MOST = 0.05  # share of cells that one refit may leave out together


def run(setting: Setting) -> dict[str, Any]:
    """Expected log density of a cell that was left out, for each rung.

    Returns
    -------
    dict
        By rung ``elpd``, its standard error ``se``, ``p_loo``, effective parameters [1];
        ``pareto_k_max``, ``refitted`` cells whose Pareto k was above ``good_k``, taken from one
        fit without them; ``gain`` over the rung below and its ``gain_se`` over cells;
        ``skus_better`` of all ``skus``. ``cells``: number of observations.
    """
    ladder = Ladder(setting.database, setting.posterior, tell=setting.tell)
    base = Ladder(setting.database, setting.baseline, tell=setting.tell)
    rungs = {"constant": (base, ())} | {name: (ladder, parts) for name, parts in RUNGS.items()}
    if setting.quick:
        rungs = {name: rungs[name] for name in ("constant", "full")}
    out: dict[str, Any] = {}
    below: np.ndarray | None = None
    for name, (held, hidden) in rungs.items():
        setting.tell(f"{name}: log density of each cell")
        stored = name in ("constant", "full")
        draws = setting.database.draws(held.record.name) if stored else held.fit(hidden)
        if setting.quick:
            draws = spaced(draws, FEW)
        found, each = _left_out(held, hidden, draws, refit=not setting.quick)
        if below is not None:
            found |= _gain(each - below, held)
        out[name], below = found, each
    return {"cells": len(below) if below is not None else 0, "rungs": out}


def _left_out(
    held: Ladder, hidden: tuple[str, ...], draws: xr.Dataset, *, refit: bool
) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of one rung, and log density of each cell without it [1], dims (cell,)."""
    import arviz_stats as az

    data = held.inputs(hidden)
    density = log_likelihood(held.model, draws, data, names=TIMES)
    tree = xr.DataTree.from_dict(
        {"posterior": draws[["log_sigma_cell_mean"]], "log_likelihood": density}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of large k, which are counted and refitted
        found = az.loo(tree, var_name="log_time", pointwise=True)
    each, k = np.array(found.elpd_i), np.asarray(found.pareto_k)
    bad = np.flatnonzero(k > found.good_k)
    if refit and 0 < len(bad) <= MOST * len(each):
        cells = tuple(int(i) for i in bad)
        again = log_likelihood(held.model, held.fit(hidden, cells), data, names=TIMES)[
            "log_time"
        ].values
        again = again.reshape(-1, len(each))[:, bad]
        each[bad] = np.logaddexp.reduce(again, axis=0) - np.log(len(again))
    return {
        "elpd": float(each.sum()),
        "se": float(np.sqrt(len(each) * each.var())),
        "p_loo": float(found.p),
        "good_k": float(found.good_k),
        "pareto_k_max": float(k.max()),
        "above_good_k": len(bad),
        "refitted": len(bad) if refit and len(bad) <= MOST * len(each) else 0,
    }, each


def _gain(more: np.ndarray, held: Ladder) -> dict[str, Any]:
    """Gain in log density over the rung below, from that of each cell [1]."""
    at = held.data["sku_at"]
    by_sku = np.bincount(at, more)
    return {
        "gain": float(more.sum()),
        "gain_se": float(np.sqrt(len(more) * more.var())),
        "skus_better": int((by_sku > 0).sum()),
        "skus": len(by_sku),
    }
