"""What requests look like: one length, a histogram of lengths, or a trace of requests."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from m2bayes._files import reason, regular, shown
from m2bayes.errors import DataError, WorkloadError

CLASSES = 4  # of prompt lengths, and of answer lengths in each, into which a mix is gathered
LONGEST = 10**8  # [token]
HEAVIEST = 1e9  # weight of a row, so that sums stay finite
LATEST = 1e12  # time of an arrival, either way [s]
MOST = 10**6  # of a rate [1/s], of requests in the system, of a target [s]
RIVALS = (";", "\t", "|")  # delimiters that are not commas
LENGTHS = ("input_tokens", "output_tokens")


def one_length(input_tokens: int, output_tokens: int, *, longest: int | None = None) -> xr.Dataset:
    """Requests that are all alike.

    Parameters
    ----------
    input_tokens, output_tokens : int
        Of the prompt and of the answer, from 1 [token].
    longest : int or None
        Context of the LLM, which both together must keep to [token].

    Returns
    -------
    Dataset, dims (request,)
        One kind of request: ``input_tokens``, ``output_tokens`` [token], ``weight`` [1].

    Raises
    ------
    WorkloadError
        If a length is below 1 or absurdly large, or both are too long together.

    Examples
    --------
    >>> one_length(100, 10)["weight"].values
    array([1.])
    """
    for name, value in zip(LENGTHS, (input_tokens, output_tokens), strict=True):
        if not 1 <= value <= LONGEST:
            option = f"--{name.replace('_', '-')}"
            raise WorkloadError(f"{option} {value}: give 1 to {LONGEST:,} tokens")
    if longest is not None and input_tokens + output_tokens > longest:
        place = f"--input-tokens {input_tokens} --output-tokens {output_tokens}"
        raise WorkloadError(_too_long(place, input_tokens + output_tokens, longest))
    return _dataset([(float(input_tokens), float(output_tokens), 1.0)])


def read_mix(path: Path, *, longest: int | None = None) -> xr.Dataset:
    """Histogram of lengths: a CSV with ``input_tokens``, ``output_tokens`` and ``weight``.

    Parameters
    ----------
    path : Path
        One kind of request a row [token]; weights are relative, at least one above 0.
    longest : int or None
        Context of the LLM, which each row must keep to [token].

    Returns
    -------
    Dataset, dims (request,)
        As of `one_length`, weights summing to 1 [1], gathered into at most `CLASSES` squared kinds.

    Raises
    ------
    DataError
        Names the file, the line, and what is wrong; so it does if all weights are 0.
    """
    where, rows = shown(path), []
    for place, row in _rows(path, (*LENGTHS, "weight")):
        weight = _number(row, "weight", place)
        if not 0 <= weight <= HEAVIEST:
            raise DataError(f"{place}: weight {weight:g} is not from 0 to {HEAVIEST:g}; correct it")
        rows.append((*_lengths(row, place, longest), weight))
    if not sum(weight for *_, weight in rows):
        raise DataError(f"{where}: all weights are 0; give a weight above 0 to at least one row")
    return gathered(_dataset(rows))


def read_trace(path: Path, *, longest: int | None = None) -> xr.Dataset:
    """Requests of a log: a CSV with ``input_tokens``, ``output_tokens``, perhaps ``arrival_time``.

    Parameters
    ----------
    path : Path
        One request a row [token], arrival [s] in any order.
    longest : int or None
        Context of the LLM, which each row must keep to [token].

    Returns
    -------
    Dataset, dims (request,)
        As of `read_mix`. With arrivals also ``rate`` [1/s] and ``arrival_scv``, the squared
        coefficient of variation of the gaps [1], without dims.

    Raises
    ------
    DataError
        Names the file, the line, and what is wrong.
    """
    rows, times = [], []
    for place, row in _rows(path, LENGTHS):
        rows.append((*_lengths(row, place, longest), 1.0))
        if "arrival_time" in row:
            times.append(_number(row, "arrival_time", place))
            if abs(times[-1]) > LATEST:
                raise DataError(
                    f"{place}: arrival_time {times[-1]:g} is over {LATEST:g} s away; correct it"
                )
    found = gathered(_dataset(rows))
    if not times:
        return found
    gaps = np.diff(np.sort(times))
    if not gaps.sum() > 0:
        raise DataError(
            f"{shown(path)}: arrival_time spans no time; give two moments or more, or drop it"
        )
    if len(gaps) > MOST * gaps.sum():
        raise DataError(
            f"{shown(path)}: by its arrival_time more than {MOST:,} requests a second arrive; "
            "give seconds, or drop it"
        )
    scv = float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 else 1.0
    return found.assign(rate=1 / float(gaps.mean()), arrival_scv=scv)


def gathered(mix: xr.Dataset) -> xr.Dataset:
    """Kinds of requests put together, by prompt and then by answer, each its members' mean.

    Parameters
    ----------
    mix : Dataset, dims (request,)
        As of `one_length` [token].

    Returns
    -------
    Dataset, dims (request,)
        At most `CLASSES` squared kinds of about the same weight; mean lengths [token] are kept.
    """
    prompt, answer, weight = (mix[n].values for n in (*LENGTHS, "weight"))
    kinds = dict.fromkeys(zip(prompt, answer, strict=True), 0.0)
    for p, a, w in zip(prompt, answer, weight, strict=True):
        kinds[p, a] += w
    table = np.array([(p, a, w) for (p, a), w in kinds.items() if w > 0])
    if len(table) <= CLASSES**2:
        return _dataset([tuple(row) for row in table])
    rows = []
    for part in _quantile_groups(table, 0):
        for group in _quantile_groups(part, 1):
            total = group[:, 2].sum()
            rows.append((*(group[:, :2].T @ group[:, 2] / total), total))
    return _dataset(rows)


def mean_length(mix: xr.Dataset, name: str) -> float:
    """Mean of ``input_tokens`` or ``output_tokens`` over requests [token], dims (request,) gone."""
    return float(mix[name].values @ mix["weight"].values)


def mean_context(mix: xr.Dataset) -> float:
    r"""Mean tokens cached of a sequence that decodes, :math:`E[O I + O^2/2] / E[O]`.

    A long answer is in the batch for longer, so it counts for more.

    Parameters
    ----------
    mix : Dataset, dims (request,)
        As of `one_length`.

    Returns
    -------
    float
        Tokens [token].

    Examples
    --------
    >>> mean_context(one_length(100, 10))
    105.0
    """
    prompt, answer, weight = (mix[n] for n in (*LENGTHS, "weight"))
    held = (weight * (answer * prompt + answer**2 / 2)).sum()
    return float(held / (weight * answer).sum())


def scv(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Squared coefficient of variation over the last dim [1].

    Parameters
    ----------
    values, weight : ndarray, dims (…, request) and (request,)
        Any unit; weights sum to 1 [1].

    Examples
    --------
    >>> float(scv(np.array([1.0, 3.0]), np.array([0.5, 0.5])))
    0.25
    """
    mean = (values * weight).sum(-1)
    square = (values**2 * weight).sum(-1)
    return np.maximum(square / np.where(mean > 0, mean, 1) ** 2 - 1, 0.0)


