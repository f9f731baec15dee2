"""Time per token of served 8-bit LLMs under load, others' prefills inside: as it is, calibrated.

The sample's engines are of 2025: TensorRT-LLM and SGLang overlap the host's work with the GPU's by
default, and vLLM does with asynchronous scheduling, as public benchmarks run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from m2bayes._random import labelled_rng
from m2bayes.database import Database, sha256
from m2bayes.memory import memory_left, sequences
from m2bayes.silicon import sample_file, served_runs
from m2bayes.suites._scalars import KINDS, fitted, weights
from m2bayes.suites._steps import (
    StepTimes,
    composed,
    datasheet_steps,
    decode_steps,
    mean_of,
    point_scores,
    predictor,
    scored,
)
from m2bayes.workload import Step

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("narrow_assembly",)  # fields of the setting
SKUS = {"h100_sxm": "H100-80GB-SXM", "h200_sxm": "H200-141GB-SXM", "b200_sxm": "B200-180GB-SXM"}
LLMS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
DTYPE = "fp8"
GROUP = ["sku", "engine", "llm"]
CONFIGURATION = [*GROUP, "tp", "isl", "osl"]
POINTS = 3  # contexts at which the decode steps of a run are predicted
SPLITS = 10  # random halves of the configurations
DRAWS, FEW = 100, 25  # of each chain: of the model, and of variants of which a point is scored
STRANGE = 0.2  # weight, over that of a run without misfit, below which a run is named
QUICK = {"runs": 8, "splits": 1}


def run(setting: Setting) -> dict[str, Any]:
    """Score the time per token of the runs of a public sample, by group, beside a roofline.

    Nothing is fitted to the sample but, where it says calibrated, one scalar of an engine on a
    card, on half of the configurations. Runs whose batch the KV cache limits are scored apart.

    Returns
    -------
    dict
        What `judged` returns; ``files``: hash of the sample.

    Raises
    ------
    DataError
        If the sample is not installed.
    """
    file, database = sample_file(), setting.database
    runs = served_runs(file, skus=SKUS, llms=LLMS, precision=DTYPE)
    draws, splits = DRAWS, SPLITS
    if setting.quick:
        draws, splits = FEW, QUICK["splits"]
        runs = runs.iloc[:: -(-len(runs) // QUICK["runs"])].reset_index(drop=True)

    def times(*, draws: int = FEW, prefills: bool = True, **settings: Any) -> np.ndarray:
        own = predictor(setting, assembly=setting.narrow_assembly, draws=draws, **settings)
        return token_times(own, runs, prefills=prefills, tell=setting.tell)

    model = times(draws=draws, overlap=True)
    others = {
        "16-bit cache": times(overlap=True, kv_dtype="bf16"),
        "8-bit cache": times(overlap=True, kv_dtype=DTYPE),
        "host in turn with the GPU": times(),
        "decode steps alone": times(overlap=True, prefills=False),
    }
    sheet = token_times(datasheet_steps(database, dtype=DTYPE), runs)[0]
    room = np.array([fits(database, run, seed=setting.seed) for run in runs.to_dict("records")])
    points = {name: np.median(t, axis=0) for name, t in others.items()}
    points["datasheet roofline"] = sheet
    found = judged(model, runs, room > 0.5, points, splits=splits, seed=setting.seed)
    return found | {"files": {file.name: sha256(file)[:12]}}


def token_times(
    step_times: StepTimes,
    runs: pd.DataFrame,
    *,
    prefills: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """Time per token after the first [s], dims (draw, run), in the order of the table.

    Each of ``concurrency`` requests decodes with all others, and waits for the prefill of each of
    them once in its ``osl`` tokens.
    """
    parts: dict[int, np.ndarray] = {}
    for (sku, engine, llm, tp), own in runs.groupby([*GROUP, "tp"]):
        tell(f"{llm} on {sku}, {engine}, TP {tp}")
        steps = [_token(run, prefills) for run in own.to_dict("records")]
        times = composed(step_times, steps, str(sku), str(llm), engine=str(engine), tp=int(str(tp)))
        parts |= dict(zip(own.index, times.T, strict=True))
    return np.stack([parts[i] for i in runs.index], axis=1)


def _token(run: Mapping[Any, Any], prefills: bool) -> dict[Step, float]:
    """Steps whose times times the weights [1] sum to the time of one token of a run."""
    batch, prompt, answer = run["concurrency"], run["isl"], run["osl"]
    decode = decode_steps(prompt, prompt + answer - 2, batch, points=POINTS)
    parts = {step: weight / (answer - 1) for step, weight in decode.items()}
    if prefills and batch > 1:
        parts[Step("prefill", tokens=prompt)] = (batch - 1) / answer
    return parts


def fits(database: Database, run: Mapping[Any, Any], *, seed: int) -> float:
    """Probability [1] that the KV cache holds all requests of a run at their full length."""
    llm, sheets = database.llm(run["llm"]), database.datasheets([run["sku"]])
    like = sheets.expand_dims(chain=4, draw=DRAWS).assign_coords(
        chain=np.arange(4), draw=np.arange(DRAWS)
    )
    left = memory_left(llm, sheets, like, tp=run["tp"], dtype=DTYPE, seed=seed)
    held = sequences(left, run["isl"] + run["osl"])
    return float((held >= run["concurrency"]).mean())


# --- scores ----------------------------------------------------------------------------------


def judged(
    times: np.ndarray,
    runs: pd.DataFrame,
    room: np.ndarray,
    points: Mapping[str, np.ndarray],
    *,
    splits: int = SPLITS,
    seed: int = 0,
) -> dict[str, Any]:
    """Score predictions of runs, and what one host time an engine makes of them.

    Parameters
    ----------
    times : ndarray, dims (draw, run)
        Predictive draws [s].
    runs : DataFrame, dims (run,)
        From `m2bayes.silicon.served_runs`.
    room : ndarray of bool, dims (run,)
        Whether the KV cache holds all requests.
    points : mapping of ndarray, dims (run,)
        Other predictions, without draws [s].
    splits, seed : int
        Halves of the configurations, and their seed [1].

    Returns
    -------
    dict
        ``runs``, ``within capacity`` [1]; ``zero-shot`` and ``beyond capacity``: ``overall`` and by
        group; ``others``: scores of `points`, and of the roofline times one constant;
        ``calibrated``: by scalar, means over splits, ``overall`` and by group; ``strange``: lines
        whose weight in a heavy-tailed fit of their engine is low; plain numbers [1].
    """
    at, over = np.flatnonzero(room), np.flatnonzero(~room)
    inside, observed = runs.iloc[at].reset_index(drop=True), runs["tpot"].to_numpy()
    others = {name: point_scores(guess[at], observed[at]) for name, guess in points.items()}
    sheet = points["datasheet roofline"][at]
    constant = np.median(observed[at] / sheet)
    others["datasheet roofline x best constant"] = point_scores(constant * sheet, observed[at])
    halves = {
        kind: [calibrated(times[:, at], inside, kind=kind, seed=seed + i) for i in range(splits)]
        for kind in KINDS
    }
    out = {
        "runs": len(runs),
        "within capacity": len(at),
        "zero-shot": _by_group(times[:, at], inside),
        "others": others,
        "calibrated": {kind: _over_halves(found) for kind, found in halves.items()},
        "strange": strange(times[:, at], inside),
    }
    if len(over):
        out["beyond capacity"] = _by_group(times[:, over], runs.iloc[over].reset_index(drop=True))
    return out


def _over_halves(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean scores of each group over the halves that scored it [1]."""
    labels = sorted({label for one in found for label in one} - {"overall"})
    return {
        label: mean_of([one[label] for one in found if label in one])
        for label in ("overall", *labels)
    }


