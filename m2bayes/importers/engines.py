"""Results of load generators: vLLM's benchmarks, GuideLLM, AIPerf, as rows of served runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from m2bayes._files import shown
from m2bayes._spec import Step
from m2bayes.errors import DataError, WorkloadError
from m2bayes.importers._parts import UNKNOWN, Ask, Part, hashes, placed
from m2bayes.importers._rows import document

MS = 1e-3  # [s]
# what a row may hold, in SI units; NaN where the file does not say
NUMBERS = (
    "tp",
    "concurrency",
    "request_rate",
    "input_tokens",
    "output_tokens",
    "requests",
    "ttft",
    "tpot",
    "e2e_time",
)
BATCH = ("batch", "input_tokens", "output_tokens")  # what a latency run does not say
MOST = 10**6  # of what is counted in whole numbers
TEXTS = ("sku", "backend", "version", "llm", "dtype")
SERVE = ("completed", "total_input_tokens", "total_output_tokens")
KNOWN_SERVE = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
    "total_input_tokens", "total_output_tokens",
}  # fmt: skip


def read_vllm(path: Path, ask: Ask) -> Part:
    """Read what ``vllm bench serve --save-result`` or ``vllm bench latency --output-json`` wrote.

    Parameters
    ----------
    path : Path
        JSON: times of requests in milliseconds, of whole batches in seconds.
    ask : Ask
        The card, ``version`` and ``tp``; of a latency run also ``batch``, ``input_tokens`` and
        ``output_tokens``: the file does not say.

    Returns
    -------
    Part
        One row [s], dims (measurement,); ``workload`` and ``step_time`` are the decode step that
        the time per output token stands for, where the number of running requests is known, or
        the prefill step of a whole batch that was asked for one token.

    Raises
    ------
    DataError
        If it is neither, no request was completed, or a needed fact is missing.
    """
    held = document(path)
    if "avg_latency" in held:
        return _latency(held, path, ask)
    missing = [key for key in SERVE if key not in held]
    if missing:
        raise DataError(f"{shown(path)}: no {', '.join(missing)}; give the JSON of vllm bench")
    origin, runs = shown(path), _number(held, "completed", path)
    if not runs >= 1:
        raise DataError(f"{origin}: completed is {runs:g}: no request came through; run it again")
    rate = held.get("request_rate")
    found: dict[str, Any] = {
        "backend": "vllm",
        "llm": str(held.get("model_id") or ask.given.get("llm", "")),
        "concurrency": _number(held, "max_concurrency", path),
        "request_rate": float("inf") if rate == "inf" else _number(held, "request_rate", path),
        "input_tokens": _number(held, "total_input_tokens", path) / runs,
        "output_tokens": _number(held, "total_output_tokens", path) / runs,
        "requests": runs,
        "ttft": _number(held, "median_ttft_ms", path) * MS,
        "tpot": _number(held, "median_tpot_ms", path) * MS,
        "e2e_time": _number(held, "median_e2el_ms", path) * MS,
    }
    rest = {k for k in held if k not in KNOWN_SERVE and "_ms" not in k and "throughput" not in k}
    return _part([found], path, ask, "median_tpot_ms", rest)


def _latency(held: Mapping[str, Any], path: Path, ask: Ask) -> Part:
    missing = [name for name in BATCH if name not in ask.given]
    if missing:
        options = " ".join(f"{name}=…" for name in missing)
        raise DataError(
            f"{shown(path)}: does not say its {', '.join(missing)}; add --given {options}"
        )
    batch, *_ = [_count(ask, name) for name in BATCH]
    runs = held.get("latencies")
    percentiles = held.get("percentiles")
    middle = percentiles.get("50") if isinstance(percentiles, Mapping) else None
    found = {
        "backend": "vllm",
        "llm": ask.given.get("llm", ""),
        "concurrency": batch,
        "requests": len(runs) if isinstance(runs, list) else float("nan"),
        "e2e_time": _number({"percentiles.50": middle}, "percentiles.50", path)
        if middle is not None
        else _number(held, "avg_latency", path),
    }
    return _part(
        [found], path, ask, "avg_latency", set(held) - {"avg_latency", "latencies", "percentiles"}
    )


def read_guidellm(path: Path, ask: Ask) -> Part:
    """Read ``benchmarks.json`` of GuideLLM: one row a benchmark.

    Parameters
    ----------
    path : Path
        Medians of ``…_ms`` in milliseconds, of ``request_latency`` in seconds.
    ask : Ask
        Card, backend, version, llm, tp: the file does not say.

    Returns
    -------
    Part
        Rows [s], dims (measurement,); tpot is the inter-token latency, the first token left out.

    Raises
    ------
    DataError
        If it holds no benchmark.
    """
    held = document(path)
    runs = held.get("benchmarks")
    if not isinstance(runs, list) or not runs or not all(isinstance(r, Mapping) for r in runs):
        raise DataError(f"{shown(path)}: no benchmarks in it; give benchmarks.json of GuideLLM")
    found, rest = [], set(held) - {"benchmarks", "metadata", "args"}
    for number, run in enumerate(runs, start=1):
        metrics = run.get("metrics")
        if not isinstance(metrics, Mapping):
            raise DataError(f"{shown(path)}: benchmark {number} holds no metrics; run it again")
        rest |= set(run) - {"metrics", "requests", "run_stats", "args", "type_", "id_", "run_id"}
        found.append(
            {
                "llm": ask.given.get("llm", ""),
                "concurrency": _middle(metrics, "request_concurrency", path, "mean"),
                "request_rate": _middle(metrics, "requests_per_second", path, "mean"),
                "input_tokens": _middle(metrics, "prompt_token_count", path),
                "output_tokens": _middle(metrics, "output_token_count", path),
                "requests": _middle(metrics, "request_latency", path, "count"),
                "ttft": _middle(metrics, "time_to_first_token_ms", path) * MS,
                "tpot": _middle(metrics, "inter_token_latency_ms", path) * MS,
                "e2e_time": _middle(metrics, "request_latency", path),
            }
        )
    return _part(found, path, ask, "inter_token_latency_ms", rest)


def _middle(metrics: Mapping[str, Any], name: str, path: Path, what: str = "median") -> float:
    """Statistic of the successful requests, NaN where there is none."""
    entry = metrics.get(name)
    for level in ("successful", what):
        entry = entry.get(level) if isinstance(entry, Mapping) else None
    return _number({name: entry}, name, path)


def read_aiperf(path: Path, ask: Ask) -> Part:
    """Read ``profile_export_aiperf.json`` of AIPerf: one row.

    Parameters
    ----------
    path : Path
        Every metric says its unit.
    ask : Ask
        Card, backend, version, tp: the file does not say.

    Returns
    -------
    Part
        One row [s], dims (measurement,); tpot is the inter-token latency.

    Raises
    ------
    DataError
        If it holds no such metric, or one in an unknown unit.
    """
    held = document(path)
    if not isinstance(held.get("request_latency"), Mapping):
        raise DataError(f"{shown(path)}: no request_latency; give profile_export_aiperf.json")
    config = held.get("input_config")
    config = config if isinstance(config, Mapping) else {}
    load, end = config.get("loadgen"), config.get("endpoint")
    load, end = (part if isinstance(part, Mapping) else {} for part in (load, end))
    models = end.get("model_names")
    named = str(models[0]) if isinstance(models, list) and models else ask.given.get("llm", "")
    found = {
        "llm": named,
        "concurrency": _number(load, "concurrency", path),
        "request_rate": _number(load, "request_rate", path),
        "input_tokens": _metric(held, "input_sequence_length", path, time=False),
        "output_tokens": _metric(held, "output_sequence_length", path, time=False),
        "requests": _metric(held, "request_count", path, time=False, what="avg"),
        "ttft": _metric(held, "time_to_first_token", path),
        "tpot": _metric(held, "inter_token_latency", path),
        "e2e_time": _metric(held, "request_latency", path),
    }
    used = {"input_sequence_length", "output_sequence_length", "request_count", "input_config"}
    used |= {"time_to_first_token", "inter_token_latency", "request_latency", "error_summary"}
    return _part([found], path, ask, "inter_token_latency", set(held) - used)


UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _metric(
    held: Mapping[str, Any], name: str, path: Path, *, time: bool = True, what: str = "p50"
) -> float:
    """Median of a metric in SI units, or its only value; NaN where it is missing."""
    entry = held.get(name)
    if not isinstance(entry, Mapping):
        return float("nan")
    unit = str(entry.get("unit", "ms")).strip().lower()
    if time and unit not in UNITS:
        raise DataError(f"{shown(path)}: {name}: unit {unit[:40]!a} is none of {', '.join(UNITS)}")
    value = _number(entry, what if what in entry else "avg", path)
    return value * (UNITS[unit] if time else 1.0)


def _number(held: Mapping[str, Any], key: str, path: Path) -> float:
    """Number of a JSON object, NaN where it is missing or null."""
    value = held.get(key)
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise DataError(f"{shown(path)}: {key} is {str(value)[:60]!a}; give a number")
    return float(value)


def _count(ask: Ask, name: str) -> float:
    """Whole number of things that is given [1]."""
    value = ask.number(name)
    if not (1 <= value <= MOST and value == round(value)):
        raise DataError(f"--given {name}={ask.given[name]}: give a whole number from 1 to {MOST:,}")
    return value


def _part(found: list[dict[str, Any]], path: Path, ask: Ask, column: str, rest: set[str]) -> Part:
    """Rows of served runs with what the user said of them."""
    origin = shown(path)
    if ask.sku is None:
        raise DataError(f"{origin}: does not name the card; add --sku NAME")
    said = {name: ask.number(name) for name in NUMBERS if name in ask.given}
    if "tp" in said:
        said["tp"] = _count(ask, "tp")
    rows = []
    for entry in found:
        row: dict[str, Any] = dict.fromkeys(TEXTS, UNKNOWN) | dict.fromkeys(NUMBERS, float("nan"))
        row |= {name: ask.given[name] for name in TEXTS if name in ask.given}
        row |= said | {k: v for k, v in entry.items() if v != "" and not pd.isna(v)}
        row["sku"] = ask.sku
        rows.append(row | _step(row))
    table = pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1))
    key = [*TEXTS, "tp", "concurrency", "request_rate", "input_tokens", "output_tokens"]
    raw = hashes(table, origin, key, ())
    return Part("served", placed(table, origin, column), raw, frozenset(rest), key=tuple(key))


def _step(row: Mapping[str, Any]) -> dict[str, Any]:
    """Decode step that the time per output token stands for: all requests, half of the output.

    A run that only has a time of the whole batch, and one output token, is its prefill.
    """
    batch, tokens, time = row["concurrency"], row["input_tokens"], row["tpot"]
    prefill = np.isnan(time) and np.isnan(row["ttft"]) and row["output_tokens"] == 1
    sizes = {"context": tokens + row["output_tokens"] / 2}
    if prefill:
        time, sizes = row["e2e_time"], {"tokens": tokens}
    if not (time > 0 and batch >= 1 and min(sizes.values()) >= 1):
        return {"workload": "", "step_time": float("nan")}
    whole = {name: round(size) for name, size in sizes.items()}
    try:
        step = Step("prefill" if prefill else "decode", batch=round(batch), **whole)
    except WorkloadError:
        return {"workload": "", "step_time": float("nan")}
    return {"workload": step.label, "step_time": time}
