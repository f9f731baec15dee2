"""Options of import."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command, text

FORMATS = {  # what the files are
    "vidur-light": "Vidur's mlp.csv, one an LLM: light kernels",
    "distserve-host": "DistServe's profiler-….vllm.json: steps that the host bounds",
}


def add(commands: Any) -> None:
    """Add the command that imports."""
    kinds = "; ".join(f"{name}, {what}" for name, what in FORMATS.items())
    add = command(
        commands,
        "import",
        "turn other projects' tables into one that fit reads",
        more=f" Formats: {kinds}.",
    ).add_argument
    add("format", choices=FORMATS, help=f"one of {', '.join(FORMATS)}", metavar="FORMAT")
    add("paths", type=text, nargs="+", metavar="PATH", help="files of one card")
    add("--sku", type=text, metavar="NAME", help="the card: m2bayes list skus")
    add("--out", type=text, required=True, metavar="FILE.csv", help="where the table goes")
