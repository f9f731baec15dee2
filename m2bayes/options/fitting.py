"""Options of fit."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command, number, text, whole


def add(commands: Any) -> None:
    """Add the command that fits."""
    add = command(commands, "fit", "fit a model to a data set and store the posterior").add_argument
    add("--model", type=text, required=True, metavar="NAME", help="m2bayes list models")
    add(
        "--data",
        type=text,
        required=True,
        metavar="NAME",
        help="m2bayes list data, or path of a CSV",
    )
    add(
        "--clock",
        type=text,
        metavar="NAME",
        help="data set of clock telemetry, if the model takes one",
    )
    add(
        "--shapes",
        type=text,
        metavar="NAME",
        help="more kernel times, for the discrepancy between shapes",
    )
    add("--out", type=text, required=True, metavar="DIR", help="where the record and the draws go")
    add("--draws", type=whole, default=1000, help="kept draws of each chain (1000)")
    add("--keep", type=whole, metavar="N", help="draws of each chain to store, rounded (all)")
    add("--tune", type=whole, default=1000, help="discarded draws of each chain (1000)")
    add("--chains", type=whole, default=4)
    add("--target-accept", type=number, default=0.9)
    add("--seed", type=whole, default=1)
