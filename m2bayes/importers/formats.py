"""Every format of measurement files, and how one is told from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from m2bayes.database import Database
from m2bayes.importers import aiconfigurator, counters, engines, plain, profiles, telemetry
from m2bayes.importers._parts import Ask, Part
from m2bayes.importers._rows import columns, document, is_parquet, lines
from m2bayes.importers.designed import vidur_light
from m2bayes.importers.hosts import distserve_host


@dataclass(frozen=True)
class Format:
    """One way to read measurement files.

    Parameters
    ----------
    read : callable
        ``(path, ask) ->`` part, one file at a time.
    suits : callable
        ``(names) ->`` whether a file with these columns, or keys of a JSON object, is of it.
    """

    read: Callable[[Path, Ask], Part]
    suits: Callable[[frozenset[str]], bool]


@dataclass(frozen=True)
class Whole:
    """One way to read several files at once as the table of a law.

    Parameters
    ----------
    law : str
        A key of `m2bayes.mechanism.laws.LAWS`.
    read : callable
        ``(database, paths, sku) ->`` table.
    """

    law: str
    read: Callable[[Database, Sequence[Path], str], pd.DataFrame]


def _vidur(names: frozenset[str]) -> bool:
    return any(name.startswith("time_stats.") for name in names)


def _ncu(names: frozenset[str]) -> bool:
    return "Kernel Name" in names and bool({"ID", "Metric Name"} & names)


# in the order in which a file is held against them
FORMATS: dict[str, Format | Whole] = {
    "vidur": Format(profiles.read_vidur, _vidur),
    "vidur-light": Whole("light_time", vidur_light),
    "aiconfigurator": Format(
        aiconfigurator.read, lambda n: "silicon_tpot_ms" in n or {"op_name", "latency"} <= n
    ),
    "vllm": Format(engines.read_vllm, lambda n: "avg_latency" in n or "total_output_tokens" in n),
    "guidellm": Format(engines.read_guidellm, lambda n: "benchmarks" in n),
    "aiperf": Format(engines.read_aiperf, lambda n: "request_latency" in n),
    "nvidia-smi": Format(telemetry.read_nvidia_smi, lambda n: telemetry.suits([*n])),
    "dcgm": Format(telemetry.read_dcgm, lambda n: "gr_engine_active" in n),
    "ncu": Format(counters.read, _ncu),
    "llmservingsim": Format(
        profiles.read_llmservingsim,
        lambda n: (
            set(profiles.LAYER) <= n or set(profiles.OLD) <= n or set(profiles.ATTENTION) <= n
        ),
    ),
    "distserve-host": Whole("host_time", distserve_host),
    "plain": Format(plain.read, lambda n: True),
}


def recognised(path: Path) -> str:
    """Format of a file by its columns or keys.

    Parameters
    ----------
    path : Path
        CSV, Parquet, JSON, or a log.

    Returns
    -------
    str
        A key of `FORMATS`; ``plain`` where no other suits.

    Raises
    ------
    DataError
        If it cannot be read at all.
    """
    if path.suffix.lower() == ".json":
        names = frozenset(document(path))
    elif is_parquet(path):
        names = frozenset(columns(path))
    else:
        first = next((line for line in lines(path) if line.strip()), "")
        if first.lstrip().startswith("#"):
            return "dcgm" if "entity" in first.lower() else "nvidia-smi"
        if first.startswith("==") or '"Kernel Name"' in first:
            return "ncu"
        names = frozenset(columns(path))
    for name, form in FORMATS.items():
        if isinstance(form, Format) and form.suits(names):
            return name
    return "plain"
