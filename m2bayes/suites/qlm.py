"""Waiting times of real engines: QLM's estimator, and the scheduler simulated with our steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.database import sha256
from m2bayes.outside import outside
from m2bayes.question import Question, thinned
from m2bayes.residency import kv_bytes_per_token, weight_bytes
from m2bayes.serving.simulate import StepTimes, simulate
from m2bayes.step import aligned
from m2bayes.suites._adjusted import Remembered, Undisturbed
from m2bayes.suites._queue import (
    SCALARS,
    Log,
    adjusted,
    ahead,
    full_throughput,
    measured_throughput,
    qlm_wait,
    read_log,
    scalar,
    tpot_of_log,
    typical_batch,
)
from m2bayes.suites._steps import datasheet_steps
from m2bayes.suites._waits import scored, span
from m2bayes.surface import Surface, surfaces
from m2bayes.traces import RESERVE, USABLE
from m2bayes.workload import Step

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("assembly",)  # fields of the setting
LLM, ENGINE = "llama-3.1-8b", "vllm"
LOGS = {"RTX4090": "RTX-4090-24GB-PCIe", "RTXPRO6000": "RTX-PRO-6000-96GB-PCIe"}
DRAWS, QUICK_DRAWS = 60, 4  # of the posterior
QUICK_REQUESTS, EVERY = 150, 4  # of a log, and of the values of a scalar, when quick
LONG = 0.5  # [s] waits above this are scored
FIRST = 1 / 3  # share of the requests, by arrival, that a scalar is learnt from
SLOWER = 1.1  # [1] step times whose effect on waits is shown
SPACINGS = (4.0, 3.0, 2.0, 1.5, 1.0, 0.5)  # of arrivals, over those of the log [1]


def run(setting: Setting) -> dict[str, Any]:
    """Score estimators of waiting, and TPOT, on the request logs of two cards.

    Returns
    -------
    dict
        By SKU what `judged` returns; ``files``: hashes.

    Raises
    ------
    DataError
        If the folder of outside data is not set, or lacks a log.
    """
    folder = outside("qlm", "llmservingsim")
    found: dict[str, Any] = {}
    files: list[Path] = []
    logs = {}
    for name, sku in LOGS.items():
        logs[sku], own = read_log(folder, name, sku, partial(room, setting, sku))
        files += own
    setting.tell("step times of both cards")
    steps = predicted(setting, list(logs))
    for sku, log in logs.items():
        setting.tell(f"waits on {sku}")
        used = log.first(QUICK_REQUESTS) if setting.quick else log
        every = EVERY if setting.quick else 1
        roofline = assumed(setting, log)
        found[sku] = judged(used, steps[sku], roofline, every=every, seed=setting.seed)
    return found | {"files": {file.name: sha256(file) for file in files}}


def predicted(setting: Setting, skus: Sequence[str]) -> dict[str, Surface]:
    """Step times of each SKU, the same joint draws, dims (draw, …) [s]."""
    database = setting.database
    names = database.assembly(setting.assembly).parts
    draws = QUICK_DRAWS if setting.quick else DRAWS
    whole = aligned({part: database.draws(name) for part, name in names.items()})
    parts = {part: thinned(held, draws) for part, held in whole.items()}
    question = Question(
        parts.pop("gemm"),
        database.datasheets(list(skus)),
        database.llm(LLM),
        [Step("decode", batch=1, context=1)],
        metric="step_time",
        backend=ENGINE,
        seed=setting.seed,
        parts=parts,
        assembly=setting.assembly,
    )
    return surfaces(question)


def room(setting: Setting, sku: str) -> int:
    """KV cache of a card whose engine does not say [token]: what its memory leaves."""
    llm = setting.database.llm(LLM)
    memory = float(setting.database.datasheets([sku])["memory"].item())
    return int((USABLE * memory - weight_bytes(llm) - RESERVE) / kv_bytes_per_token(llm))


def assumed(setting: Setting, log: Log) -> float:
    """Throughput [token/s] of the largest batch that is configured, at the datasheet roofline."""
    most = log.server.max_num_seqs
    step = Step("decode", batch=most, context=round(typical_batch(log)[1]))
    time = datasheet_steps(setting.database)(log.sku, LLM, [step], tp=1, engine=ENGINE)
    return most / float(time.item())


def judged(
    log: Log, surface: Surface, roofline: float, *, every: int = 1, seed: int = 0
) -> dict[str, Any]:
    """Score every estimator on one log.

    Parameters
    ----------
    log : Log
        Measured waits and TPOT [s].
    surface : Surface
        Step times, dims (draw, …) [s].
    roofline : float
        Throughput that the datasheet suggests [token/s].
    every, seed : int
        Of the scalars, see `scalar` [1]; the seed of bootstraps too.

    Returns
    -------
    dict
        ``waits``: scores of each estimator on ``all`` long waits, and on those of the ``rest``,
        from which no scalar is learnt; ``tpot``; ``scalars``; ``amplification``; sizes.
    """
    number, observed = len(log.table), log.waiting
    train = np.arange(round(FIRST * number))
    long = observed > LONG
    rest = long & (np.arange(number) >= len(train))
    draws = [Remembered(surface.pick(d)) for d in range(len(surface.times["decode"]))]
    learnt = {
        name: [
            scalar(log, s, name, train, every=every, label=str(d), seed=seed)
            for d, s in enumerate(draws)
        ]
        for name in SCALARS
    }
    steps: dict[str, list[StepTimes]] = {"zero-shot": [*draws]}
    steps |= {
        name: [adjusted(s, name, k) for s, k in zip(draws, values, strict=True)]
        for name, values in learnt.items()
    }
    guesses = formulas(log, surface, roofline, np.array(learnt["one factor"]))
    guesses |= simulations(log, steps)
    uncalibrated = [name for name in guesses if not any(s in name for s in SCALARS)]
    return {
        "requests": number,
        "long waits": int(long.sum()),
        "longest wait": float(observed.max()),
        "kv_tokens": log.server.kv_tokens,
        "max_num_seqs": log.server.max_num_seqs,
        "waits": {
            "all": {n: scored(guesses[n], observed, long, seed=seed) for n in uncalibrated},
            "rest": {n: scored(guess, observed, rest, seed=seed) for n, guess in guesses.items()},
        },
        "tpot": tpots(log, surface, steps, np.array(learnt["one factor"]), train, seed=seed),
        "scalars": {name: middle(np.array(values)) for name, values in learnt.items()},
        "amplification": amplification(log, surface, long),
    }


def formulas(
    log: Log, surface: Surface, roofline: float, factor: np.ndarray
) -> dict[str, np.ndarray]:
    """Waits by QLM's formula with each throughput [s], dims (draw, request)."""
    ours = full_throughput(log, surface)
    throughputs = {
        "QLM, throughput of the whole run": measured_throughput(log, queueing=False),
        "QLM, throughput while requests wait": measured_throughput(log, queueing=True),
        "QLM, assumed throughput": roofline,
        "QLM's formula, our throughput": ours,
        "QLM's formula, our throughput, one factor": ours / factor,
    }
    queue = ahead(log.table)
    return {name: qlm_wait(queue, log.length, rate) for name, rate in throughputs.items()}


