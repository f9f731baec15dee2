"""Is a flip probability worth its name? Pairs said to flip with probability p must, that often."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import median_of_builds
from m2bayes.score import reliability
from m2bayes.suites import _grid

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = (_grid.DATA,)
JUDGED = ("posterior",)  # fields of the setting
OPEN = (0.05, 0.95)  # probabilities that leave something open
CASES = 200  # cases in a bin, at least
CLOSE = 0.10  # true gap under which a coin is hard to beat
SIMULATED = 500  # forecasters simulated for the band
BINS = 10  # of probability, in a reliability curve


def run(setting: Setting) -> dict[str, Any]:
    """Judge P(a is measured faster than b) over pairs of SKUs, kernels and whole layers.

    Each SKU is held out of everything, or measured on other shapes. The event is the order of the
    measured medians over builds, so the draws carry the noise of a run of each build.

    Returns
    -------
    dict
        For each predictor ``brier``, ``brier_constant`` (the same medians with one constant flip
        rate), ``calibration_error`` and its 95 % ``band`` for a calibrated forecaster,
        ``worst_bin``, ``brier_close`` on true gaps under 10 % (a coin has 0.25), ``cases``; outside
        0.05 to 0.95, how often the sure side was said to be wrong, and was found to be;
        ``best``: the same of p_best; ``reliability``: said and found in bins of probability [1].
    """
    left = setting.left_out(setting.posterior)
    sheets, skus = left.inputs.datasheets, left.inputs.skus
    times = _grid.measured(setting, skus)
    truth = _with_layer(median_of_builds(times))
    stored = setting.database.draws(setting.posterior)
    blind = _without_discrepancy(stored)
    setting.tell("predicting")
    draws = {
        "each SKU held out": _grid.held_out(setting, left, times, noise=1),
        "each SKU held out, no discrepancy": _grid.held_out(
            setting, left, times, noise=1, change=_without_discrepancy
        ),
        "SKUs measured": _grid.noisy(stored, sheets, times, noise=1, seed=setting.seed),
        "SKUs measured, no discrepancy": _grid.noisy(
            blind, sheets, times, noise=1, seed=setting.seed
        ),
    }
    out: dict[str, Any] = {}
    for name, held in draws.items():
        setting.tell(f"judging {name}")
        out[name] = judged(_with_layer(held), truth, seed=setting.seed)
        out[f"{name}: best of nine"] = judged_best(_with_layer(held), truth)
        out[f"{name}: reliability"] = said_and_found(_with_layer(held), truth, seed=setting.seed)
    for name, rule in _grid.datasheet_times(sheets, times).items():
        out[name] = {"brier": rule_brier(_with_layer(rule), truth, seed=setting.seed)}
    return out


def _with_layer(times: xr.DataArray) -> xr.DataArray:
    """Times [s] of every operator and of their sum, dims (..., sku, case)."""
    layer = times.sum("op", skipna=False).expand_dims(op=["layer"])
    both = xr.concat([times, layer], dim="op", coords="minimal")
    return both.stack(case=("tokens", "op")).transpose(..., "sku", "case")


def _without_discrepancy(posterior: xr.Dataset) -> xr.Dataset:
    """Posterior whose shapes differ by nothing but run noise and builds."""
    names = [v for v in posterior.data_vars if str(v).startswith("residual")]
    blind = posterior.drop_vars(names)
    scales = {
        str(v): blind[v] - 20.0
        for v in blind.data_vars
        if str(v)
        in ("log_sigma_cell", "log_sigma_cell_mean", "log_sigma_time", "log_sigma_time_mean")
    }
    return blind.assign(scales).assign_attrs(posterior.attrs)


def _pairs(skus: int, cases: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both sides of every pair, in random orientation by case."""
    rng = np.random.default_rng(seed)
    out = []
    for a, b in combinations(range(skus), 2):
        turned = rng.random(cases) < 0.5
        out.append((np.where(turned, b, a), np.where(turned, a, b)))
    return out


def _faster(values: np.ndarray, seed: int) -> np.ndarray:
    """Whether the first of each pair is faster, dims (..., pair × case) of (..., sku, case)."""
    at = np.arange(values.shape[-1])
    sides = _pairs(values.shape[-2], values.shape[-1], seed)
    return np.concatenate([values[..., a, at] < values[..., b, at] for a, b in sides], axis=-1)


