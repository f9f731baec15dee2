"""Options of sweep."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command, text, whole


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
    where = own.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=whole,
        default=2,
        metavar="N",
        help="processes on this machine, one thread each (2); 0: none but this one",
    )
    where.add_argument(
        "--scheduler",
        type=text,
        metavar="ADDRESS",
        help="use the workers of this Dask scheduler, such as tcp://10.0.0.1:8786",
    )
