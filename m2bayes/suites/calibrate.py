"""What a few timed steps of an engine teach of the others: a table of steps, some of them told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.calibrate import SCALES, host_scalar
from m2bayes.database import sha256
from m2bayes.outside import outside
from m2bayes.suites._steps import StepTimes, composed, predictor, scored
from m2bayes.suites.distserve import TABLES, TWIN, UNNAMED, parts_of
from m2bayes.traces import huggyllama_rows

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("assembly",)  # fields of the setting
TIMED, TIMES = (1, 2, 4, 8, 16), 12  # steps that are told, and random choices of them
QUICK = 2  # choices when quick
SCORES = ("mape", "crps", "coverage_90", "width_90")


def run(setting: Setting) -> dict[str, Any]:
    """Score the steps that were not told.

    Returns
    -------
    dict
        Table, number of timed steps, ``uncalibrated``, ``alone`` (a misfit of each step by
        itself) and ``alike`` (of neighbours alike): means over choices of `SCORES` [1];
        ``file``: hash.

    Raises
    ------
    DataError
        If the outside data lacks the table.
    """
    table = outside("calibrate", "distserve-learneraf") / "read_db.csv"
    rows, step_times = huggyllama_rows(table), predictor(setting)
    choices, found = QUICK if setting.quick else TIMES, {}
    for name, (phase, tp) in TABLES.items():
        own = rows[rows["tp"] == tp].reset_index(drop=True)
        found[name] = _told(step_times, own, name, phase, tp, choices=choices)
    return {"tables": found, "file": {table.name: sha256(table)[:12]}}


def _told(
    step_times: StepTimes,
    rows: pd.DataFrame,
    name: str,
    phase: str,
    tp: int,
    *,
    choices: int = TIMES,
) -> dict[str, Any]:
    """Scores by number of timed steps of one table, means over so many random choices of them."""
    sizes = rows[["batch", "length", "output"]].to_numpy(dtype=int)
    parts = [parts_of(phase, *map(int, row)) for row in sizes]
    times = composed(step_times, parts, UNNAMED, TWIN, engine="distserve", tp=tp)
    observed = rows[phase].to_numpy()
    places = np.array([_mean_place(steps) for steps in parts])
    out: dict[str, Any] = {}
    for count in TIMED:
        by: dict[str, list[dict[str, float]]] = {"uncalibrated": [], "alone": [], "alike": []}
        for i in range(choices):
            rng = labelled_rng(i, "timed steps", name, str(count))
            told = np.sort(rng.choice(len(observed), count, replace=False))
            rest = np.setdiff1d(np.arange(len(observed)), told)
            fit = host_scalar(
                times[:, told],
                observed[told],
                group_spread=0.0,
                prior_sd=SCALES,
                place=places[told],
                seed=i,
            )
            guesses = {
                "uncalibrated": times[:, rest],
                "alone": fit.applied(times[:, rest], seed=i),
                "alike": fit.applied(times[:, rest], place=places[rest], seed=i),
            }
            for way, guess in guesses.items():
                by[way].append(_scores(guess, observed[rest]))
        out[str(count)] = {
            way: {k: float(np.mean([f[k] for f in found])) for k in SCORES}
            for way, found in by.items()
        }
    return out


def _mean_place(steps: dict[Any, float]) -> np.ndarray:
    """Where the steps of one row lie on average, dims (axis,) [octave]."""
    weights = np.array([*steps.values()])
    return weights @ np.array([step.place for step in steps]) / weights.sum()


def _scores(guess: np.ndarray, observed: np.ndarray) -> dict[str, float]:
    """Scores and the relative width of the 90 % interval [1]."""
    low, middle, high = np.quantile(guess, [0.05, 0.5, 0.95], axis=0)
    return scored(guess, observed) | {"width_90": float(np.mean((high - low) / middle))}
