"""Rows of a CSV or Parquet file in bounded memory, and what is wrong with its form."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from m2bayes._files import read_json, reason, regular, shown
from m2bayes.errors import DataError

LONGEST_LINE = 2**20  # [character]
MOST_ROWS = 500_000  # of one import; a fit reads a few thousand
CELLS = 400_000  # read at a time
MOST_JSON = 64 * 2**20  # [byte]
RIVALS = (";", "\t", "|")  # delimiters that are not commas


def is_parquet(path: Path) -> bool:
    """Whether a file is to be read as Parquet: by its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def lines(path: Path) -> Iterator[str]:
    """Lines of a text file without their ends, none of them endless.

    Raises
    ------
    DataError
        If it cannot be read, is no text in UTF-8, holds binary data or a line that never ends.
    """
    regular(path, DataError)
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            for line in _bounded(handle, shown(path)):
                yield line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{shown(path)}: no text in UTF-8; unpack or convert it") from None
    except OSError as fault:
        raise DataError(f"{shown(path)}: cannot be read: {reason(fault)}") from None


def _bounded(handle: TextIO, origin: str) -> Iterator[str]:
    number = 0
    while line := handle.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"{origin}: line {number} has over {LONGEST_LINE:,} characters; is it a table?"
            )
        if "\0" in line:
            raise DataError(f"{origin}: line {number} holds binary data; give a text file")
        yield line


def columns(path: Path) -> list[str]:
    """Names of the columns of a CSV or Parquet file, blanks around them removed.

    Raises
    ------
    DataError
        If the file is empty or no table, has another delimiter, or two columns of one name.
    """
    names = _parquet_columns(path) if is_parquet(path) else _checked_header(path, *_head(path))
    for name in names:
        if name and names.count(name) > 1:
            raise DataError(f"{shown(path)}: two columns named {name!a}; keep one")
    return names


def _head(path: Path) -> tuple[list[str], str]:
    """Cells and text of the first line that is not blank."""
    for line in lines(path):
        if line.lstrip().startswith(("{", "[", "<")):
            raise DataError(f"{shown(path)}: is JSON or a page, not a table; give a CSV")
        if line.strip():
            try:
                return next(csv.reader([line], skipinitialspace=True)), line
            except csv.Error as fault:
                raise DataError(f"{shown(path)}: not a CSV table: {reason(fault)}") from None
    raise DataError(f"{shown(path)}: the file is empty; give a table with a header")


def _checked_header(path: Path, cells: Sequence[str], line: str) -> list[str]:
    for rival in RIVALS:
        if line.count(rival) > line.count(","):
            raise DataError(
                f"{shown(path)}: its columns are separated by {rival!r}, not by commas; "
                "write it with commas, and points in its numbers"
            )
    return [cell.strip() for cell in cells]


def frames(path: Path, *, skip: int = 0) -> Iterator[pd.DataFrame]:
    """Table of a CSV or Parquet file, block by block.

    Parameters
    ----------
    path : Path
        The file; its cells are text if it is a CSV.
    skip : int
        Rows under the header that are none, such as a line of units.

    Yields
    ------
    DataFrame, dims (row,)
        Its index is the number of the row in the file, from 1 on; [units of the file].

    Raises
    ------
    DataError
        If the file is no table, or names the row with too few or too many cells.
    """
    names = columns(path)
    blocks = _parquet(path) if is_parquet(path) else _csv(path, names)
    empty = True
    for block in blocks:
        block = block[block.index > skip]  # noqa: PLW2901
        empty = empty and block.empty
        if not block.empty:
            yield block
    if empty:
        raise DataError(f"{shown(path)}: the table holds no row; give at least one measurement")


def _csv(path: Path, names: Sequence[str]) -> Iterator[pd.DataFrame]:
    size = max(CELLS // len(names), 1)
    rows = _cells(path, lines(path), len(names))
    number = 1
    while block := list(itertools.islice(rows, size)):
        index = pd.RangeIndex(number, number + len(block))
        yield pd.DataFrame(block, columns=list(names), index=index, dtype=object)
        number += len(block)


def _cells(path: Path, source: Iterable[str], width: int) -> Iterator[list[str]]:
    """Cells of the rows under the header; blank lines are none."""
    reader = csv.reader((line + "\n" for line in source), strict=True, skipinitialspace=True)
    number, short = -1, 0
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip() and width > 1):
                continue
            number += 1
            if number < 1:
                continue
            if short:
                raise DataError(f"{_short(path, number - 1, short, width)}; fill or drop them")
            if len(cells) > width:
                raise DataError(
                    f"{shown(path)}: row {number} has {len(cells)} cells, the header {width}; "
                    "name every column, and quote what holds a comma"
                )
            short = len(cells) if len(cells) < width else 0
            if not short:
                yield cells
    except csv.Error as fault:
        what = reason(fault)
        remedy = "is it cut off? copy it again" if "end of data" in what else "is it a CSV?"
        raise DataError(f"{shown(path)}: row {number + 1}: {what}; {remedy}") from None
    if short:
        raise DataError(f"{_short(path, number, short, width)}: it is cut off; copy it again")


def _short(path: Path, number: int, cells: int, width: int) -> str:
    return f"{shown(path)}: row {number} has {cells} of {width} cells"


def _parquet_file(path: Path) -> Any:
    regular(path, DataError)
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(
            f"{shown(path)}: reading Parquet needs pyarrow: pip install 'm2bayes[parquet]'"
        ) from None
    try:
        return ParquetFile(path)
    except (OSError, ValueError) as fault:  # what Arrow raises are subclasses of these
        raise DataError(
            f"{shown(path)}: no Parquet file: {reason(fault)}; is it cut off? copy it again"
        ) from None


def _parquet_columns(path: Path) -> list[str]:
    return [str(name) for name in _parquet_file(path).schema_arrow.names]


def _parquet(path: Path) -> Iterator[pd.DataFrame]:
    file = _parquet_file(path)
    number = 1
    size = max(CELLS // max(len(file.schema_arrow.names), 1), 1)
    try:
        for batch in file.iter_batches(batch_size=size):
            block = batch.to_pandas()
            block.index = pd.RangeIndex(number, number + len(block))
            yield block
            number += len(block)
    except (OSError, ValueError, TypeError, NotImplementedError) as fault:
        raise DataError(
            f"{shown(path)}: row {number} and on cannot be read: {reason(fault)}; copy it again"
        ) from None


def document(path: Path) -> dict[str, Any]:
    """JSON object of a file of ordinary size.

    Raises
    ------
    DataError
        If it is too large, cut off, or no JSON object.
    """
    regular(path, DataError)
    if path.stat().st_size > MOST_JSON:
        raise DataError(
            f"{shown(path)}: is larger than {MOST_JSON // 2**20} MiB; save it without the records "
            "of single requests"
        )
    return read_json(path, DataError)
