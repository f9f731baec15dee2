"""Columns read by meaning: their names in many spellings, and the unit in their header."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from m2bayes.errors import DataError

TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
TIME |= {"sec": 1.0, "second": 1.0, "seconds": 1.0, "msec": 1e-3, "usec": 1e-6, "nsec": 1e-9}
TIME |= {"msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9, "milliseconds": 1e-3}
TIME |= {"microseconds": 1e-6, "nanoseconds": 1e-9}
CLOCK = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
POWER = {"w": 1.0, "mw": 1e-3, "kw": 1e3}
SIZE = {"byte": 1.0, "bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
SIZE |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
SHARE = {"1": 1.0, "%": 0.01}
COUNT = {"1": 1.0, "token": 1.0, "tokens": 1.0, "element": 1.0}
NO_UNIT: dict[str, float] = {}

# canonical name: units that it may have, the SI unit first, and other names of it
MEANINGS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "sku": (NO_UNIT, ("gpu", "gpu_name", "device", "device_name", "hardware", "accelerator")),
    "backend": (NO_UNIT, ("framework", "engine", "library")),
    "version": (
        NO_UNIT,
        ("backend_version", "framework_version", "engine_version", "software_version"),
    ),
    "kernel": (NO_UNIT, ("operator", "layer", "kernel_name", "op")),
    "phase": (NO_UNIT, ("stage",)),
    "workload": (NO_UNIT, ("spec",)),
    "M": (COUNT, ("m", "tokens", "num_tokens", "rows")),
    "N": (COUNT, ("n", "out_features", "output_width")),
    "K": (COUNT, ("k", "in_features", "contraction")),
    "batch": (COUNT, ("batch_size", "sequences", "num_seqs")),
    "length": (COUNT, ("context", "context_length", "seq_len", "kv_len", "isl")),
    "heads": (COUNT, ("num_heads", "query_heads", "n_heads", "n_head")),
    "kv_heads": (COUNT, ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head")),
    "tokens": (COUNT, ("num_tokens", "m")),
    "width": (COUNT, ("hidden", "hidden_size")),
    "gpus": (COUNT, ("num_gpus", "world_size", "ranks")),
    "bytes": (SIZE, ("message_size", "size", "nbytes", "message_bytes")),
    "kernels": (COUNT, ("num_kernels",)),
    "sequences": (COUNT, ("batch", "batch_size", "num_seqs")),
    "mode": (COUNT, ()),
    "tp": (COUNT, ("tp_size", "tensor_parallel", "tensor_parallel_size")),
    "op_time": (
        TIME,
        ("time", "latency", "duration", "runtime", "kernel_time", "elapsed", "median_time"),
    ),
    "step_time": (TIME, ("time", "latency", "duration", "iteration_time")),
    "op": (NO_UNIT, ("projection", "layer")),
    "power_limit": (POWER, ("power_cap", "cap", "cap_w")),
    "boost_clock": (CLOCK, ("max_clock",)),
    "sustained_clock": (CLOCK, ("sm_clock", "clock")),
    "half_width": (CLOCK, ("ci95", "error")),
    "eta_active": (SHARE, ("tensor_active", "tensor_activity")),
    "llm": (NO_UNIT, ("model", "model_name", "model_path", "model_id")),
    "dtype": (NO_UNIT, ("precision", "quantization")),
    "concurrency": (COUNT, ("max_concurrency", "num_clients", "batch_size", "batch")),
    "input_tokens": (COUNT, ("isl", "input_len", "input_length", "prompt_tokens", "prompt_size")),
    "output_tokens": (COUNT, ("osl", "output_len", "output_length", "token_size")),
    "ttft": (TIME, ("time_to_first_token", "mean_ttft", "median_ttft", "prompt_time")),
    "tpot": (TIME, ("time_per_output_token", "itl", "mean_tpot", "median_tpot", "token_time")),
    "e2e_time": (TIME, ("e2e_latency", "e2el", "request_latency", "end_to_end")),
}
_BRACKET = re.compile(r"^(.*?)\s*[\[(]\s*([^\])]*?)\s*[\])]\s*$")


@dataclass(frozen=True)
class Column:
    """A column of a file that is understood.

    Parameters
    ----------
    name : str
        As it stands in the file.
    factor : float
        By which its numbers become SI.
    stated : bool
        Whether the header says the unit.
    """

    name: str
    factor: float = 1.0
    stated: bool = False


def plain_name(name: str) -> str:
    """Name in lower case with underscores.

    >>> plain_name(" Num Tokens")
    'num_tokens'
    """
    return re.sub(r"[^0-9a-zµμ%]+", "_", name.strip().lower()).strip("_")


def units_of(meaning: str) -> dict[str, float]:
    """Units that a quantity may have and their SI factors; none of a text.

    >>> units_of("op_time")["ms"]
    0.001
    """
    return MEANINGS[meaning][0]


def understood(name: str, meaning: str) -> Column | None:
    """Column if its name means that quantity, with the unit that it states.

    >>> understood("Latency (us)", "op_time").factor
    1e-06
    >>> understood("time_us", "op_time").factor
    1e-06
    >>> understood("timer", "op_time") is None
    True
    """
    units, others = MEANINGS[meaning]
    known = {meaning.lower(), *others}
    if match := _BRACKET.match(name):
        unit = match[2].strip().lower()
        if plain_name(match[1]) not in known:
            return None
        if unit in units:
            return Column(name, units[unit], stated=True)
        if units and unit:
            accepted = ", ".join(units)
            raise DataError(f"column {name!a}: unit {match[2]!a} is none of {accepted}")
        return Column(name)
    title = plain_name(name)
    if title in known:
        return Column(name)
    head, _, unit = title.rpartition("_")
    if head in known and unit in units and unit != "1":
        return Column(name, units[unit], stated=True)
    return None


def meant(names: Iterable[str], meaning: str) -> bool:
    """Whether some column means that quantity, in whatever unit.

    >>> meant(["Latency [days]"], "op_time")
    True
    """
    for name in names:
        try:
            if understood(name, meaning):
                return True
        except DataError:
            return True
    return False


def matched(names: Iterable[str], wanted: Collection[str], origin: str) -> dict[str, Column]:
    """Columns of a file by what they mean; a column named exactly so is preferred.

    Parameters
    ----------
    names : iterable of str
        Of the file.
    wanted : collection of str
        Keys of `MEANINGS`.
    origin : str
        Where the columns come from, for the message.

    Raises
    ------
    DataError
        If two columns mean the same, or a unit is unknown.
    """
    found: dict[str, Column] = {}
    names = list(names)
    taken = {name for name in names if name in wanted}
    for meaning in wanted:
        if meaning in names:
            found[meaning] = Column(meaning)
            continue
        try:
            meaning_it = [c for n in names if n not in taken and (c := understood(n, meaning))]
        except DataError as fault:
            raise DataError(f"{origin}: {fault}") from None
        if len(meaning_it) > 1:
            both = " and ".join(repr(column.name) for column in meaning_it[:2])
            raise DataError(f"{origin}: columns {both} both mean {meaning}; keep one")
        if meaning_it:
            found[meaning] = meaning_it[0]
    return found


def unused(names: Iterable[str], used: Mapping[str, Column]) -> frozenset[str]:
    """Columns that nothing reads."""
    return frozenset(names) - {column.name for column in used.values()}
