"""Other projects' measured engine steps, read where the user has them, as tidy tables in SI units.

None of these files is shipped. Whatever a reader cannot use, it refuses with one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from m2bayes._files import read_json, regular, shown
from m2bayes.errors import DataError
from m2bayes.llm import LLM
from m2bayes.residency import kv_bytes_per_token, weight_bytes

ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}  # those that run in 16 bit there
USABLE, RESERVE = 0.9, 1.5e9  # [1], [byte] what an engine leaves of memory for weights and KV cache
SLOWEST = 1e5  # [s] longer than any run of these files
BRANCHES = {"decode, small batch": "decoding_smallbs", "decode, large batch": "decoding_largebs"}

_RUNS = {
    "Num of Hardware": "gpus",
    "Input Output Length": "length",
    "Batch Size": "batch",
    "Latency": "time",
}
_CELLS = {
    "tp_world_size": "tp",
    "batch_size": "batch",
    "input_len": "length",
    "output_len": "output",
    "avg_prefill_time_usage": "prefill",
    "avg_decoding_time_usage": "decode",
}


def generation_runs(
    path: Path, *, skus: Mapping[str, str], llms: Mapping[str, str]
) -> pd.DataFrame:
    """Whole generations on one GPU in LLM-Inference-Bench's ``All_results.csv``.

    Every sequence of a batch brings a prompt of `length` tokens and gets as many new ones.

    Parameters
    ----------
    path : Path
        The file, times [s].
    skus, llms : Mapping
        SKU of each ``Hardware``, LLM of each ``Model``; rows of others are left out, and so are
        engines other than `ENGINES` and runs on several GPUs.

    Returns
    -------
    DataFrame, dims (run,)
        ``sku``, ``engine``, ``llm``, ``length`` [token], ``batch`` [1], ``time`` [s]; repeated
        runs included, sorted.

    Raises
    ------
    DataError
        If a column is missing, no row is left, or a number of a row that is kept is impossible.
    """
    labels = {"Hardware": skus, "Framework": ENGINES, "Model": llms}
    table = _table(path, [*labels, *_RUNS])
    kept = table[[*labels, *_RUNS]]
    for column, known in labels.items():
        kept = kept[kept[column].isin(list(known))]
    kept = _checked(kept, ("Num of Hardware", "Input Output Length", "Batch Size"), path)
    kept = _positive(kept, "Latency", path)
    kept = kept[kept["Num of Hardware"] == 1]
    if kept.empty:
        raise DataError(f"{shown(path)}: no run of {', '.join(llms)} on one GPU; is it the file?")
    renamed = kept.rename(columns=_RUNS).drop(columns="gpus")
    names = {"Hardware": "sku", "Framework": "engine", "Model": "llm"}
    for column, name in names.items():
        renamed[name] = renamed[column].map(labels[column])
    columns = ["sku", "engine", "llm", "length", "batch", "time"]
    return renamed[columns].sort_values(columns, ignore_index=True)


def overflow(runs: pd.DataFrame, llms: Mapping[str, LLM], memory: Mapping[str, float]) -> pd.Series:
    """Whether a run's weights and KV cache exceed what an engine leaves of the GPU's memory.

    Such a run swaps, or waits and takes its batch in parts: no step model describes it.

    Parameters
    ----------
    runs : DataFrame
        From `generation_runs`.
    llms : Mapping
        Shapes by the names in the table.
    memory : Mapping
        Memory of each SKU [byte].

    Returns
    -------
    Series of bool, dims (run,)
        True where weights + KV of 2 · length · batch tokens > 0.9 · memory − 1.5 GB.
    """
    weights = runs["llm"].map({name: weight_bytes(llm) for name, llm in llms.items()})
    token = runs["llm"].map({name: kv_bytes_per_token(llm) for name, llm in llms.items()})
    room = USABLE * runs["sku"].map(dict(memory)).astype(float) - RESERVE
    needed = weights + 2.0 * runs["length"] * runs["batch"] * token
    return (needed > room).rename("overflow")


def distserve_profile(path: Path, *, llms: Mapping[str, str]) -> pd.DataFrame:
    r"""Coefficients of step times that DistServe fitted to an engine, by LLM and parallelism.

    A prefill takes :math:`a + b\sum l + c\sum l^2` over the prompts' lengths, a decode step
    :math:`a + b\sum l + c\,n` over the contexts of its n sequences.

    Parameters
    ----------
    path : Path
        One ``profiler-….json``, coefficients [ms].
    llms : Mapping
        LLM of each key of the file; others are left out.

    Returns
    -------
    DataFrame, dims (fit,)
        ``llm``, ``tp`` [1], ``phase`` ("prefill" and the keys of `BRANCHES`), ``a`` [s], ``b``
        [s/token], ``c`` [s/token²], of decode [s/sequence]; ``threshold``, the batch [1] up to
        which the small branch holds.

    Raises
    ------
    DataError
        If no LLM is there, or a coefficient is missing or no number.
    """
    content = read_json(path, DataError)
    rows = []
    for key, llm in llms.items():
        for tp, held in _object(content.get(key, {}), path, key).items():
            where = f"{key} tp {tp}"
            entry = _object(held, path, where)
            if not tp.isdecimal():
                raise DataError(f"{shown(path)}: {key}: {tp!r} is no number of GPUs")
            threshold = entry.get("decoding_large_small_bs_threshold")
            if not _number(threshold):
                raise DataError(f"{shown(path)}: {where}: no decoding_large_small_bs_threshold")
            for phase, name in {"prefill": "prefill", **BRANCHES}.items():
                a, b, c = _coefficients(entry.get(name), path, f"{where} {name}")
                row = {"llm": llm, "tp": int(tp), "phase": phase, "a": a, "b": b, "c": c}
                rows.append(row | {"threshold": float(threshold)})
    if not rows:
        raise DataError(f"{shown(path)}: holds none of {', '.join(llms)}; is it the file?")
    return pd.DataFrame(rows).sort_values(["llm", "tp", "phase"], ignore_index=True)


def decode_time(profile: pd.DataFrame, batch: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Decode time that a profile implies [s], dims (cell,), for sequences of equal context.

    Parameters
    ----------
    profile : DataFrame
        Rows of one LLM and parallelism from `distserve_profile`.
    batch, context : ndarray, dims (cell,)
        Sequences [1] and cached tokens of each [token].
    """
    rows = profile.set_index("phase")
    small, large = (rows.loc[f"decode, {size} batch"] for size in ("small", "large"))
    both = [r["a"] + r["b"] * batch * context + r["c"] * batch for r in (small, large)]
    return np.where(batch < small["threshold"], *both)


