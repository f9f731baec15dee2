"""On a card that others have profiled: a random forest on its table, and the model without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.database import sha256
from m2bayes.measurements import checked
from m2bayes.mechanism.laws import Law
from m2bayes.predictive import law_of
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
from m2bayes.updating.conditioned import unsampled
from m2bayes.vidur import BACKEND, VERSION

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("posterior", "light")  # fields of the setting
SUITE, HOME = "vidur-home", "a100"
FOLDS, TIMED = 5, (10, 30)  # rows of each operator that the model is updated with
FEW = (10, 100)  # rows of each operator and LLM that the lesser forests get
MODEL, FOREST = "model", "forest"
REGIME, OTHER = "served", "benchmark"  # the profiler runs whole blocks: weights are cold


def run(setting: Setting) -> dict[str, Any]:
    """Score the model, as stored and updated with a few rows, and forests, at home.

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
    points, coverage = {MODEL: point(own)}, {MODEL: covered(own, table)}
    for timed in () if setting.quick else TIMED:
        name = f"model, {timed} rows an operator"
        own = out_of_fold(setting, draws, part, table, fold, timed=timed)
        points[name], coverage[name] = point(own), covered(own, table)
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
    setting: Setting,
    draws: xr.Dataset,
    part: str,
    table: pd.DataFrame,
    fold: np.ndarray,
    *,
    timed: int,
) -> np.ndarray:
    """Log times [s] after a few rows of each operator from other folds, dims (draw, row).

    The rows are read as `m2bayes.updating.conditioned.unsampled` reads any: as a benchmark's, of a
    build of their own, which is then predicted.

    Parameters
    ----------
    setting : Setting
        Of the database and the seed.
    draws : Dataset, dims (chain, draw, sku, architecture)
        Of the posterior of the part.
    part : str
        Of `m2bayes.suites._profiles.PARTS`.
    table : DataFrame, dims (row,)
        From `m2bayes.suites._profiles.rows`, ``op_time`` [s].
    fold : ndarray, dims (row,)
        Fold of each row [1].
    timed : int
        Rows of each operator.
    """
    sheet = setting.database.datasheets([str(table["sku"].iloc[0])])
    found: list[np.ndarray] = []
    for held in np.unique(fold):
        rng = labelled_rng(setting.seed, SUITE, part, str(timed), str(held))
        picked = table[fold != held].groupby("op").sample(timed, random_state=rng)
        cells = measured(law_of(draws), picked)
        setting.tell(f"updating with {len(cells)} cells of {part}, fold {held}")
        new = unsampled(draws, cells, sheet, seed=setting.seed, tell=setting.tell).draws
        asked = table[fold == held]
        found.append(log_draws(setting, new, part, asked, OTHER, backend=BACKEND))
    out = np.empty((len(found[0]), len(table)))
    for held, times in zip(np.unique(fold), found, strict=True):
        out[:, fold == held] = times
    return out


def measured(law: Law, table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the columns of a law, the median of each cell, dims (row,) [s]."""
    labels = [v for v in law.columns if v != "op_time"]
    rows = table.assign(backend=BACKEND, version=VERSION)
    medians = rows.groupby(labels)["op_time"].median().reset_index()
    return checked(medians, origin=HOME, law=law)
