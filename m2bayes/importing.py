"""Tables of other projects, turned where the user has them into tables that a fit reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from m2bayes._files import read_json, sha256, shown, write_whole
from m2bayes.database import Database
from m2bayes.errors import DataError, RecordError, UnknownNameError
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.host import EAGER, kernel_count
from m2bayes.mechanism.laws import LAWS
from m2bayes.residency import weight_bytes
from m2bayes.traces import decode_time, distserve_profile
from m2bayes.vidur import read_operators

CELL = ["kernel", "tokens", "width"]
SPACED = 9  # token counts of a profile that are kept, evenly spaced in the log, and as many linear
BATCHES, CONTEXT = (1, 8, 32, 64), 128  # [1], [token] of each sequence: little work for the GPU
ENGINE, COMMIT = "vllm", "82831f1"  # whose profile says where the host bounds; of the files
HOST_BOUND = 1 / 3  # of a step: no more than this takes the reading of the weights

Reader = Callable[[Database, Sequence[Path], str], pd.DataFrame]


@dataclass(frozen=True)
class Format:
    """One way to read other projects' files.

    Parameters
    ----------
    law : str
        Of the kernels that the table holds, a key of `m2bayes.mechanism.laws.LAWS`.
    read : callable
        ``(database, paths, sku) ->`` table.
    """

    law: str
    read: Reader


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


def distserve_host(database: Database, paths: Sequence[Path], sku: str) -> pd.DataFrame:
    """Decode steps that the host bounds, from the coefficients fitted to an eager engine.

    A configuration counts where reading the weights at the datasheet's bandwidth takes at most
    `HOST_BOUND` of the step of one sequence: the rest of the time nothing but launches explains.
    The engine fuses less than `m2bayes.mechanism.host.kernel_count` says and launches more; the
    count keeps its one definition, and ``eager_launch`` of the engine takes up the difference.

    Parameters
    ----------
    database : Database
        Of datasheets and LLMs.
    paths : sequence of Path
        ``profiler-….vllm….json`` of DistServe; several profiles are replicates.
    sku : str
        Full name of the card.

    Returns
    -------
    DataFrame, dims (row,)
        ``kernels``, ``sequences``, ``mode`` [1], ``op_time`` [s] of a step with 128 cached tokens
        a sequence.

    Raises
    ------
    DataError
        If a file is no profile of that engine, or the host bounds none of its configurations.
    """
    bandwidth = float(database.datasheets([sku])["peak_bandwidth"].item())
    rows = [row for path in paths for row in _bound_steps(database, path, bandwidth)]
    if not rows:
        raise DataError(f"{_several(paths)}: the host bounds no step of any LLM there")
    return pd.DataFrame(rows).assign(sku=sku, backend=ENGINE, version=COMMIT)


def _bound_steps(database: Database, path: Path, bandwidth: float) -> list[dict[str, float]]:
    """Rows of one profile."""
    if ENGINE not in path.name.lower().split("."):
        raise DataError(f"{shown(path)}: is no profile of {ENGINE}; give profiler-….{ENGINE}.json")
    rows = []
    profile = distserve_profile(path, llms=_llms(database, path))
    for _, own in profile.groupby(["llm", "tp"]):
        llm, tp = database.llm(str(own["llm"].iloc[0])), int(own["tp"].iloc[0])
        times = decode_time(own, np.array(BATCHES), np.full(len(BATCHES), CONTEXT))
        # its matrices may not divide by this TP, but their bytes do
        if weight_bytes(llm) / tp / bandwidth > HOST_BOUND * times[0]:
            continue
        kernels = kernel_count(llm.layers, shared=tp > 1)
        rows += [
            {"kernels": kernels, "sequences": batch, "mode": EAGER, "op_time": time}
            for batch, time in zip(BATCHES, times, strict=True)
        ]
    return rows


def _llms(database: Database, path: Path) -> dict[str, str]:
    """LLM of the database behind each key of a profile, which is a repository's name."""
    found = {}
    for key in read_json(path, DataError):
        try:
            found[key] = database.llm(key.rpartition("/")[2] or key).name
        except UnknownNameError:
            continue
    if not found:
        raise DataError(f"{shown(path)}: holds no LLM of m2bayes list llms; is it the file?")
    return found


def _several(paths: Sequence[Path]) -> str:
    return ", ".join(shown(path) for path in paths)


FORMATS = {
    "vidur-light": Format("light_time", vidur_light),
    "distserve-host": Format("host_time", distserve_host),
}


def imported(
    database: Database, form: str, paths: Sequence[str], *, sku: str | None
) -> pd.DataFrame:
    """Read files of one format as the table that a fit reads.

    Parameters
    ----------
    database : Database
        Of datasheets and LLMs.
    form : str
        A key of `FORMATS`.
    paths : sequence of str
        Files of one card.
    sku : str or None
        Its name or alias; the files do not say.

    Returns
    -------
    DataFrame, dims (row,)
        Columns of the law, ``op_time`` [s], checked and sorted.

    Raises
    ------
    DataError, UnknownNameError
        If a format or card is unknown, or a file cannot be read.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if sku is None:
        raise DataError(f"{form}: its files do not name the card; add --sku NAME")
    files = [Path(path) for path in paths]
    for file in files:
        if sum(file.resolve() == other.resolve() for other in files) > 1:
            raise DataError(f"{shown(file)}: is given twice; give each file once")
    full = str(database.datasheets([sku])["sku"].item())
    law = LAWS[FORMATS[form].law]
    table = FORMATS[form].read(database, files, full)
    return checked(table, origin=_several(files), law=law)


def write(table: pd.DataFrame, target: Path, sources: Sequence[str]) -> dict[str, Any]:
    """Write an imported table, the whole file or none of it, and say what it is.

    Parameters
    ----------
    table : DataFrame, dims (row,)
        From `imported`.
    target : Path
        From `m2bayes.output.file_to_write`.
    sources : sequence of str
        The files that it comes from, which are never overwritten.

    Returns
    -------
    dict
        ``rows`` [1], ``columns``, ``sources`` with the SHA-256 of each, and ``sha256``: that of
        the file written, and what a posterior records of the table.

    Raises
    ------
    DataError, RecordError
        If the file cannot be written or is one of its sources.
    """
    if any(Path(source).resolve() == target for source in sources):
        raise DataError(f"--out {shown(target)}: is one of the files to read; name another")
    hashes = [{"file": source, "sha256": sha256(Path(source))} for source in sources]
    content = table.to_csv(index=False, float_format="%.7g").encode()
    write_whole(target, content)
    if sha256(target) != content_hash(table):
        raise RecordError(f"{shown(target)}: was changed while it was written; import again")
    return {
        "out": str(target),
        "rows": len(table),
        "columns": [str(name) for name in table.columns],
        "sha256": content_hash(table),
        "sources": hashes,
    }