def huggyllama_rows(path: Path) -> pd.DataFrame:
    """Forward times of Llama-7B in Learneraf's ``read_db.csv``; the GPU is not named.

    Rows of the other LLMs are left out: their prefill and decode times are broken.

    Parameters
    ----------
    path : Path
        The file, times [ms].

    Returns
    -------
    DataFrame, dims (cell,)
        ``tp``, ``batch`` [1], ``length`` of each prompt and ``output`` [token]; ``prefill``, of
        the whole batch, and ``decode``, the mean over the output's steps [s].

    Raises
    ------
    DataError
        If a column is missing, no row is left, or a number of a row that is kept is impossible.
    """
    table = _table(path, ["tag", *_CELLS])
    kept = table[table["tag"].astype(str).str.startswith("huggyllama")][list(_CELLS)]
    if kept.empty:
        raise DataError(f"{shown(path)}: no row has a tag huggyllama; is it the file?")
    times = ("avg_prefill_time_usage", "avg_decoding_time_usage")
    kept = _checked(kept, [name for name in _CELLS if name not in times], path)
    for name in times:
        kept = _positive(kept, name, path)
    rows = kept.rename(columns=_CELLS)
    rows[["prefill", "decode"]] /= 1e3
    return rows.sort_values(list(_CELLS.values()), ignore_index=True)


def layer_times(path: Path) -> pd.DataFrame:
    """Times of the operations of one layer in LLMServingSim's ``…_dense.csv``.

    Parameters
    ----------
    path : Path
        The file, times [µs].

    Returns
    -------
    DataFrame, dims (row,)
        ``layer`` (text), ``tokens`` [token], ``time`` [s]; sorted.

    Raises
    ------
    DataError
        If a column is missing, no row is there, or a number is impossible.
    """
    table = _table(path, ["layer", "tokens", "time_us"])
    if table.empty:
        raise DataError(f"{shown(path)}: the table holds no row; is it the file?")
    table = _positive(_checked(table, ["tokens"], path), "time_us", path)
    rows = table.assign(time=table["time_us"] / 1e6)[["layer", "tokens", "time"]]
    return rows.sort_values(["layer", "tokens"], ignore_index=True)


def _table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a CSV whole, or one line that says why not."""
    regular(path, DataError)
    try:
        table = pd.read_csv(path, compression=None)
    except (OSError, ValueError) as fault:
        text = " ".join(str(fault).split())
        raise DataError(f"{shown(path)}: not a CSV table: {text}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise DataError(f"{shown(path)}: no column {', '.join(missing)}; is it the file?")
    return table


def _checked(table: pd.DataFrame, columns: Sequence[str], path: Path) -> pd.DataFrame:
    """Columns as whole numbers of at least 1."""
    out = table.copy()
    for name in columns:
        number = pd.to_numeric(table[name], errors="coerce")
        _refuse(table[name], ~(number.between(1, 1e8) & (number % 1 == 0)), path, "a whole number")
        out[name] = number.astype(int)
    return out


def _positive(table: pd.DataFrame, name: str, path: Path) -> pd.DataFrame:
    """Return a column as times that a run can take."""
    number = pd.to_numeric(table[name], errors="coerce")
    _refuse(table[name], ~((number > 0) & (number < SLOWEST)), path, "a time above zero")
    return table.assign(**{name: number.astype(float)})


def _refuse(column: pd.Series, bad: pd.Series, path: Path, wanted: str) -> None:
    """Raise for the first row where `bad` holds; rows are those below the header, from 1."""
    if bad.any():
        at = int(np.flatnonzero(bad.to_numpy())[0])
        row, given = column.index.to_numpy()[at] + 1, ascii(str(column.iloc[at])[:60])
        raise DataError(f"{shown(path)}: row {row}, column {column.name}: {given} is not {wanted}")


def _object(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{shown(path)}: {where}: expected an object of coefficients")
    return value


def _coefficients(value: Any, path: Path, where: str) -> list[float]:
    """Three coefficients in ms, as s."""
    if not isinstance(value, list) or len(value) != 3 or not all(map(_number, value)):
        raise DataError(f"{shown(path)}: {where}: expected three numbers")
    return [float(v) / 1e3 for v in value]


def _number(value: Any) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
