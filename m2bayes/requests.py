"""Request logs of real engines, in LLMServingSim's form, as tidy tables in SI units.

None of these files is shipped. Whatever a reader cannot use, it refuses with one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from m2bayes._files import read_json, reason, regular, shown
from m2bayes.errors import DataError
from m2bayes.outside import numbers

_LENGTHS = {"input_toks": "prompt", "output_toks": "output"}
_EVENTS = {
    "queued_ts": "arrival",
    "scheduled_ts": "scheduled",
    "first_token_ts": "first_token",
    "last_token_ts": "finish",
}
_SERIES = ("t", "gen_throughput", "running", "waiting")


@dataclass(frozen=True)
class EngineSettings:
    """How an engine was set, as its log's ``…_meta.json`` says.

    Parameters
    ----------
    llm, device, version : str
        LLM and GPU as the engine names them, and its own version; "" where nothing is said.
    max_num_seqs : int
        Sequences in the batch at most [1].
    token_budget : int
        Tokens of one step at most [token].
    kv_tokens : int or None
        Tokens that the KV cache holds [token]; None where nothing is said.
    block : int
        Tokens of one block of the cache [token].
    """

    llm: str
    device: str
    version: str
    max_num_seqs: int
    token_budget: int
    kv_tokens: int | None = None
    block: int = 16


def request_log(path: Path) -> pd.DataFrame:
    """Requests of one run, in the order of their arrival at the engine's queue.

    Parameters
    ----------
    path : Path
        ``…_requests.jsonl``: one object a line, times of the engine's clock [s].

    Returns
    -------
    DataFrame, dims (request,)
        ``prompt``, ``output`` [token]; ``arrival``, ``scheduled``, ``first_token``, ``finish``,
        from the first arrival [s].

    Raises
    ------
    DataError
        Names the line, and what is wrong with it.
    """
    regular(path, DataError)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{shown(path)}: cannot be read: {reason(fault)}") from None
    rows = [_request(line, f"{shown(path)} line {i}") for i, line in enumerate(lines, 1) if line]
    if not rows:
        raise DataError(f"{shown(path)}: holds no request; is it the file?")
    table = pd.DataFrame(rows)
    times = list(_EVENTS.values())
    table[times] -= table["arrival"].min()
    return table.sort_values("arrival", kind="stable", ignore_index=True)


def engine_of(path: Path) -> EngineSettings:
    """Settings of the engine that wrote a log.

    Parameters
    ----------
    path : Path
        ``…_meta.json``, sizes [token] and [1].

    Returns
    -------
    EngineSettings, no dims
        Of its limits.

    Raises
    ------
    DataError
        If a limit is missing, or no whole number of at least 1.
    """
    content = read_json(path, DataError)
    where = shown(path)
    given = _mapping(content, "engine_kwargs")
    cache = _mapping(content, "kv_cache")
    limits = {key: _limit(given, key, where) for key in ("max_num_seqs", "max_num_batched_tokens")}
    held = {key: _limit(cache, key, where) for key in ("num_kv_tokens", "block_size") if cache}
    return EngineSettings(
        llm=str(content.get("model", "")),
        device=str(_mapping(content, "hardware").get("device_name", "")),
        version=str(content.get("vllm_version", "")),
        max_num_seqs=limits["max_num_seqs"],
        token_budget=limits["max_num_batched_tokens"],
        kv_tokens=held.get("num_kv_tokens"),
        block=held.get("block_size", EngineSettings.block),
    )


def engine_series(path: Path) -> pd.DataFrame:
    """What an engine said of itself, tick by tick.

    Parameters
    ----------
    path : Path
        ``…_timeseries.csv``.

    Returns
    -------
    DataFrame, dims (tick,)
        ``time`` [s], ``throughput`` of generated tokens [token/s], ``running`` and ``waiting``
        requests [1].

    Raises
    ------
    DataError
        If the file is not there, or a column is missing or holds no numbers.
    """
    found = numbers(path, _SERIES, remedy="fetch casys-kaist/LLMServingSim's logs")
    names = {"t": "time", "gen_throughput": "throughput"}
    return found[list(_SERIES)].rename(columns=names)


def _request(line: str, where: str) -> dict[str, float]:
    """One request, with the times of its events in the order in which they must come."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{where}: not valid JSON: {reason(fault)}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with {', '.join(_LENGTHS | _EVENTS)}")
    found: dict[str, float] = {name: _limit(row, key, where) for key, name in _LENGTHS.items()}
    before = -math.inf
    for key, name in _EVENTS.items():
        value = row.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not number or not math.isfinite(value):
            raise DataError(f"{where}: {key} is {ascii(str(value))[:60]}, not a time")
        if value < before:
            raise DataError(f"{where}: {key} comes before the event that must precede it")
        found[name] = before = float(value)
    return found


def _limit(content: Mapping[str, Any], key: str, where: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1e9:
        said = "missing" if value is None else f"{ascii(str(value))[:60]}"
        raise DataError(f"{where}: {key} is {said}; expected a whole number of at least 1")
    return value


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Object under a key; empty where there is none."""
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}
