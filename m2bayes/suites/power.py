"""The exponent of clock with power limit, against public sweeps of power limits and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.database import sha256
from m2bayes.errors import RecordError
from m2bayes.mechanism.power import MEASURED_SHARE, capped_bandwidth, capped_clock
from m2bayes.outside import numbers, outside
from m2bayes.step import CAP_SPREAD

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("clock_sustained",)
JUDGED = ("posterior",)  # fields of the setting
FILES = {
    "sweeps": ("club-3090", "power_cap_sweeps.csv"),
    "submissions": ("mlperf-v4.1", "v4.1_h200_cap_vs_throughput.csv"),
    "dgemm": ("gpu-freq-a100-v100", "GA100-dvfs-dgemm-perf.csv"),
    "dgemm power": ("gpu-freq-a100-v100", "GA100-dvfs-dgemm-dcgm.csv"),
    "stream": ("gpu-freq-a100-v100", "GA100-dvfs-stream-perf.csv"),
}
TEXT = {"gpu", "control", "load", "model_engine", "accelerator", "model", "scenario"}
COLUMNS = {
    "sweeps": ("gpu", "control", "load", "model_engine", "cap_w", "sm_mhz", "power_w", "tps"),
    "submissions": ("accelerator", "gpu_power_limit_w", "model", "scenario", "tokens_per_s"),
    "dgemm": ("dvfs", "flops"),
    "dgemm power": ("sm_app_clock", "power_usage"),
    "stream": ("dvfs", "bandwidth"),
}
ALIASES = {"RTX 3090": "rtx-3090", "RTX 4090": "rtx-4090", "RTX 5090": "rtx-5090"}
BINDING = 0.985  # of the limit: a card that draws less is not held back by it
DRAWN = 0.6  # of the largest power: the clocks whose power gives an exponent
BOOST = 1410.0  # [MHz] of the A100
SHARES = (0.7, 0.6, 0.5, 0.4)  # of boost at which the bandwidth is told
FEWEST = 4  # limits that make an exponent


def run(setting: Setting) -> dict[str, Any]:
    """Compare the posterior predictive exponent with those of cards that it never saw.

    Returns
    -------
    dict
        ``predicted``: median and 90 % interval of the exponent of a card's clock [1]; ``sweeps``:
        by card and load, see `sweep`; ``submissions``: by model and pair of limits, see
        `submission`; ``locked clocks``: see `locked`; ``files``: hashes.

    Raises
    ------
    DataError
        If the folder of outside data is not set or lacks a table.
    """
    tables, files = read()
    slope = predictive(setting)
    low, middle, high = (float(q) for q in np.quantile(slope, [0.05, 0.5, 0.95]))
    swept = tables["sweeps"]
    limits = {
        gpu: float(setting.database.datasheets([ALIASES[gpu]])["power_limit"].item())
        for gpu in sorted(set(swept["gpu"]) & set(ALIASES))
    }
    found = {
        f"{gpu}, {load}, {engine}": sweep(rows, limits[gpu], (low, high))
        for (gpu, load, engine), rows in swept[swept["control"] == "cap"].groupby(
            ["gpu", "load", "model_engine"]
        )
        if gpu in limits
    }
    return {
        "predicted": {"median": middle, "low": low, "high": high},
        "sweeps": found,
        "submissions": submissions(tables["submissions"], slope),
        "locked clocks": locked(tables, (low, high)),
        "files": files,
    }


def read() -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """Tables of outside data, checked for the columns that are read, and their hashes."""
    paths = {key: outside("power", folder) / file for key, (folder, file) in FILES.items()}
    tables = {
        key: numbers(path, COLUMNS[key], text=TEXT, remedy="fetch it from its project")
        for key, path in paths.items()
    }
    return tables, {"/".join(FILES[key]): sha256(path)[:12] for key, path in paths.items()}


def predictive(setting: Setting) -> np.ndarray:
    """Posterior predictive draws of the exponent that another sweep would show [1]."""
    draws = setting.database.draws(setting.posterior)
    if "cap_slope" not in draws:
        raise RecordError(
            f"posterior {setting.posterior} has no variable cap_slope: fit it --clock"
        )
    slope = draws["cap_slope"].values.astype(float).ravel()
    normal = labelled_rng(setting.seed, "power").standard_normal(slope.size)
    return slope * np.exp(CAP_SPREAD * normal)


def exponent(x: pd.Series, y: pd.Series) -> dict[str, float]:
    """Least-squares slope of log `y` against log `x` with its standard error [1].

    >>> w = pd.Series([100.0, 200.0, 400.0, 800.0])
    >>> round(exponent(w, 5 * w**0.25)["exponent"], 12)
    0.25
    """
    log_x = np.log(x.to_numpy(dtype=float))
    log_y = np.log(y.to_numpy(dtype=float))
    centred = log_x - log_x.mean()
    slope = float(centred @ log_y / (centred @ centred))
    rest = log_y - log_y.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (len(log_x) - 2) / (centred @ centred)))
    return {"exponent": slope, "standard_error": error}


def sweep(rows: pd.DataFrame, limit: float, interval: tuple[float, float]) -> dict[str, Any]:
    """Exponents of one sweep of power limits.

    Parameters
    ----------
    rows : DataFrame
        One load on one card, limits [W], clocks [MHz] and throughput [token/s].
    limit : float
        Datasheet limit of the card [W].
    interval : tuple of float
        Predicted exponent of the clock, 5 and 95 % [1].

    Returns
    -------
    dict
        By range, ``from 0.7`` of the card's limit and ``below`` it, for the limits that bind:
        ``limits``, and for ``clock``, where it was read, and ``throughput`` the exponent with its
        standard error and whether the interval ``covers`` it. A throughput with a smaller exponent
        than the clock's is not all compute-bound.
    """
    held = rows[rows["power_w"] >= BINDING * rows["cap_w"]]
    share = held["cap_w"] / limit
    ranges = {
        f"from {MEASURED_SHARE}": held[(share >= MEASURED_SHARE) & (share <= 1)],
        f"below {MEASURED_SHARE}": held[share < MEASURED_SHARE],
    }
    out: dict[str, Any] = {}
    for name, part in ranges.items():
        if len(part) < FEWEST:
            continue
        out[name] = {"limits": len(part)}
        for what, column in (("clock", "sm_mhz"), ("throughput", "tps")):
            if part[column].notna().all():
                out[name][what] = judged(exponent(part["cap_w"], part[column]), interval)
    return out


def judged(found: dict[str, float], interval: tuple[float, float]) -> dict[str, Any]:
    """An exponent [1] and whether the interval covers it."""
    return found | {"covers": bool(interval[0] <= found["exponent"] <= interval[1])}


def submissions(rows: pd.DataFrame, slope: np.ndarray) -> dict[str, Any]:
    """Throughput at a limit over that at the next higher one of the same accelerator family [1].

    Predicted is a bracket: from all compute-bound, where throughput follows the clock, 5 % quantile
    of the draws `slope` [1], to none, where it stays as it is.

    Returns
    -------
    dict
        By model, scenario and pair of limits: ``observed`` ratio, ``exponent`` that it is worth,
        ``low`` and ``median`` of the compute-bound prediction, and whether it is ``inside``.
    """
    out: dict[str, Any] = {}
    rows = rows[rows["tokens_per_s"].notna()].drop_duplicates(
        ["accelerator", "gpu_power_limit_w", "scenario", "tokens_per_s"]  # one run, two accuracies
    )
    family = rows["accelerator"].str.replace("-CTS", "", regex=False).rename("family")
    for (card, model, scenario), group in rows.groupby([family, "model", "scenario"]):
        levels = group.groupby("gpu_power_limit_w")["tokens_per_s"].max()
        for below, above in zip(levels.index[:-1], levels.index[1:], strict=True):
            observed = float(levels[below] / levels[above])
            low, middle = np.quantile(capped_clock(1.0, below, above, slope), [0.05, 0.5])
            out[f"{card}, {model}, {scenario}, {below:.0f} of {above:.0f} W"] = {
                "observed": observed,
                "exponent": float(np.log(observed) / np.log(below / above)),
                "low": float(low),
                "median": float(middle),
                "inside": bool(low <= observed <= 1),
            }
    return out


def locked(tables: dict[str, pd.DataFrame], interval: tuple[float, float]) -> dict[str, Any]:
    """Rate, power and bandwidth of an A100 at locked clocks.

    Returns
    -------
    dict
        ``rate``: exponent of the DGEMM rate with the clock, and ``spread``, the largest departure
        of the rate per clock from its mean; ``power``: exponent of the clock with the power that
        DGEMM draws; ``bandwidth``: share of the largest at some shares of boost, with the
        law's root mean square and largest error [1].
    """
    dgemm, drawn, stream = (tables[k] for k in ("dgemm", "dgemm power", "stream"))
    per_clock = dgemm["flops"] / dgemm["dvfs"]
    upper = drawn[drawn["power_usage"] >= DRAWN * drawn["power_usage"].max()]
    share = stream["dvfs"] / BOOST
    kept = stream["bandwidth"] / stream["bandwidth"].max()
    miss = capped_bandwidth(share.to_numpy()) / kept.to_numpy() - 1
    at = [(share - s).abs().idxmin() for s in SHARES]
    return {
        "rate": exponent(dgemm["dvfs"], dgemm["flops"])
        | {"spread": float((per_clock / per_clock.mean() - 1).abs().max())},
        "power": judged(exponent(upper["power_usage"], upper["sm_app_clock"]), interval),
        "bandwidth": {str(s): float(kept[i]) for s, i in zip(SHARES, at, strict=True)}
        | {"rms_error": float(np.sqrt(np.mean(miss**2))), "worst": float(np.abs(miss).max())},
    }
