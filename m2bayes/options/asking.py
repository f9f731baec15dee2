"""Options of rank and predict."""

from __future__ import annotations

from typing import Any

from m2bayes.options._question import question
from m2bayes.options._types import command, text, whole


def add(commands: Any) -> None:
    """Add the commands that put a question."""
    question(command(commands, "rank", "rank SKUs, best first, with probabilities", csv=True))
    predict = command(commands, "predict", "times of each SKU with intervals", csv=True)
    question(predict)
    predict.add_argument("--by", choices=["op"], help="break the time down by operator")
    predict.add_argument(
        "--noise",
        type=whole,
        default=0,
        metavar="N",
        help="interval of the median of N new runs instead of the noise-free time",
    )
    predict.add_argument(
        "--out", type=text, metavar="FILE.nc", help="write the joint draws as netCDF"
    )
