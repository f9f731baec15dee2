"""Vidur's predictor: a random forest for each operator and LLM on a card's own profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from m2bayes.errors import DataError

FEATURES = ["tokens", "tp"]
GRID = {"max_depth": [8, 32], "min_samples_split": [2, 10]}  # the corners of Vidur's own
TREES, SPLITS = 250, 3  # Vidur's least; of the cross-validation that chooses from the grid
FEWER = 50  # trees while choosing: depth and splits hardly depend on their number
QUICK = {"max_depth": [8], "min_samples_split": [2]}, 10
SCALE = 1e3  # trained on milliseconds, as the tables are
Forests = Mapping[tuple[str, str], Any]


def trained(table: pd.DataFrame, *, quick: bool = False) -> Forests:
    r"""Forests by operator and LLM, least in mean absolute percentage error over a grid.

    As Vidur's ``random_forrest`` predictor [1]_ does: features are the token count and the degree
    of tensor parallelism, the target is the median time. Its folds are consecutive rows, so it
    would choose by extrapolation; here they are random token counts, which suits the forest better.

    Parameters
    ----------
    table : DataFrame, dims (row,)
        ``op``, ``llm``, `FEATURES` [1], ``op_time`` [s].
    quick : bool
        Few trees, nothing to choose from.

    Returns
    -------
    mapping
        Fitted forests by ``(op, llm)``.

    Raises
    ------
    DataError
        If scikit-learn is not installed.

    References
    ----------
    .. [1] https://github.com/microsoft/vidur, ``vidur/execution_time_predictor``.
    """
    grid, trees = QUICK if quick else (GRID, TREES)
    return {
        (str(op), str(llm)): _trained(own, grid, trees)
        for (op, llm), own in table.groupby(["op", "llm"])
    }


def _trained(own: pd.DataFrame, grid: Mapping[str, list[int]], trees: int) -> Any:
    try:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.model_selection import GridSearchCV, GroupKFold
    except ImportError:
        raise DataError("the forest needs scikit-learn: pip install m2bayes[rivals]") from None
    counts = own["tokens"].to_numpy()
    data = own[FEATURES].to_numpy(float), own["op_time"].to_numpy() * SCALE
    best = {name: values[0] for name, values in grid.items()}
    if any(len(values) > 1 for values in grid.values()):
        search = GridSearchCV(
            RandomForestRegressor(n_estimators=min(trees, FEWER), random_state=0),
            dict(grid),
            scoring="neg_mean_absolute_percentage_error",
            cv=GroupKFold(SPLITS, shuffle=True, random_state=0),
            refit=False,
        )
        best = search.fit(*data, groups=counts).best_params_
    return RandomForestRegressor(n_estimators=trees, random_state=0, **best).fit(*data)


def forecast(forests: Forests, table: pd.DataFrame) -> np.ndarray:
    """Time [s] of each row by the forest of its operator and LLM, whatever its card, dims (row,).

    Parameters
    ----------
    forests : mapping
        From `trained`.
    table : DataFrame, dims (row,)
        ``op``, ``llm``, `FEATURES` [1].
    """
    out = np.empty(len(table))
    labels, features = table[["op", "llm"]].to_numpy(str), table[FEATURES].to_numpy(float)
    for label in np.unique(labels, axis=0):
        at = (labels == label).all(axis=1)
        out[at] = forests[str(label[0]), str(label[1])].predict(features[at]) / SCALE
    return out


def out_of_fold(
    table: pd.DataFrame,
    fold: np.ndarray,
    *,
    most: int | None = None,
    rng: np.random.Generator | None = None,
    quick: bool = False,
) -> np.ndarray:
    """Time [s] of each row by forests trained on the other folds, dims (row,).

    Parameters
    ----------
    table : DataFrame, dims (row,)
        As for `trained`.
    fold : ndarray, dims (row,)
        Fold of each row [1].
    most : int, optional
        Rows that each forest gets at most, drawn by `rng`.
    rng : Generator, optional
        Needed with `most`.
    quick : bool
        As for `trained`.
    """
    out = np.empty(len(table))
    for held in np.unique(fold):
        rest = table[fold != held]
        if most is not None:
            rest = rest.groupby(["op", "llm"]).sample(most, random_state=rng)
        out[fold == held] = forecast(trained(rest, quick=quick), table[fold == held])
    return out
