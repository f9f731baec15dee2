"""Served runs that disagree with their repeats and with their neighbours in concurrency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from m2bayes.importers._parts import Part, names_of
from m2bayes.linting.plausible import Finding

FACTOR = float(np.log(1.5))  # log error from which a served run is named
QUIET = 0.75  # share of the runs that are sound for certain
BEYOND = 6.0  # times their disagreement, from which a run is named
ENOUGH = 20  # runs from which a table has a noise of its own
MOST_SAID = 50
SAID = ("llm", "sku", "backend", "version", "concurrency", "input_tokens", "output_tokens", "id")
NOT_CONFIGURATION = ("id", "source", "version_note", "workload", "step_time")
MEASURED = ("ttft", "tpot", "e2e_time", "requests")


def served(part: Part) -> Iterator[Finding]:
    """Runs that disagree with every repeat and with their neighbours in concurrency.

    A run is held against each repeat of its configuration and against the line, in the logs,
    from a run of the next lower to one of the next higher concurrency. What counts is the nearest
    of them: so the one wrong run of a pair is named, and neither its sound repeat nor a neighbour.

    Parameters
    ----------
    part : Part
        Served runs, dims (measurement,) [s].
    """
    rows = part.rows
    series, level = _series(rows)
    for name in ("tpot", "ttft"):
        if name not in rows or not (rows[name] > 0).any():
            continue
        log = np.log(rows[name].where(rows[name] > 0).to_numpy(dtype=float))
        score, other = disagreement(log, series, level)
        known = np.sort(score[np.isfinite(score)])
        if not len(known):
            continue
        quiet = known[int(QUIET * (len(known) - 1))] if len(known) >= ENOUGH else 0.0
        far = score > max(FACTOR, BEYOND * quiet)
        order = sorted(np.flatnonzero(far), key=lambda i: (-score[i], _what(rows.iloc[i])))
        for at in order[:MOST_SAID]:
            row = rows.iloc[at]
            text = (
                f"{row['file']}: row {row['row']}, {name}: {row[name] * 1e3:.2f} ms against "
                f"{np.exp(other[at]) * 1e3:.2f} ms of its repeats or neighbours ({_what(row)}); "
                "measure it again or drop it"
            )
            yield Finding("warning", "outlier", name, text, 1, (int(row["row"]),))
        if len(order) > MOST_SAID:
            text = f"{len(order) - MOST_SAID:,} more runs disagree in {name}"
            yield Finding("warning", "outlier", name, text, len(order) - MOST_SAID)


def _what(row: Any) -> str:
    names = (
        "llm",
        "sku",
        "backend",
        "version",
        "concurrency",
        "input_tokens",
        "output_tokens",
        "id",
    )
    held = [
        f"{n} {row[n]:g}" if isinstance(row[n], float) else f"{n} {row[n]}"
        for n in names
        if n in row
    ]
    return ", ".join(held)


def _series(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Label of the configuration without its concurrency, and log of that, dims (measurement,)."""
    level = "concurrency" if "concurrency" in rows else ""
    skip = {*MEASURED, *NOT_CONFIGURATION, level, "file", "row", "column"}
    skip |= {n for n in names_of(rows) if n.endswith("batch_size")}
    names = [n for n in names_of(rows) if n not in skip]
    text = rows[names].astype(object).where(rows[names].notna(), "").astype(str)
    series = pd.util.hash_pandas_object(text, index=False).to_numpy()
    if not level:
        return series, np.zeros(len(rows))
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(rows[level].to_numpy(dtype=float))
    return series, np.where(np.isfinite(log), log, 0.0)


def disagreement(
    log: np.ndarray, series: np.ndarray, level: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distance of each run to the nearest of its references, and the median of its repeats.

    Parameters
    ----------
    log : ndarray, dims (measurement,)
        Log of the time in seconds [1].
    series : ndarray, dims (measurement,)
        Label of the configuration.
    level : ndarray, dims (measurement,)
        Log of the concurrency [1].

    Returns
    -------
    tuple of ndarray, dims (measurement,)
        Distance and median in the log [1], of the neighbours where a run has no repeat; NaN where
        it has neither.

    Examples
    --------
    A pair that disagrees: the neighbours say which is wrong.

    >>> log = np.log([10.0, 20.0, 80.0, 40.0])
    >>> score, _ = disagreement(log, np.zeros(4), np.log([1.0, 2.0, 2.0, 4.0]))
    >>> np.exp(score[1:3]).round(2).tolist()
    [1.0, 4.0]
    """
    score, middle = np.full(len(log), np.nan), np.full(len(log), np.nan)
    for every in pd.Series(np.arange(len(log))).groupby(series).indices.values():
        at = np.asarray(every)[np.isfinite(log[every])]
        levels, where = np.unique(level[at], return_inverse=True)
        runs = [log[at[where == i]] for i in range(len(levels))]
        for own, i in zip(at, where, strict=True):
            others = [log[j] for j in at[where == i] if j != own]
            repeats = len(others)
            if 0 < i < len(levels) - 1:
                share = (levels[i] - levels[i - 1]) / (levels[i + 1] - levels[i - 1])
                others += list(np.add.outer((1 - share) * runs[i - 1], share * runs[i + 1]).ravel())
            if others:
                score[own] = np.min(np.abs(log[own] - np.array(others)))
                middle[own] = np.median(others[:repeats] or others)
    return score, middle
