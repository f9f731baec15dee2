"""Measured engine steps that a user gives to calibrate with, read from a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m2bayes._files import reason, regular, shown
from m2bayes.errors import DataError, WorkloadError
from m2bayes.workload import Step, parse_workload

COLUMNS = ("sku", "workload", "step_time")
FLOOR, CEILING = 1e-6, 100.0  # [s] no engine step is faster or slower
MOST_TP = 1024
BEYOND = 30.0  # times the expected that a step takes only in another unit


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured engine step.

    Parameters
    ----------
    sku : str
        As written in the file.
    workload : Step
        The batch.
    step_time : float
        Measured time [s].
    tp : int
        GPUs that share the LLM [1].
    where : str
        File and line, for messages.
    """

    sku: str
    workload: Step
    step_time: float
    tp: int = 1
    where: str = field(default="", compare=False)


def read_timings(path: Path) -> list[Timing]:
    """Measured steps of a CSV with columns ``sku``, ``workload``, ``step_time`` and perhaps ``tp``.

    Parameters
    ----------
    path : Path
        One step a row: a SKU, a SPEC such as ``decode:batch=64,context=2048`` (quoted, because of
        its comma), its time [s], GPUs that share the LLM [1]. Other columns are ignored.

    Returns
    -------
    list of Timing
        In the order of the rows; whether a SKU exists is the caller's to say.

    Raises
    ------
    DataError
        Names the missing column, or the line and what is wrong with it.
    """
    regular(path, DataError)
    where = shown(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle, strict=True)
            names = [(name or "").strip() for name in reader.fieldnames or ()]
            _check_header(names, where)
            reader.fieldnames = names
            found = [_timing(row, f"{where} line {reader.line_num}") for row in reader]
    except UnicodeDecodeError:
        raise DataError(f"{where}: no text in UTF-8; convert it") from None
    except (OSError, csv.Error) as fault:
        raise DataError(f"{where}: not a CSV table: {reason(fault)}") from None
    if not found:
        raise DataError(f"{where}: holds no measured step; give at least one row")
    return found


def refuse(timings: Sequence[Timing], *, least: float, expected: Sequence[float]) -> None:
    """Refuse steps that no card takes, or that only another unit explains.

    Parameters
    ----------
    timings : sequence of Timing
        Of one SKU.
    least : float
        Time of reading the weights once [s].
    expected : sequence of float
        What is predicted of each [s].

    Raises
    ------
    DataError
        Names the line, its time, and the time that is expected.
    """
    for timing, usual in zip(timings, expected, strict=True):
        time, ratio = timing.step_time, timing.step_time / usual
        if time < least:
            raise DataError(
                f"{timing.where}: step_time {time:.3g} s: reading the weights alone takes "
                f"{timing.sku} {least:.3g} s; give the time of a whole step, in seconds"
            )
        if ratio > BEYOND:
            raise DataError(
                f"{timing.where}: step_time {time:.3g} s is {ratio:,.0f} times what is expected "
                f"({usual:.3g} s); give seconds"
            )


def _check_header(names: Sequence[str], where: str) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise DataError(f"{where}: no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
    for name in (*COLUMNS, "tp"):
        if names.count(name) > 1:
            raise DataError(f"{where}: two columns named {name}; keep one")


def _timing(row: Mapping[str | None, str | list[str] | None], where: str) -> Timing:
    if None in row:
        raise DataError(f"{where}: more cells than the header has columns; quote the workload")
    cells = {name: str(row.get(name) or "").strip() for name in (*COLUMNS, "tp")}
    for name in COLUMNS:
        if not cells[name]:
            raise DataError(f"{where}: {name} is empty")
    try:
        workload = parse_workload(cells["workload"])
    except WorkloadError as fault:
        raise DataError(f"{where}: {fault}") from None
    if not isinstance(workload, Step):
        raise DataError(f"{where}: a gemm is no engine step; give decode, prefill or mixed")
    time, tp = _time(cells["step_time"], where), _tp(cells["tp"], where)
    return Timing(cells["sku"], workload, time, tp, where)


def _time(text: str, where: str) -> float:
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not FLOOR <= time <= CEILING:
        raise DataError(
            f"{where}: step_time {text[:60]!a} is not between {FLOOR} and {CEILING:.0f} s; "
            "is the unit right?"
        )
    return time


def _tp(text: str, where: str) -> int:
    if not text:
        return 1
    whole = text.isascii() and text.isdigit() and len(text) < 6
    if not whole or not 1 <= int(text) <= MOST_TP:
        raise DataError(f"{where}: tp {text[:60]!a} is not a whole number from 1 to {MOST_TP}")
    return int(text)
