"""Scores of times that follow each other: errors with intervals over draws and over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from m2bayes._random import labelled_rng

BLOCK = 10  # neighbouring requests that err alike
RESAMPLES, MASS = 1000, 0.9


def interval(values: np.ndarray) -> dict[str, float]:
    """Median and equal-tailed 90 % interval of draws or requests, dims (draw,)."""
    low, median, high = np.quantile(values, [(1 - MASS) / 2, 0.5, (1 + MASS) / 2])
    return {"median": float(median), "low": float(low), "high": float(high)}


def errors(guess: np.ndarray, observed: np.ndarray) -> dict[str, np.ndarray]:
    """``mae`` [s], ``median_ape`` and ``mape`` [1], dims as of `guess` but the last, request."""
    off = np.abs(guess - observed)
    return {
        "mae": off.mean(-1),
        "median_ape": np.median(off / observed, axis=-1),
        "mape": (off / observed).mean(-1),
    }


def scored(guess: np.ndarray, observed: np.ndarray, at: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Errors of the median over draws, with intervals, and coverage.

    Parameters
    ----------
    guess : ndarray, dims (draw, request)
        Predicted times [s].
    observed : ndarray, dims (request,)
        Measured times [s].
    at : ndarray of bool, dims (request,)
        Requests that are scored.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        ``requests``, and nothing else if that is 0; for each of `errors` its ``value``, the
        ``bootstrap`` interval over blocks of neighbouring requests and, of several draws, the
        interval over ``draws``; ``coverage`` of the interval of draws, 90 % [1].
    """
    own, truth = guess[:, at], observed[at]
    if not len(truth):
        return {"requests": 0}
    point = np.median(own, axis=0)
    rng = labelled_rng(seed, "bootstrap")
    starts = np.arange(0, len(truth), BLOCK)
    drawn = rng.choice(starts, size=(RESAMPLES, len(starts)))
    rows = [
        np.concatenate([np.arange(s, min(s + BLOCK, len(truth))) for s in row]) for row in drawn
    ]
    again = [errors(point[row], truth[row]) for row in rows]
    by_draw = errors(own, truth)
    found: dict[str, Any] = {"requests": len(truth)}
    for name, value in errors(point, truth).items():
        found[name] = {"value": float(value)}
        found[name]["bootstrap"] = interval(np.array([one[name] for one in again]))
        if len(own) > 1:
            found[name]["draws"] = interval(by_draw[name])
    if len(own) > 1:
        low, high = np.quantile(own, [(1 - MASS) / 2, (1 + MASS) / 2], axis=0)
        found["coverage"] = float(((low <= truth) & (truth <= high)).mean())
    return found