def _quantile_groups(table: np.ndarray, column: int) -> list[np.ndarray]:
    """Rows (prompt, answer, weight) split into `CLASSES` of about equal weight by one column."""
    ordered = table[np.argsort(table[:, column], kind="stable")]
    middle = np.cumsum(ordered[:, 2]) - ordered[:, 2] / 2
    group = np.minimum(middle / ordered[:, 2].sum() * CLASSES, CLASSES - 1).astype(int)
    return [ordered[group == k] for k in range(CLASSES) if (group == k).any()]


def _dataset(rows: Sequence[tuple[float, ...]]) -> xr.Dataset:
    prompt, answer, weight = np.array(rows, dtype=float).T
    return xr.Dataset(
        {
            "input_tokens": ("request", prompt, {"units": "token"}),
            "output_tokens": ("request", answer, {"units": "token"}),
            "weight": ("request", weight / weight.sum(), {"units": "1"}),
        }
    )


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Place and cells of each row of a CSV whose header has the columns needed."""
    regular(path, DataError)
    where, held = shown(path), False
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle, strict=True)
            names = [(name or "").strip() for name in reader.fieldnames or ()]
            _check_header(where, names, needed)
            reader.fieldnames = names
            for row in reader:
                held = True
                if None in row:
                    more = f"more cells than the header's {len(names)}"
                    raise DataError(f"{where} line {reader.line_num}: {more}; correct it")
                yield f"{where} line {reader.line_num}", row
    except UnicodeDecodeError:
        raise DataError(f"{where}: no text in UTF-8; convert it") from None
    except (OSError, csv.Error) as fault:
        raise DataError(f"{where}: not a CSV table: {reason(fault)}") from None
    if not held:
        raise DataError(f"{where}: holds no request; give at least one row")


def _check_header(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse another delimiter, a name that stands twice, and a column that is not there."""
    line = ",".join(names)
    for rival in RIVALS:
        if line.count(rival) > line.count(","):
            raise DataError(
                f"{where}: its columns are separated by {rival!r}, not by commas; "
                "write it with commas, and points in its numbers"
            )
    for name in names:
        if name and names.count(name) > 1:
            raise DataError(f"{where} line 1: two columns named {name!a}; keep one")
    for name in needed:
        if name not in names:
            raise DataError(f"{where}: the header has no column {name}; add it")


def _too_long(place: str, tokens: float, longest: int) -> str:
    return (
        f"{place}: prompt and answer of {tokens:,.0f} tokens: the LLM was made for {longest:,}; "
        "shorten them"
    )


def _lengths(row: Mapping[str, str], place: str, longest: int | None) -> tuple[float, float]:
    values = [_number(row, name, place) for name in LENGTHS]
    for name, value in zip(LENGTHS, values, strict=True):
        if not 1 <= value <= LONGEST:
            raise DataError(f"{place}: {name} {value:g} is not from 1 to {LONGEST:,}; correct it")
    if longest is not None and sum(values) > longest:
        raise DataError(_too_long(place, sum(values), longest))
    return values[0], values[1]


def _number(row: Mapping[str, str], name: str, place: str) -> float:
    text = row.get(name)
    try:
        value = float(text if text is not None else "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown_text = "empty" if not (text or "").strip() else f"{text!r}"
        raise DataError(f"{place}: {name} is {shown_text}, no finite number; correct it")
    return value
