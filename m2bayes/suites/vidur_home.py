"""On a card that others have profiled: a random forest on its table, and the model without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.database import sha256
from m2bayes.suites import _forest as forest
from m2bayes.suites._profiles import (
    LIGHT,
    PARTS,
    PROJECTION,
    compared,
    covered,
    folds,
    layers,
    log_draws,
    point,
    roofline,
    rows,
    tables,
    unfitted,
)

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("posterior", "light")  # fields of the setting
SUITE, HOME = "vidur-home", "a100"
FOLDS, TIMED = 5, 10  # rows of each operator that the model is calibrated on
FEW = (10, 100)  # rows of each operator and LLM that the lesser forests get
MODEL, FOREST = "model", "forest"
CALIBRATED = f"model, {TIMED} rows an operator"
REGIME, OTHER = "served", "benchmark"  # the profiler runs whole blocks: weights are cold


def run(setting: Setting) -> dict[str, Any]:
    """Score the model, uncalibrated and calibrated on a few rows, and forests, at home.

    Returns
    -------
    dict
        ``projections``, ``light operators`` and ``layer``, the sum of one layer's: as
        `m2bayes.suites._profiles.compared` [1], with ``coverage_90`` of the model; ``files``.

    Raises
    ------
    DataError, RecordError
        If the folder of outside data is not set or lacks the tables; if the fitted subset of
        them is not what the posterior of light kernels was fitted to.
    """
    files = tables(setting, SUITE, HOME)
    sku = str(setting.database.datasheets([HOME])["sku"].item())
    out: dict[str, Any] = {}
    parts = []
    for part in PARTS:
        table = rows(part, files, sku, quick=setting.quick)
        if part == LIGHT:
            table = unfitted(setting, SUITE, HOME, table)
        points, coverage = predicted(setting, part, table)
        parts.append((table, points))
        out[part] = compared(table, points, rivals=[FOREST], seed=setting.seed)
        for name, share in coverage.items():
            out[part][name]["coverage_90"] = share
    table, points = layers(parts)
    out["layer"] = compared(table, points, rivals=[FOREST], seed=setting.seed)
    return out | {"files": {file.parent.name: sha256(file)[:12] for file in files}}


def predicted(
    setting: Setting, part: str, table: pd.DataFrame
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Times [s] of each row by name, dims (row,), and coverage of the model's intervals [1]."""
    judged = setting.posterior if part == PROJECTION else setting.light
    draws = setting.database.draws(judged)
    setting.tell(f"predicting {part} of {HOME}")
    fold = folds(table, FOLDS, seed=setting.seed)
    own = log_draws(setting, draws, part, table, REGIME)
    updated = out_of_fold(own, table, fold, seed=setting.seed)
    points = {MODEL: point(own), CALIBRATED: point(updated)}
    coverage = {MODEL: covered(own, table), CALIBRATED: covered(updated, table)}
    if part == PROJECTION:  # light kernels know no regime
        name = f"model, {OTHER} regime"
        own = log_draws(setting, draws, part, table, OTHER)
        points[name], coverage[name] = point(own), covered(own, table)
    setting.tell(f"training forests for {part} of {HOME}")
    points[FOREST] = forest.out_of_fold(table, fold, quick=setting.quick)
    for most in () if setting.quick else FEW:
        rng = labelled_rng(setting.seed, SUITE, part, str(most))
        points[f"forest, {most} rows an operator and LLM"] = forest.out_of_fold(
            table, fold, most=most, rng=rng
        )
    points["datasheet roofline"] = roofline(setting, part, table, str(table["sku"].iloc[0]))
    return points, coverage


def out_of_fold(
    log_times: np.ndarray, table: pd.DataFrame, fold: np.ndarray, *, seed: int
) -> np.ndarray:
    """Log times [s] after `TIMED` rows of each operator from other folds, dims (draw, row).

    Parameters
    ----------
    log_times : ndarray, dims (draw, row)
        With the noise of one run [log s].
    table : DataFrame, dims (row,)
        ``op``, ``op_time`` [s].
    fold : ndarray, dims (row,)
        Fold of each row [1].
    seed : int
        Of the rows that are drawn.
    """
    out = np.empty_like(log_times)
    observed = np.log(table["op_time"].to_numpy())
    for op, at in table.groupby("op").indices.items():
        for held in np.unique(fold[at]):
            rng = labelled_rng(seed, SUITE, str(op), str(held))
            asked, rest = at[fold[at] == held], at[fold[at] != held]
            timed = rng.choice(rest, size=min(TIMED, len(rest)), replace=False)
            out[:, asked] = levelled(log_times[:, asked], log_times[:, timed], observed[timed])
    return out


def levelled(asked: np.ndarray, timed: np.ndarray, observed: np.ndarray) -> np.ndarray:
    r"""Log times after one number was learnt: how far the mean of some timed rows is off.

    .. math:: x_{sj} + g\,(\bar y - \bar x_s), \quad
        g = \mathrm{cov}_s(\bar x^{asked}_s, \bar x_s) / \mathrm{var}_s(\bar x_s)

    The Bayesian update of draws whose log times are jointly normal, of the mean of all rows asked
    for given the mean of those timed [1]_; nothing in it is chosen. A posterior that is sure of its
    level, or whose rows err each on its own, learns little.

    Parameters
    ----------
    asked, timed : ndarray, dims (draw, row)
        Log times of the rows asked for, and of those timed with the noise of one run [log s].
    observed : ndarray, dims (row,)
        Log measured times of the latter [log s].

    References
    ----------
    .. [1] Evensen (2003). *The Ensemble Kalman Filter*. https://doi.org/10.1007/s10236-003-0036-9

    Examples
    --------
    Draws that only differ by a common level learn it from one row.

    >>> draws = np.array([[0.0], [1.0], [2.0]])
    >>> levelled(draws + 5, draws, np.array([1.5])).ravel().tolist()
    [6.5, 6.5, 6.5]
    """
    level = timed.mean(axis=1)
    gain = np.cov(asked.mean(axis=1), level)[0, 1] / level.var(ddof=1)
    return np.asarray(asked + gain * (observed.mean() - level)[:, None])
