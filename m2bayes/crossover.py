"""Where the best SKU changes: the batch or prompt length of the crossover, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from m2bayes.question import Question, metric_of, step_times
from m2bayes.workload import Step

VARIED = {"decode": ("batch",), "mixed": ("batch",), "prefill": ("tokens", "batch")}
STEPS = 17  # sizes tried between the two workloads whose choice differs
BEYOND = 5  # and between two others of the same choices


def crossovers(question: Question, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find between neighbouring workloads the size at which the choice changes.

    Workloads are neighbours when they differ in batch, or in tokens of a prefill, alone.
    A choice that changes because a SKU no longer fits is no crossover. The size is looked for
    among all such workloads on whose one side the one SKU is chosen, and on the other the other.

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
        median and 90 % ``interval`` of the smallest size tried at which the second is better by
        the metric [token], ``tried``, the smallest and the largest of the sizes, and
        ``p_between``, the probability that there is one among them [1]. ``censored`` names the
        ends of the interval that are ends of the sizes tried: the crossover may lie beyond.
    """
    choice = {entry["workload"]: entry["choice"] for entry in results}
    fits = {e["workload"]: {s["sku"] for s in e["skus"] if s["fits"]} for e in results}
    steps = [w for w in question.workloads if isinstance(w, Step)]
    found = []
    for own, size in _series(steps):
        for at, (first, last) in enumerate(pairwise(own)):
            before, after = choice[first.label], choice[last.label]
            pair = {before, after}
            if before != after and pair <= fits[first.label] and pair <= fits[last.label]:
                chosen = [choice[s.label] if pair <= fits[s.label] else None for s in own]
                start, end = _run(chosen, at, -1), _run(chosen, at + 1, 1)
                some = own[start : end + 1]
                found.append(_between(question, some, size, at - start, (before, after)))
    return found


def _series(steps: Sequence[Step]) -> Iterator[tuple[list[Step], str]]:
    """Steps that differ in one size alone, in its order, and that size."""
    for kind, sizes in VARIED.items():
        for size in sizes:
            own = sorted((s for s in steps if s.kind == kind), key=lambda s: _key(s, size))
            for _, group in groupby(own, key=lambda s: _key(s, size)[:-1]):
                yield list(group), size


def _run(chosen: Sequence[str | None], at: int, step: int) -> int:
    """Last place, going one way from `at`, up to which the choice is the same."""
    while 0 <= at + step < len(chosen) and chosen[at + step] == chosen[at]:
        at += step
    return at


def _key(step: Step, varied: str) -> tuple[int, ...]:
    rest = [getattr(step, k) for k in ("batch", "context", "tokens", "prefill") if k != varied]
    return (*rest, _size(step, varied))


def _size(step: Step, name: str) -> int:
    """Size of a step [1]; a prefill that names no batch is of one prompt."""
    return max(int(getattr(step, name)), 1)


def _between(
    question: Question, own: Sequence[Step], size: str, at: int, chosen: tuple[str, str]
) -> dict[str, Any]:
    """Crossover between the workload at a place and the next, sought among all of them."""
    before, after = chosen
    sizes = _sizes([_size(step, size) for step in own], at)
    changes: list[dict[str, Any]] = [{size: int(value)} for value in sizes]
    steps = [replace(own[0], **change) for change in changes]
    pair = question.datasheets.sel(sku=[before, after])
    asked = replace(question, datasheets=pair, workloads=steps)
    metric = metric_of(asked, step_times(asked, steps))
    if question.metric == "tokens_per_second":
        metric = -metric
    metric = metric.transpose("chain", "draw", "sku", "workload")
    better = (metric.sel(sku=after) < metric.sel(sku=before)).values.reshape(-1, len(sizes))
    first = np.where(better.any(axis=1), better.argmax(axis=1), len(sizes) - 1)
    low, middle, high = (float(v) for v in np.quantile(sizes[first], [0.05, 0.5, 0.95]))
    ends: Mapping[str, bool] = {"low": low <= sizes[0], "high": high >= sizes[-1]}
    censored = [end for end, reached in ends.items() if reached]
    return {
        "size": size,
        "between": [own[at].label, own[at + 1].label],
        "tried": [int(sizes[0]), int(sizes[-1])],
        "before": before,
        "after": after,
        "median": middle,
        "interval": {"kind": "eti", "mass": 0.9, "low": low, "high": high, "censored": censored},
        "p_between": float(better.any(axis=1).mean()),
    }


def _sizes(asked: Sequence[int], at: int) -> np.ndarray:
    """Sizes tried [1]: those asked for and some between them, most after the place `at`."""
    parts = [
        np.geomspace(first, last, STEPS if i == at else BEYOND)
        for i, (first, last) in enumerate(pairwise(asked))
    ]
    return np.unique(np.concatenate(parts).round().astype(int))