def judged(draws: xr.DataArray, truth: xr.DataArray, *, seed: int) -> dict[str, Any]:
    """Brier score and calibration of P(a faster than b) over all pairs and cases [1]."""
    flat = draws.values.reshape(-1, *draws.shape[-2:])
    p, event = _faster(flat, seed).mean(axis=0), _faster(truth.values, seed)
    medians = _faster(np.median(flat, axis=0), seed)
    flip = float((medians != event).mean())
    constant = np.where(medians, 1 - flip, flip)
    undecided = (p > OPEN[0]) & (p < OPEN[1])
    error, worst = calibration(p[undecided], event[undecided])
    rng = np.random.default_rng(seed)
    played = rng.choice(len(flat), size=min(SIMULATED, len(flat)), replace=False)
    simulated = [calibration(p[undecided], _faster(flat[i], seed)[undecided])[0] for i in played]
    gap = np.abs(_gaps(truth.values, seed))
    close = gap < np.log(1 + CLOSE)
    sure = ~undecided
    return {
        "cases": int(p.size),
        "undecided": int(undecided.sum()),
        "brier": float(((p - event) ** 2).mean()),
        "brier_constant": float(((constant - event) ** 2).mean()),
        "brier_close": float(((p - event) ** 2)[close].mean()) if close.any() else None,
        "calibration_error": error,
        "band": float(np.quantile(simulated, 0.95)),
        "worst_bin": worst,
        "sure_said_wrong": float(np.minimum(p, 1 - p)[sure].mean()),
        "sure_found_wrong": float(((p > 0.5) != event)[sure].mean()),
    }


def said_and_found(
    draws: xr.DataArray, truth: xr.DataArray, *, seed: int
) -> dict[str, dict[str, float]]:
    """P(a faster than b) against its frequency in bins of probability, over pairs and cases [1].

    Parameters
    ----------
    draws, truth : DataArray, dims (..., sku, case)
        Predicted and measured times [s].
    seed : int
        Of the orientation of the pairs.
    """
    flat = draws.values.reshape(-1, *draws.shape[-2:])
    said = xr.DataArray(_faster(flat, seed).mean(axis=0), dims="pair")
    found = xr.DataArray(_faster(truth.values, seed), dims="pair")
    table = reliability(said, found, bins=BINS)
    out = {}
    for i in np.flatnonzero(table["cases"].values):
        row = table.isel(bin=i)
        out[f"{float(row['lower']):.1f} to {float(row['upper']):.1f}"] = {
            "said": float(row["mean_probability"]),
            "found": float(row["frequency"]),
            "cases": int(row["cases"]),
        }
    return out


def _gaps(values: np.ndarray, seed: int) -> np.ndarray:
    at = np.arange(values.shape[-1])
    sides = _pairs(values.shape[-2], values.shape[-1], seed)
    return np.concatenate([np.log(values[a, at] / values[b, at]) for a, b in sides])


def calibration(p: np.ndarray, event: np.ndarray) -> tuple[float, float]:
    """Mean and largest gap between probability and frequency, over bins of equal size [1]."""
    if len(p) < CASES:
        return float(abs(p.mean() - event.mean())) if len(p) else 0.0, 0.0
    bins = np.array_split(np.argsort(p, kind="stable"), max(len(p) // CASES, 1))
    gaps = np.array([abs(p[i].mean() - event[i].mean()) for i in bins])
    weight = np.array([len(i) for i in bins]) / len(p)
    return float((gaps * weight).sum()), float(gaps.max())


def judged_best(draws: xr.DataArray, truth: xr.DataArray) -> dict[str, Any]:
    """Brier score of p_best over SKUs and cases, against 1 for the best median [1]."""
    flat = draws.values.reshape(-1, *draws.shape[-2:])
    p = (flat == flat.min(axis=1, keepdims=True)).mean(axis=0)
    event = truth.values == truth.values.min(axis=0)
    median = np.median(flat, axis=0)
    sure = median == median.min(axis=0)
    error, worst = calibration(p.ravel(), event.ravel())
    return {
        "cases": int(p.size),
        "brier": float(((p - event) ** 2).mean()),
        "brier_constant": float(((sure - event.astype(float)) ** 2).mean()),
        "calibration_error": error,
        "worst_bin": worst,
    }


def rule_brier(rule: xr.DataArray, truth: xr.DataArray, *, seed: int) -> float:
    """Brier score of a rule that ranks, with its own rate of errors as probability [1]."""
    first = _faster(rule.values, seed)
    tie = np.isclose(_gaps(rule.values, seed), 0, atol=1e-12)
    event = _faster(truth.values, seed)
    wrong = float((first != event)[~tie].mean())
    p = np.where(tie, 0.5, np.where(first, 1 - wrong, wrong))
    return float(((p - event) ** 2).mean())
