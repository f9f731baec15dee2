"""Vidur's light kernels as a fit takes them: a designed subset, replicates as their median."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from m2bayes.database import Database
from m2bayes.vidur import read_operators

CELL = ["kernel", "tokens", "width"]
SPACED = 9  # token counts of a profile that are kept, evenly spaced in the log, and as many linear


def vidur_light(database: Database, paths: Sequence[Path], sku: str) -> pd.DataFrame:
    """Light kernels of the profiles of one card, a designed subset of their cells.

    Parameters
    ----------
    database : Database
        Without effect.
    paths : sequence of Path
        ``mlp.csv`` of Vidur, one an LLM.
    sku : str
        Full name of the card.

    Returns
    -------
    DataFrame, dims (row,), one row a cell
        ``op_time`` [s], the median over its replicates in all files; ``tokens`` [token] are those
        of `spaced_counts` in a file, ``width`` [element] any.
    """
    return designed(vidur_cells(paths, sku))


def vidur_cells(paths: Sequence[Path], sku: str) -> pd.DataFrame:
    """Rows of several profiles as `m2bayes.vidur.read_operators` gives them, and their ``file``.

    Times [s], widths [element], number of the file [1]; dims (row,).
    """
    parts = [read_operators(path, sku=sku).assign(file=i) for i, path in enumerate(paths)]
    return pd.concat(parts, ignore_index=True)


def designed(rows: pd.DataFrame) -> pd.DataFrame:
    """Median time [s] of each cell whose token count a file keeps, dims (cell,).

    Parameters
    ----------
    rows : DataFrame, dims (row,)
        From `vidur_cells`.
    """
    kept = [
        own[own["tokens"].isin(spaced_counts(own["tokens"].to_numpy()))][CELL]
        for _, own in rows.groupby("file")
    ]
    cells = pd.concat(kept).drop_duplicates()
    labels = ["sku", "backend", "version", *CELL]
    medians = rows.groupby(labels, as_index=False)["op_time"].median()
    return medians.merge(cells, on=CELL)


def spaced_counts(tokens: np.ndarray) -> list[int]:
    """Token counts of a profile nearest to `SPACED` even steps in the log and as many linear.

    Parameters
    ----------
    tokens : ndarray, dims (row,)
        Token counts that there are [token], repeated as they may be.

    Examples
    --------
    >>> spaced_counts(np.arange(1, 4097))[:8]
    [1, 3, 8, 23, 64, 181, 512, 513]
    """
    counts = np.unique(tokens).astype(float)
    even = np.linspace(counts[0], counts[-1], SPACED)
    log = np.geomspace(counts[0], counts[-1], SPACED)
    near = [counts[np.abs(counts - wanted).argmin()] for wanted in even]
    near += [counts[np.abs(np.log(counts / wanted)).argmin()] for wanted in log]
    return sorted({int(count) for count in near})
