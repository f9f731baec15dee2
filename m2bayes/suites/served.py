"""Whole generations that others measured with real engines: zero-shot, calibrated, and rivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.calibrate import Calibration, host_scalar
from m2bayes.database import Database, sha256
from m2bayes.outside import outside
from m2bayes.suites._steps import (
    RIVALS,
    StepTimes,
    composed,
    datasheet_steps,
    generation_steps,
    mean_of,
    point_scores,
    predictor,
    scored,
)
from m2bayes.traces import generation_runs, overflow

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("assembly",)  # fields of the setting
HARDWARE = {"Nvidia A100 GPU": "A100-40GB-SXM", "Nvidia H100 GPU": "H100-80GB-SXM"}
LLMS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
}
# Twice as slow as the like-shaped LLM of the same cell, growing with context: no step model's fault
ANOMALOUS = {"sku": "H100-80GB-SXM", "engine": "vllm", "llm": "mistral-7b", "batch": (32, 64)}
SPLITS, SHARE = 20, 1 / 3  # random calibration sets, and their share of the cells
CELL = ["sku", "engine", "llm", "length", "batch"]


def run(setting: Setting) -> dict[str, Any]:
    """Score the whole-step predictor on whole generations, beside rivals on the same rows.

    Returns
    -------
    dict
        What `judged` returns; ``files``: hashes.

    Raises
    ------
    DataError
        If the folder of outside data is not set or lacks the table.
    """
    file = outside("served", "llm-inference-bench") / "All_results.csv"
    cells = generations(setting.database, file)
    return judged(
        predictor(setting), datasheet_steps(setting.database), cells, seed=setting.seed
    ) | {"files": {file.name: sha256(file)[:12]}}


def generations(database: Database, file: Path) -> pd.DataFrame:
    """Cells with their mean time over repeated runs [s], ``overflow`` and ``anomalous``."""
    runs = generation_runs(file, skus=HARDWARE, llms=LLMS)
    cells = runs.groupby(CELL)["time"].mean().reset_index()
    sheets = database.datasheets(sorted(cells["sku"].unique()))
    memory = {str(s): float(sheets["memory"].sel(sku=s)) for s in sheets["sku"].values}
    cells["overflow"] = overflow(cells, {n: database.llm(n) for n in LLMS.values()}, memory)
    cells["anomalous"] = cells["batch"].isin(ANOMALOUS["batch"])
    for name in ("sku", "engine", "llm"):
        cells["anomalous"] &= cells[name] == ANOMALOUS[name]
    return cells


def generation_times(step_times: StepTimes, cells: pd.DataFrame) -> np.ndarray:
    """Times of whole generations [s], dims (draw, cell), in the order of the table."""
    parts: dict[int, np.ndarray] = {}
    for (sku, engine, llm), own in cells.reset_index(drop=True).groupby(["sku", "engine", "llm"]):
        steps = [
            generation_steps(int(length), int(batch))
            for length, batch in zip(own["length"], own["batch"], strict=True)
        ]
        times = composed(step_times, steps, str(sku), str(llm), engine=str(engine))
        parts |= dict(zip(own.index, times.T, strict=True))
    return np.stack([parts[i] for i in range(len(cells))], axis=1)


# --- scores ----------------------------------------------------------------------------------


def judged(
    step_times: StepTimes, datasheet: StepTimes, cells: pd.DataFrame, *, seed: int = 0
) -> dict[str, Any]:
    """Score a predictor and its rivals with and without the anomalous cells, overflow apart.

    Parameters
    ----------
    step_times, datasheet : StepTimes
        The predictor, dims (draw, workload) [s], and the datasheet roofline.
    cells : DataFrame, one row a cell
        From `generations`, ``time`` [s].
    seed : int
        Of splits and misfits.

    Returns
    -------
    dict
        ``without the pair`` and ``all``: ``cells``, ``zero-shot``, ``calibrated``, ``one LLM``;
        ``overflow``: ``zero-shot``, and ``calibrated`` on all that fits; plain numbers [1].
    """
    times, sheet = generation_times(step_times, cells), generation_times(datasheet, cells)
    fits = ~cells["overflow"].to_numpy()
    out: dict[str, Any] = {}
    for name, kept in {
        "without the pair": fits & ~cells["anomalous"].to_numpy(),
        "all": fits,
    }.items():
        at = np.flatnonzero(kept)
        own = cells.iloc[at].reset_index(drop=True)
        out[name] = {
            "cells": len(own),
            "zero-shot": zero_shot(times[:, at], own),
            "datasheet roofline": zero_shot(sheet[:, at], own),
            "calibrated": calibrated(times[:, at], sheet[0, at], own, seed=seed),
            "one LLM": across_llms(times[:, at], sheet[0, at], own, seed=seed),
        }
    over = np.flatnonzero(~fits)
    if len(over):
        applied = times.copy()
        for _, at in engines(cells):
            train, rest = at[fits[at]], at[~fits[at]]
            if len(rest):
                applied[:, rest] = fitted(times, cells, train, seed=seed).times(times, cells, rest)
        out["overflow"] = {
            "cells": len(over),
            "zero-shot": zero_shot(times[:, over], cells.iloc[over]),
            "calibrated": zero_shot(applied[:, over], cells.iloc[over]),
        }
    return out


def zero_shot(times: np.ndarray, cells: pd.DataFrame) -> dict[str, Any]:
    """Scores of draws [1], dims (draw, cell), overall and by batch, length, LLM and engine."""
    observed = cells["time"].to_numpy()
    engine = cells["sku"] + " " + cells["engine"]
    by = {"batch": cells["batch"], "length": cells["length"], "llm": cells["llm"], "engine": engine}
    by["engine and batch"] = engine + " " + cells["batch"].astype(str)
    by["engine and length"] = engine + " " + cells["length"].astype(str)
    out: dict[str, Any] = {"overall": scored(times, observed)}
    for name, labels in by.items():
        out[f"by {name}"] = {
            str(label): scored(times[:, at], observed[at], brief=True)
            for label, at in labels.groupby(labels).indices.items()
        }
    return out


def calibrated(
    times: np.ndarray, sheet: np.ndarray, cells: pd.DataFrame, *, seed: int = 0
) -> dict[str, Any]:
    """Scores on the rest after one host time a step was fitted to a random third of each engine.

    Rivals are fitted to the same third: the datasheet roofline as it is, times one factor, plus
    one time a step.

    Parameters
    ----------
    times : ndarray, dims (draw, cell)
        Predictive draws [s].
    sheet : ndarray, dims (cell,)
        Datasheet roofline [s].
    cells : DataFrame, one row a cell
        With the measured ``time`` [s].
    seed : int
        Of splits and misfits.

    Returns
    -------
    dict
        By predictor ``overall``, means over splits; by engine too for the model; plain numbers.
    """
    splits = []
    for split in range(SPLITS):
        chosen = {}
        for name, at in engines(cells):
            order = labelled_rng(seed, "split", str(split), name).permutation(at)
            train = round(SHARE * len(at))
            chosen[name] = (order[:train], order[train:])
        splits.append(_split(times, sheet, cells, chosen, seed=seed + split))
    return mean_of(splits)


def across_llms(
    times: np.ndarray, sheet: np.ndarray, cells: pd.DataFrame, *, seed: int = 0
) -> dict[str, Any]:
    """Scores on the other LLMs after a fit to one, by that one and in the mean [1].

    Parameters
    ----------
    times, sheet : ndarray, dims (draw, cell) and (cell,)
        Predictive draws and datasheet roofline [s].
    cells : DataFrame, one row a cell
        With the measured ``time`` [s].
    seed : int
        Of misfits.
    """
    by_llm = {}
    for llm in sorted(cells["llm"].unique()):
        own = cells["llm"].to_numpy() == llm
        chosen = {name: (at[own[at]], at[~own[at]]) for name, at in engines(cells)}
        by_llm[str(llm)] = _split(times, sheet, cells, chosen, seed=seed)
    return by_llm | {"mean": mean_of(list(by_llm.values()))}


@dataclass(frozen=True)
class Fitted:
    """A calibration of one engine, per decode step, and what is drawn with it."""

    calibration: Calibration
    seed: int

    def times(self, times: np.ndarray, cells: pd.DataFrame, at: np.ndarray) -> np.ndarray:
        """Predictive draws of generations with misfit [s], dims (draw, cell)."""
        steps = cells["length"].to_numpy()[at]
        labels = list(cells["llm"].to_numpy()[at])
        return self.calibration.applied(times[:, at] / steps, group=labels, seed=self.seed) * steps

    def point(self, times: np.ndarray, cells: pd.DataFrame, at: np.ndarray) -> np.ndarray:
        """Median over draws without misfit [s], dims (cell,)."""
        steps = cells["length"].to_numpy()[at]
        return np.median(self.calibration.point(times[:, at] / steps), axis=0) * steps


def fitted(times: np.ndarray, cells: pd.DataFrame, at: np.ndarray, *, seed: int = 0) -> Fitted:
    """Fit one host time a step to some generations of one engine, dims (draw, cell) [s]."""
    steps = cells["length"].to_numpy()[at]
    return Fitted(
        host_scalar(
            times[:, at] / steps,
            cells["time"].to_numpy()[at] / steps,
            group=list(cells["llm"].to_numpy()[at]),
            seed=seed,
        ),
        seed,
    )


def engines(cells: pd.DataFrame) -> list[tuple[str, np.ndarray]]:
    """Name of each SKU and engine, and the places of its cells, dims (cell,) [1]."""
    name = cells["sku"] + " " + cells["engine"]
    return [(str(n), np.asarray(at)) for n, at in name.groupby(name).indices.items()]


Splits = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _split(
    times: np.ndarray, sheet: np.ndarray, cells: pd.DataFrame, chosen: Splits, *, seed: int
) -> dict[str, Any]:
    """Scores of everyone on the second part of each engine's cells, fitted to the first."""
    observed, steps = cells["time"].to_numpy(), cells["length"].to_numpy()
    middle = np.median(times, axis=0)
    applied, point = times.copy(), middle.copy()
    rivals = {name: middle.copy() for name in RIVALS}
    hosts = {}
    for name, (train, rest) in chosen.items():
        found = fitted(times, cells, train, seed=seed)
        hosts[name] = found.calibration
        applied[:, rest] = found.times(times, cells, rest)
        point[rest] = found.point(times, cells, rest)
        for rival, (own, fit) in RIVALS.items():
            x = sheet if own == "sheet" else middle
            rivals[rival][rest] = fit(x, observed, steps, train)[rest]
    rest = np.concatenate([rest for _, rest in chosen.values()])
    model = {"overall": scored(applied[:, rest], observed[rest], point[rest])}
    for name, (_, at) in chosen.items():
        model[name] = scored(applied[:, at], observed[at], point[at], brief=True)
        model[name] |= {
            "host_time": float(np.median(hosts[name].host)),
            "host_time_sd": float(np.std(hosts[name].host)),
            "spread": float(np.median(hosts[name].spread)),
            "group_spread": float(np.median(hosts[name].group_spread)),
        }
    out: dict[str, Any] = {"model": model}
    for rival, guess in rivals.items():
        out[rival] = {
            "overall": point_scores(guess[rest], observed[rest]),
            **{name: point_scores(guess[at], observed[at]) for name, (_, at) in chosen.items()},
        }
    return out
