"""Scores of times that follow each other: errors with intervals over draws and over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from m2bayes._random import labelled_rng

BLOCK = 10  # neighbouring requests that err alike
RESAMPLES, MASS = 1000, 0.9


def span(values: np.ndarray) -> list[float]:
    """Ends of the equal-tailed 90 % interval of draws, dims (draw,) [unit of the values]."""
    return [float(end) for end in np.quantile(values, [(1 - MASS) / 2, (1 + MASS) / 2])]


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
        ``requests``, and nothing else if that is 0; each of `errors`; its interval ``_bootstrap``
        over blocks of neighbouring requests and, of several draws, ``_draws``; ``coverage_90`` of
        the interval of draws [1]. Intervals are equal-tailed 90 %.
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
        found[name] = float(value)
        found[f"{name}_bootstrap"] = span(np.array([one[name] for one in again]))
        if len(own) > 1:
            found[f"{name}_draws"] = span(by_draw[name])
    if len(own) > 1:
        low, high = np.quantile(own, [(1 - MASS) / 2, (1 + MASS) / 2], axis=0)
        found["coverage_90"] = float(((low <= truth) & (truth <= high)).mean())
    return found
