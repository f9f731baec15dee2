"""The figure that fits what was asked, for the commands that take --plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from m2bayes.catalogue import factors
from m2bayes.database import Database
from m2bayes.errors import DataError, RecordError
from m2bayes.gemm import gemm_cells
from m2bayes.inputs import Inputs
from m2bayes.measurements import clock_readings
from m2bayes.plot import _series as along
from m2bayes.plot._canvas import words
from m2bayes.plot.calibration import evaluation
from m2bayes.plot.clocks import clock_curves
from m2bayes.plot.forest import factor_forest
from m2bayes.plot.maps import flip_map, p_best_map
from m2bayes.plot.parts import breakdown
from m2bayes.plot.ranks import MOST, ranking, times
from m2bayes.plot.regrets import regret
from m2bayes.plot.roofs import roofline
from m2bayes.plot.values import value_of_measurements
from m2bayes.question import METRICS, Question, step_times
from m2bayes.workload import Kernel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEPT = 25  # sizes M of a roofline's line
LEAST, LARGEST = 1, 16384  # of them [1]


def of_ranking(
    question: Question,
    results: Sequence[Mapping[str, Any]],
    crossovers: Sequence[Mapping[str, Any]],
    figure: str | None = None,
) -> Figure:
    """Figure of a ranking: of the kind asked for, or of the kind that its workloads suit.

    Parameters
    ----------
    question : Question
        What was asked.
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`.
    crossovers : list of dict
        From `m2bayes.crossover.crossovers`.
    figure : {"ranking", "intervals", "p_best", "flips", "regret"}, optional
        By default ``ranking`` of workloads that differ in one size, ``flips`` of all pairs of two
        sizes, ``p_best`` of many other workloads and ``intervals`` of few.

    Raises
    ------
    DataError
        If the workloads do not suit the kind.
    """
    labels = [entry["workload"] for entry in results]
    kind = figure or kind_of(labels)
    metric, units = question.metric, METRICS[question.metric]
    if kind == "ranking" and not along.is_series(labels):
        raise DataError(
            "--figure ranking: give two workloads or more that differ in one size, such as "
            "decode:batch=8,context=1024 decode:batch=64,context=1024"
        )
    if kind == "flips" and not along.is_grid(labels):
        raise DataError(
            "--figure flips: give all pairs of two sizes, two or more of each, such as "
            "prefill:tokens=256 prefill:tokens=256,context=8192 prefill:tokens=2048 "
            "prefill:tokens=2048,context=8192"
        )
    if kind == "ranking":
        return ranking(
            results,
            metric=metric,
            units=units,
            crossovers=crossovers,
            threshold=question.threshold,
        )
    if kind == "flips":
        return flip_map(results, metric=metric)
    if kind == "p_best":
        return p_best_map(results, metric=metric)
    if kind == "regret":
        return regret(results, metric=metric)
    return times(results, metric=metric, units=units)


def kind_of(labels: Sequence[str]) -> str:
    """Kind of figure that suits these workloads.

    >>> kind_of(["prefill:tokens=1", "prefill:tokens=2"]), kind_of(["prefill:tokens=1"])
    ('ranking', 'intervals')
    """
    if along.is_series(labels):
        return "ranking"
    if along.is_grid(labels):
        return "flips"
    return "p_best" if len(labels) > MOST else "intervals"


def of_prediction(
    question: Question,
    results: Sequence[Mapping[str, Any]],
    database: Database,
    *,
    by_op: bool = False,
    noise: int = 0,
) -> Figure:
    """Figure of a prediction: by operator, the roofline of matrix products, or times.

    Parameters
    ----------
    question : Question
        What was asked.
    results : list of dict
        From `m2bayes.answer.answers` with `predicted`.
    database : Database
        That holds what the posterior was fitted to: measured points of the roofline.
    by_op : bool
        Whether the operators were asked for.
    noise : int
        Runs of a predictive median [1]; a roofline is drawn without.
    """
    if by_op:
        return breakdown(results)
    if noise or not all(isinstance(w, Kernel) for w in question.workloads):
        return times(results, metric=question.metric, units=METRICS[question.metric])
    sides = sorted({(w.n, w.k) for w in question.workloads if isinstance(w, Kernel)})
    largest = max(LARGEST, *(w.m for w in question.workloads if isinstance(w, Kernel)))
    tokens = np.unique(np.geomspace(LEAST, largest, SWEPT).round().astype(int))
    kernels = [Kernel(m=int(m), n=n, k=k) for n, k in sides for m in tokens]
    time = step_times(replace(question, workloads=kernels), kernels).sum("op")
    cells = gemm_cells(None, kernels).isel(op=0)
    return roofline(
        time, cells, question.datasheets, measured=_measured(question, database), mass=question.mass
    )


def of_values(found: Mapping[str, Any]) -> Figure:
    """Figure of what measurements are worth.

    Parameters
    ----------
    found : mapping
        From `m2bayes.information.worth.worth`.
    """
    percent, metric = found["units"] == "share of the metric", words(found["metric"])
    scale, units = (100.0, f"% of the {metric}") if percent else (1.0, found["units"])
    designs = [
        {
            "name": row["measurement"],
            "evsi": scale * row["evsi"],
            "mcse": scale * row["evsi_mcse"],
            "cost": f"{60 * row['gpu_hours']:.2g} GPU min",
        }
        for row in found["candidates"]
    ]
    return value_of_measurements(designs, units=units, evpi=scale * found["evpi"])


def _measured(question: Question, database: Database) -> Any:
    """What the posterior was fitted to, dims (cell, run) [s]; None where it is not here."""
    record = database.posterior(str(question.posterior.attrs["name"]))
    try:
        return Inputs.recorded(database, record).cells()
    except (RecordError, DataError):
        return None


def of_content(database: Database, name: str, content: Mapping[str, Any]) -> Figure:
    """Figure of what ``m2bayes show`` shows.

    Parameters
    ----------
    database : Database
        That holds it.
    name : str
        That was asked for.
    content : mapping
        From `m2bayes.catalogue.found`.

    Raises
    ------
    DataError
        If it is nothing that has a figure.
    """
    if "posterior" in content:
        return factor_forest(factors(database, name), title=content["posterior"]["name"])
    if "evaluation" in content:
        return evaluation(content["evaluation"])
    if "sustained_clock" in content.get("data", {}).get("columns", {}):
        return _clock(database, name)
    raise DataError(
        f"--plot: {name} has no figure; a posterior, clock telemetry or an evaluation's JSON has"
    )


def _clock(database: Database, name: str) -> Figure:
    """Telemetry beside the curves of the posterior that was fitted to it."""
    for posterior in database.posteriors():
        record = database.posterior(posterior)
        if {"clock": name}.items() <= {s["role"]: s["name"] for s in record.data}.items():
            sheets = database.datasheets(sorted(record.datasheets), dtype=record.dtype)
            readings = clock_readings(database.table(name), sheets, origin=name)
            return clock_curves(database.draws(posterior), sheets, readings)
    raise DataError(f"--plot: no stored posterior was fitted to {name}")
