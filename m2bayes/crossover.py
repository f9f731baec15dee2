"""Where the best SKU changes: the batch or prompt length of the crossover, with its interval."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from m2bayes.question import Question, step_times
from m2bayes.workload import Step

VARIED = {"decode": "batch", "prefill": "tokens", "mixed": "batch"}
STEPS = 17  # sizes tried between two workloads


def crossovers(question: Question, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find between neighbouring workloads the size at which the choice changes.

    Workloads are neighbours when they differ in batch (decode, mixed) or tokens (prefill) alone.
    A choice that changes because a SKU no longer fits is no crossover.

    Parameters
    ----------
    question : Question
        What was asked.
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`.

    Returns
    -------
    list of dict
        ``size`` (batch or tokens), ``between`` two labels, the SKU ``before`` and ``after``,
        median and 90 % ``interval`` of the smallest size tried at which the second is faster
        [token], and ``p_between``, the probability that there is one [1]. ``censored`` names the
        ends of the interval that are ends of the sizes tried: the crossover may lie beyond.
    """
    choice = {entry["workload"]: entry["choice"] for entry in results}
    fits = {e["workload"]: {s["sku"] for s in e["skus"] if s["fits"]} for e in results}
    steps = [w for w in question.workloads if isinstance(w, Step)]
    found = []
    for _, group in groupby(sorted(steps, key=_key), key=lambda s: _key(s)[:-1]):
        for first, last in pairwise(group):
            before, after = choice[first.label], choice[last.label]
            pair = {before, after}
            if before != after and pair <= fits[first.label] and pair <= fits[last.label]:
                found.append(_between(question, first, last, before, after))
    return found


def _key(step: Step) -> tuple[Any, ...]:
    varied = VARIED[step.kind]
    rest = [getattr(step, k) for k in ("batch", "context", "tokens", "prefill") if k != varied]
    return (step.kind, *rest, getattr(step, varied))


def _between(
    question: Question, first: Step, last: Step, before: str, after: str
) -> dict[str, Any]:
    """Crossover between two workloads of one kind."""
    size = VARIED[first.kind]
    start, end = float(getattr(first, size)), float(getattr(last, size))
    sizes = np.unique(np.geomspace(start, end, STEPS).round().astype(int))
    changes: list[dict[str, Any]] = [{size: int(value)} for value in sizes]
    steps = [replace(first, **change) for change in changes]
    pair = question.datasheets.sel(sku=[before, after])
    asked = replace(question, datasheets=pair, workloads=steps)
    time = step_times(asked, steps).sum("op").transpose("chain", "draw", "sku", "workload")
    faster = (time.sel(sku=after) < time.sel(sku=before)).values.reshape(-1, len(sizes))
    at = np.where(faster.any(axis=1), faster.argmax(axis=1), len(sizes) - 1)
    low, middle, high = (float(v) for v in np.quantile(sizes[at], [0.05, 0.5, 0.95]))
    ends = {"low": low <= sizes[0], "high": high >= sizes[-1]}
    censored = [end for end, reached in ends.items() if reached]
    return {
        "size": size,
        "between": [first.label, last.label],
        "before": before,
        "after": after,
        "median": middle,
        "interval": {"kind": "eti", "mass": 0.9, "low": low, "high": high, "censored": censored},
        "p_between": float(faster.any(axis=1).mean()),
    }
