"""Step times of DistServe's engine profiles, and Llama-7B in a table of its engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.calibrate import host_scalar
from m2bayes.database import sha256
from m2bayes.outside import outside
from m2bayes.suites._steps import (
    StepTimes,
    composed,
    decode_steps,
    mean_of,
    point_scores,
    predictor,
    prefill_steps,
    scored,
)
from m2bayes.suites.served import SHARE
from m2bayes.traces import decode_time, distserve_profile, huggyllama_rows
from m2bayes.workload import Step

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("assembly",)  # fields of the setting
SKU, LLMS = "A100-80GB-SXM", {"facebook/opt-13b": "opt-13b", "facebook/opt-66b": "opt-66b"}
# Name of each profile: its file, the engine, whether launches are cheap: DistServe's engine
# launches from C++, vLLM of that time from Python without CUDA graphs.
PROFILES = {
    "DistServe": ("profiler-a100-80g.distserve.json", "distserve", True),
    "vLLM": ("profiler-a100-80g.vllm.json", "vllm", False),
    "vLLM, second": ("profiler-a100-80g.vllm.1.json", "vllm", False),
}
TP = {"opt-13b": (1, 2, 4), "opt-66b": (2, 4, 8)}
# Inside what was profiled: batches on both sides of the threshold, and no more tokens than fit.
BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128), (64, 128, 256, 512, 1024)
PROMPTS, MOST_TOKENS = (64, 128, 256, 512, 1024), 60_000  # [token]
UNNAMED, TWIN = "A100-40GB-SXM", "llama-2-7b"  # presumed card; same matrices, longer context
FOLDS, SPLITS = 8, 5
TABLES = {
    "decode tp 1": ("decode", 1),
    "decode tp 2": ("decode", 2),
    "prefill tp 1": ("prefill", 1),
}


def run(setting: Setting) -> dict[str, Any]:
    """Score steps against both of the outside tables.

    Returns
    -------
    dict
        From `against_profiles` and `against_table`; ``files``: hashes.

    Raises
    ------
    DataError
        If the outside data lacks the tables.
    """
    folder = outside("distserve", "distserve")
    table = outside("distserve", "distserve-learneraf") / "read_db.csv"
    files = {name: folder / file for name, (file, _, _) in PROFILES.items()}
    coefficients = {name: distserve_profile(file, llms=LLMS) for name, file in files.items()}
    rows = huggyllama_rows(table)
    step_times, attention = predictor(setting), predictor(setting, only="attention")
    return {
        "profiles": against_profiles(step_times, coefficients, seed=setting.seed),
        "huggyllama": against_table(step_times, attention, rows, seed=setting.seed),
        "files": {file.name: sha256(file)[:12] for file in [*files.values(), table]},
    }


# --- fitted profiles -------------------------------------------------------------------------


def prefill_time(profile: pd.DataFrame, tokens: np.ndarray) -> np.ndarray:
    """Prefill time of one prompt that a profile implies [s], dims (cell,).

    Parameters
    ----------
    profile : DataFrame
        Rows of one LLM and parallelism from `m2bayes.traces.distserve_profile`.
    tokens : ndarray, dims (cell,)
        Length of the prompt [token].
    """
    row = profile.set_index("phase").loc["prefill"]
    return np.asarray(row["a"] + row["b"] * tokens + row["c"] * tokens**2)


def against_profiles(
    step_times: StepTimes, coefficients: dict[str, pd.DataFrame], *, seed: int = 0
) -> dict[str, Any]:
    """Errors against the step times that each profile implies on a grid, zero-shot and calibrated.

    A profile is a fit: the grid holds no noise, and neighbours are no independent cells.

    Parameters
    ----------
    step_times : StepTimes
        The predictor, dims (draw, workload) [s].
    coefficients : dict of DataFrame
        By profile, from `m2bayes.traces.distserve_profile`.
    seed : int
        Of splits.

    Returns
    -------
    dict
        Profile, LLM and parallelism, phase, ``zero-shot``, ``calibrated`` on a third [1].
    """
    pairs = [(b, c) for b in BATCHES for c in CONTEXTS if b * c <= MOST_TOKENS]
    batch, context = np.array(pairs).T
    steps = {
        "decode": [Step("decode", batch=b, context=c) for b, c in pairs],
        "prefill": [Step("prefill", tokens=t) for t in PROMPTS],
    }
    out: dict[str, Any] = {}
    for name, table in coefficients.items():
        _, engine, graphs = PROFILES[name]
        out[name] = {}
        for (llm, tp), own in table.groupby(["llm", "tp"]):
            if tp not in TP[str(llm)]:
                continue
            implied = {
                "decode": decode_time(own, batch, context),
                "prefill": prefill_time(own, np.array(PROMPTS)),
            }
            asked = [step for phase in steps.values() for step in phase]
            times = step_times(SKU, str(llm), asked, tp=int(tp), engine=engine, graphs=graphs)
            parts = dict(zip(steps, np.split(np.asarray(times), [len(pairs)], axis=1), strict=True))
            out[name][f"{llm} tp {tp}"] = {
                phase: {
                    "zero-shot": scored(parts[phase], implied[phase]),
                    "calibrated": _calibrated(parts[phase], implied[phase], seed=seed),
                }
                for phase in steps
            }
    return out


def _calibrated(times: np.ndarray, observed: np.ndarray, *, seed: int) -> dict[str, float]:
    """Scores on the rest after one additive time was fitted to a random third [1]."""
    found = []
    for split in range(SPLITS):
        order = labelled_rng(seed, "split", str(split)).permutation(len(observed))
        train, rest = np.split(order, [max(2, round(SHARE * len(order)))])
        fit = host_scalar(times[:, train], observed[train], prior_sd=0.05, seed=split)
        applied = fit.applied(times[:, rest], seed=split)
        point = np.median(fit.point(times[:, rest]), axis=0)
        host = {"host_time": float(np.median(fit.host))}
        found.append(scored(applied, observed[rest], point) | host)
    return dict(mean_of(found))


# --- a table of measured steps ---------------------------------------------------------------

Terms = Callable[[np.ndarray, np.ndarray, pd.DataFrame], list[np.ndarray]]


def _decode_polynomial(x: np.ndarray, part: np.ndarray, rows: pd.DataFrame) -> list[np.ndarray]:
    batch = rows["batch"].to_numpy(float)
    context = rows["length"].to_numpy(float) + (rows["output"].to_numpy(float) - 1) / 2
    return [np.ones_like(x), batch * context, batch]


def _prefill_polynomial(x: np.ndarray, part: np.ndarray, rows: pd.DataFrame) -> list[np.ndarray]:
    batch, length = rows["batch"].to_numpy(float), rows["length"].to_numpy(float)
    return [np.ones_like(x), batch * length, batch * length**2]


POLYNOMIALS: dict[str, Terms] = {"decode": _decode_polynomial, "prefill": _prefill_polynomial}
POLYNOMIAL = "polynomial"
# Of three terms: this engine's host time, and how its attention kernel and its card differ.
MODELS: dict[str, Terms] = {
    "time + attention x factor + rest x factor": lambda x, part, _: [
        np.ones_like(x),
        part,
        x - part,
    ],
    "time + model x factor": lambda x, part, _: [np.ones_like(x), x],
    "model x factor": lambda x, part, _: [x],
}
PLUS_TIME = "time + model"


def against_table(
    step_times: StepTimes,
    attention: StepTimes,
    rows: pd.DataFrame,
    *,
    engine: str = "distserve",
    seed: int = 0,
) -> dict[str, Any]:
    """Held-out errors of calibrated predictions and of DistServe's polynomial, on the same rows.

    Parameters
    ----------
    step_times, attention : StepTimes
        The predictor, and of its attention alone, dims (draw, workload) [s]; medians count.
    rows : DataFrame, one row a cell
        From `m2bayes.traces.huggyllama_rows`, ``decode`` and ``prefill`` [s].
    engine : str
        Passed on.
    seed : int
        Of folds.

    Returns
    -------
    dict
        Table, ``eight folds`` and ``batch left out``, form: scores of points, and the error above
        the polynomial's with its standard error over folds [1]; ``zero-shot``.
    """
    out: dict[str, Any] = {}
    for name, (phase, tp) in TABLES.items():
        own = rows[rows["tp"] == tp].reset_index(drop=True)
        cells = zip(own["batch"], own["length"], own["output"], strict=True)
        parts = [parts_of(phase, int(b), int(n), int(m)) for b, n, m in cells]
        times, part = (
            composed(predict, parts, UNNAMED, TWIN, engine=engine, tp=tp)
            for predict in (step_times, attention)
        )
        x, own_part, y = np.median(times, axis=0), np.median(part, axis=0), own[phase].to_numpy()
        order = labelled_rng(seed, "folds", name).permutation(len(own))
        folds = np.empty(len(own), dtype=int)
        folds[order] = np.arange(len(own)) % FOLDS
        forms = {
            form: terms(x, own_part, own)
            for form, terms in {POLYNOMIAL: POLYNOMIALS[phase], **MODELS}.items()
        }
        splits = {"eight folds": folds, "batch left out": own["batch"].to_numpy()}
        out[name] = {"cells": len(own), "zero-shot": scored(times, y)}
        for split, labels in splits.items():
            guesses = {form: held_out(terms, y, labels) for form, terms in forms.items()}
            guesses[PLUS_TIME] = held_out([np.ones_like(y)], y, labels, known=x)
            out[name][split] = {
                form: point_scores(guess, y) | _above(guess, guesses[POLYNOMIAL], y, labels)
                for form, guess in guesses.items()
            }
    return out


def _above(
    guess: np.ndarray, rival: np.ndarray, y: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Error above a rival's, mean over folds and its standard error [1]."""
    error = np.abs(guess / y - 1) - np.abs(rival / y - 1)
    by = np.array([error[labels == label].mean() for label in np.unique(labels)])
    return {"above": float(by.mean()), "above_se": float(by.std(ddof=1) / len(by) ** 0.5)}


