"""Options of next."""

from __future__ import annotations

from typing import Any

from m2bayes.options._question import question
from m2bayes.options._types import command, number, plot, text, whole, workers


def add(commands: Any) -> None:
    """Add the command that says what to measure."""
    own = command(commands, "next", "which measurement is worth most before choosing", csv=True)
    question(own)
    plot(own, "what each measurement is worth")
    add = own.add_argument
    add("--repeats", type=whole, default=5, metavar="N", help="runs of each measurement (5)")
    add("--count", type=whole, default=3, metavar="N", help="measurements taken together (3)")
    add(
        "--spend",
        type=number,
        metavar="USD",
        help="what the chosen GPUs will cost in a year: values are then in USD a year",
    )
    add(
        "--gpu-hour",
        type=text,
        nargs="+",
        action="extend",
        default=[],
        metavar="SKU=USD",
        help="price of the GPU time that a measurement takes",
    )
    add(
        "--worth",
        type=number,
        default=0.001,
        metavar="SHARE",
        help="value, as a share of the metric, below which to stop (0.001)",
    )
    workers(own, 0, "predict each SKU on")
