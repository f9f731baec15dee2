"""Other projects' files, where the user keeps them: none of them is shipped."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from m2bayes.errors import DataError, MissingError

VARIABLE = "M2BAYES_EXTERNAL_DATA"


def outside(suite: str, folder: str) -> Path:
    """Where the user keeps one project's files, or a MissingError that says how to name it."""
    found = os.environ.get(VARIABLE)
    if not found or not (Path(found) / folder).is_dir():
        raise MissingError(
            f"suite {suite} reads {folder}'s tables: set {VARIABLE} to the folder of {folder}/"
            + (f", it is not in {found}" if found else "")
        )
    return Path(found) / folder


def numbers(
    file: Path, columns: Collection[str], *, text: Collection[str] = (), remedy: str
) -> pd.DataFrame:
    """Read a table whose named columns hold numbers.

    Parameters
    ----------
    file : Path
        A CSV.
    columns : collection of str
        What is read of it.
    text : collection of str
        Those of `columns` that hold text.
    remedy : str
        Ends every complaint.

    Returns
    -------
    DataFrame, dims (row,)
        As it is in the file [units of the file].

    Raises
    ------
    DataError
        If the file is not there or is no table, or a column is missing, empty or of another kind.
    """
    if not os.path.isfile(file):
        raise MissingError(f"{file}: no such file; {remedy}")
    try:
        found = pd.read_csv(file, compression=None)
    except (OSError, ValueError) as fault:
        raise DataError(
            f"{file}: not a CSV table: {' '.join(str(fault).split())}; {remedy}"
        ) from None
    for name in columns:
        if name not in found.columns:
            raise DataError(f"{file}: no column {name}; {remedy}")
        if found.empty:
            raise DataError(f"{file}: no row under column {name}; {remedy}")
        if name not in text and not pd.api.types.is_numeric_dtype(found[name]):
            raise DataError(f"{file}: column {name} holds no numbers; {remedy}")
    return found