def _by_group(
    times: np.ndarray, runs: pd.DataFrame, point: np.ndarray | None = None
) -> dict[str, Any]:
    """Scores overall and by SKU, engine and LLM, with the number of runs [1]."""
    observed = runs["tpot"].to_numpy()
    name = runs["sku"] + " " + runs["engine"] + " " + runs["llm"]
    parts = {"overall": np.arange(len(runs))} | {str(k): v for k, v in groups(name).items()}
    return {
        label: {"runs": len(at)}
        | scored(times[:, at], observed[at], None if point is None else point[at])
        for label, at in parts.items()
    }


def groups(labels: pd.Series) -> dict[Any, np.ndarray]:
    """Places of each label, in the order of the labels, dims (run,) [1]."""
    found = labels.reset_index(drop=True).groupby(labels.to_numpy()).indices
    return {label: np.asarray(found[label]) for label in sorted(found, key=str)}


def calibrated(
    times: np.ndarray, runs: pd.DataFrame, *, kind: str, seed: int = 0
) -> dict[str, Any]:
    """Scores on the other half after one scalar an engine was fitted to half of the configurations.

    Parameters
    ----------
    times : ndarray, dims (draw, run)
        Predictive draws [s].
    runs : DataFrame, dims (run,)
        With ``tpot`` [s].
    kind : str
        Of the scalar, one of `KINDS`.
    seed : int
        Of the halves and the misfit.

    Returns
    -------
    dict
        ``overall`` and by group; plain numbers [1].
    """
    name = runs[CONFIGURATION].astype(str).agg(" ".join, axis=1)
    engine = runs["sku"] + " " + runs["engine"]
    observed = runs["tpot"].to_numpy()
    held, point = times.copy(), np.median(times, axis=0)
    rest: list[int] = []
    for label, at in groups(engine).items():
        kinds = np.unique(name.iloc[at])
        order = labelled_rng(seed, "half", str(label)).permutation(kinds)
        chosen = name.iloc[at].isin(order[: -(-len(kinds) // 2)]).to_numpy()
        train, test = at[chosen], at[~chosen]
        if not len(test):
            continue
        held[:, test], point[test] = fitted(times, observed, train, test, kind=kind, seed=seed)
        rest += [int(i) for i in test]
    kept = np.sort(rest)
    return _by_group(held[:, kept], runs.iloc[kept].reset_index(drop=True), point[kept])


def strange(times: np.ndarray, runs: pd.DataFrame) -> dict[str, list[int]]:
    """Lines of the sample to which a heavy-tailed fit of their engine gives next to no weight."""
    engine, out = runs["sku"] + " " + runs["engine"], {}
    for label, at in groups(engine).items():
        middle = np.median(times[:, at], axis=0)
        weight = weights(middle, runs["tpot"].to_numpy()[at], factor=True)
        low = at[weight < STRANGE * weight.max()]
        if len(low):
            out[str(label)] = [int(line) for line in runs["line"].iloc[low]]
    return out
