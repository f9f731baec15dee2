"""Options of import, lint and measure."""

from __future__ import annotations

import argparse
from typing import Any

from m2bayes.options._types import command, number, text, whole

FORMATS = {  # what the files are
    "vidur": "Vidur's mlp.csv: projections",
    "vidur-light": "Vidur's mlp.csv, one an LLM: light kernels",
    "aiconfigurator": "its …_perf.parquet or silicon_sample.csv",
    "vllm": "JSON of vllm bench serve or latency",
    "guidellm": "benchmarks.json",
    "aiperf": "profile_export_aiperf.json",
    "nvidia-smi": "--query-gpu=… --format=csv, or dmon: clocks",
    "dcgm": "dcgmi dmon, or a table of DCGM fields: clocks",
    "ncu": "ncu --csv: tensor-pipe activity",
    "llmservingsim": "its per-layer tables: projections",
    "distserve-host": "DistServe's profiler-….vllm.json: steps that the host bounds",
    "plain": "CSV or Parquet with units in the header, such as time [ms]",
}


def fact(given: str) -> tuple[str, str]:
    """Read KEY=VALUE.

    >>> fact("version=0.19.0")
    ('version', '0.19.0')
    """
    key, equals, value = given.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{given[:40]!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def add(commands: Any) -> None:
    """Add the commands that import, check and make measurement files."""
    kinds = "; ".join(f"{name}, {what}" for name, what in FORMATS.items())
    add = command(
        commands,
        "import",
        "turn measurement files into a table that fit reads",
        more=f" Formats: {kinds}.",
    ).add_argument
    add("format", choices=FORMATS, help=f"one of {', '.join(FORMATS)}", metavar="FORMAT")
    add("paths", type=text, nargs="+", metavar="PATH", help="files of that format")
    add("--out", type=text, required=True, metavar="FILE.csv", help="where the table goes")
    _facts(add)
    add = command(
        commands, "lint", "check datasheets and measurements before they are used"
    ).add_argument
    add("files", nargs="+", type=text, metavar="FILE", help="datasheet (.json) or measurements")
    _facts(add)
    _measure(commands)


def _measure(commands: Any) -> None:
    """Add the command that measures."""
    add = command(
        commands,
        "measure",
        "time kernels on the NVIDIA GPU at hand",
        more=" Writes FILE.csv (matrix products) and, named after it, attention, launches and "
        "sustained clocks, each with a card. Needs PyTorch and NVML.",
    ).add_argument
    add("--out", type=text, required=True, metavar="FILE.csv", help="where the tables go")
    add("--sku", type=text, metavar="NAME", help="the card, if the driver's name is not known")
    add("--llm", type=text, metavar="NAME", help="whose shapes (default: those of common 8 B LLMs)")
    parts = ("gemm", "attention", "launch")
    add("--what", nargs="+", choices=parts, default=[], help="only these")
    add(
        "--cell",
        type=text,
        nargs="+",
        action="extend",
        default=[],
        metavar="SPEC",
        help="only these kernels, written as workloads gemm:… and attention:…",
    )
    add("--repeats", type=whole, default=5, metavar="N", help="of each cell (default: 5)")
    add("--seconds", type=number, default=1.0, metavar="S", help="of a sustained run (default: 1)")
    add("--cooldown", type=number, default=0.2, metavar="S", help="before a run (default: 0.2)")
    add("--seed", type=whole, default=0, metavar="N", help="of the order (default: 0)")


def _facts(add: Any) -> None:
    """Options that say what the files do not."""
    add(
        "--sku",
        type=text,
        metavar="NAME",
        help="the card, where the files do not name it: name, alias or path of a datasheet .json",
    )
    add(
        "--given",
        type=fact,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="what else they do not say, such as backend=vllm version=0.19.0 tp=2 llm=NAME",
    )