def parts_of(phase: str, batch: int, length: int, output: int) -> dict[Step, float]:
    """Steps of a row's prefill of the whole batch, or of its mean decode step [1]."""
    if phase == "prefill":
        return prefill_steps(length, batch, most=batch * length)
    steps = decode_steps(length, length + output - 1, batch)
    return {step: weight / output for step, weight in steps.items()}


def held_out(
    terms: Sequence[np.ndarray],
    y: np.ndarray,
    labels: np.ndarray,
    *,
    known: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Predict each cell with coefficients fitted to the cells of all other labels.

    Parameters
    ----------
    terms : sequence of ndarray, dims (cell,)
        What each coefficient multiplies, in any unit.
    y : ndarray, dims (cell,)
        Measured times [s]; relative errors are squared.
    labels : ndarray, dims (cell,)
        Fold of each cell.
    known : ndarray or float, dims (cell,)
        Part of the time that no coefficient multiplies [s].

    Returns
    -------
    ndarray, dims (cell,)
        Predicted times [s].
    """
    design, target = np.stack(terms, axis=1), y - known
    size = np.abs(design).max(axis=0)
    out = np.empty_like(y)
    for label in np.unique(labels):
        held = labels == label
        scaled = design / size
        fit = scaled[~held] / y[~held, None], target[~held] / y[~held]
        out[held] = scaled[held] @ np.linalg.lstsq(*fit)[0]
    return out + known