def simulations(log: Log, steps: dict[str, list[StepTimes]]) -> dict[str, np.ndarray]:
    """Waits by simulating the scheduler [s], dims (draw, request)."""
    found = {}
    for name, times in steps.items():
        for lengths, mean in (("", False), (", mean length", True)):
            requests = log.requests(mean_length=mean)
            found[f"simulated, {name}{lengths}"] = np.stack(
                [simulate(requests, t, log.server)["waiting"].values for t in times]
            )
    return found


def tpots(
    log: Log,
    surface: Surface,
    steps: dict[str, list[StepTimes]],
    factor: np.ndarray,
    train: np.ndarray,
    *,
    seed: int,
) -> dict[str, Any]:
    """Scores of TPOT [1], on the log's batches and simulated, with others' prompts and without.

    Zero-shot on all requests, with one factor on those that it was not learnt from.
    """
    several = np.isfinite(log.tpot)
    later = several & (np.arange(len(several)) >= len(train))
    requests, found = log.requests(), {}
    for label, with_others in (("", True), (", without interference", False)):
        by_log = tpot_of_log(log, surface, interference=with_others)
        guesses = {"log's batches, zero-shot": by_log, "log's batches, one factor": by_log}
        guesses["log's batches, one factor"] = by_log * factor[:, None]
        for name in ("zero-shot", "one factor"):
            used = steps[name] if with_others else [Undisturbed(t) for t in steps[name]]
            guesses[f"simulated, {name}"] = np.stack(
                [simulate(requests, t, log.server)["tpot"].values for t in used]
            )
        for name, guess in guesses.items():
            at = later if "factor" in name else several
            found[name + label] = scored(guess, log.tpot, at, seed=seed)
    return found


def amplification(log: Log, surface: Surface, long: np.ndarray) -> dict[str, Any]:
    """What steps slower by a tenth do to waits: growth [1], at the log's arrivals and at others.

    The median step times are simulated; ``by spacing`` stretches the gaps between arrivals, and
    holds rate [1/s], mean wait [s] and its growth [1], None where it is short.
    """
    times = surface.median()

    def both(spacing: float) -> list[xr.Dataset]:
        requests = log.requests()
        requests = requests.assign(arrival=requests["arrival"] * spacing)
        return [simulate(requests, t, log.server) for t in (times, times.scaled(SLOWER))]

    before, after = both(1.0)
    used = long & (before["waiting"].values > LONG)
    growth = (after["waiting"].values[used] / before["waiting"].values[used]) - 1
    rows = {}
    for spacing in SPACINGS:
        before, after = both(spacing)
        wait = float(before["waiting"].mean())
        rows[f"{spacing:g}"] = {
            "rate": len(before["waiting"]) / (float(np.ptp(log.table["arrival"])) * spacing),
            "mean_wait": wait,
            "growth": float(after["waiting"].mean()) / wait - 1 if wait > LONG else None,
        }
    return {"slower": SLOWER - 1, "growth": middle(growth), "by spacing": rows}


def middle(values: np.ndarray) -> dict[str, Any]:
    """Median and 90 % interval over draws or requests, dims (draw,) [unit of the values]."""
    return {"median": float(np.median(values)), "interval": span(values)}
