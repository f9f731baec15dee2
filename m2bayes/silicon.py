"""Served runs of a public sample: which card, engine, LLM and load, and the times it reports."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from m2bayes.errors import MissingError
from m2bayes.outside import numbers

PACKAGE, FILE = "aiconfigurator_core", "silicon_sample.csv"
REMEDY = "install aiconfigurator-core 0.12.0: pip install 'm2bayes[recipes]'"
TEXT = ("id", "silicon_data_source", "backend", "model_path", "system", "precision", "mode")
NUMBERS = ("isl", "osl", "tp_size", "batch_size", "silicon_tpot_ms", "silicon_ttft_ms")
MARKS = (r"silicon_concurrency=(\d+)", r"_c(\d+)_")  # of the concurrency, in source and id
MILLI = 1e-3


def sample_file() -> Path:
    """Path of the sample in its package, which is not imported.

    Raises
    ------
    MissingError
        If the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(f"{FILE}: package {PACKAGE} is not installed; {REMEDY}")
    return Path(spec.submodule_search_locations[0]) / "systems" / FILE


def served_runs(
    file: Path, *, skus: Mapping[str, str], llms: Mapping[str, str], precision: str
) -> pd.DataFrame:
    """Runs of one engine that prefills and decodes, whose concurrency is told.

    Parameters
    ----------
    file : Path
        From `sample_file`.
    skus, llms : mapping
        Names of the database by those of the sample; runs of others are left out.
    precision : str
        As the sample writes it.

    Returns
    -------
    DataFrame, dims (run,)
        ``line`` in the file, from 2; ``sku``, ``engine``, ``llm``, ``tp`` [1], ``isl``, ``osl``
        [token], ``concurrency`` [1], ``tpot``, ``ttft`` [s].

    Raises
    ------
    DataError
        If the table cannot be read.
    """
    table = numbers(file, (*TEXT, *NUMBERS), text=TEXT, remedy=REMEDY)
    table = table.assign(line=table.index + 2)
    kept = (table["mode"] == "agg") & (table["precision"] == precision)
    kept &= table["system"].isin(skus) & table["model_path"].isin(llms)
    runs = table[kept]
    told = runs["silicon_data_source"].str.extract(MARKS[0])[0]
    told = told.fillna(runs["id"].str.extract(MARKS[1])[0]).astype(float)
    runs = runs[told.notna()].assign(concurrency=told.dropna())
    return pd.DataFrame(
        {
            "line": runs["line"],
            "sku": runs["system"].map(skus),
            "engine": runs["backend"],
            "llm": runs["model_path"].map(llms),
            **{name: runs[name].astype(int) for name in ("isl", "osl", "concurrency")},
            "tp": runs["tp_size"].astype(int),
            "tpot": runs["silicon_tpot_ms"] * MILLI,
            "ttft": runs["silicon_ttft_ms"] * MILLI,
        }
    ).reset_index(drop=True)
