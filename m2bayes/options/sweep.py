"""Options of sweep."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command, text, workers


def add(commands: Any) -> None:
    """Add the command that predicts a grid."""
    own = command(
        commands,
        "sweep",
        "predict a grid of LLMs, SKUs, TP, dtypes and workloads into a Zarr store",
        more=" A run that was ended is gone on with by the same command.",
    )
    own.add_argument("grid", type=text, metavar="GRID.toml", help="axes and settings, see the docs")
    own.add_argument(
        "--out", type=text, required=True, metavar="FOLDER", help="the store, for xarray.open_zarr"
    )
    workers(own, 2, "use")
