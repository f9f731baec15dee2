"""DistServe's fitted coefficients as steps that the host bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from m2bayes._files import read_json, shown
from m2bayes.database import Database
from m2bayes.errors import DataError, UnknownNameError
from m2bayes.mechanism.host import EAGER, kernel_count
from m2bayes.residency import weight_bytes
from m2bayes.traces import decode_time, distserve_profile

BATCHES, CONTEXT = (1, 8, 32, 64), 128  # [1], [token] of each sequence: little work for the GPU
ENGINE, COMMIT = "vllm", "82831f1"  # whose profile says where the host bounds; of the files
HOST_BOUND = 1 / 3  # of a step: no more than this takes the reading of the weights


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
