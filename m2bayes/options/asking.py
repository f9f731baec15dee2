"""Options of rank, predict and report."""

from __future__ import annotations

from typing import Any

from m2bayes.options._question import question
from m2bayes.options._types import command, plot, text, whole

FIGURES = ("ranking", "intervals", "p_best", "flips", "regret")


def add(commands: Any) -> None:
    """Add the commands that put a question."""
    rank = command(commands, "rank", "rank SKUs, best first, with probabilities", csv=True)
    question(rank)
    plot(rank, "the ranking", FIGURES)
    predict = command(commands, "predict", "times of each SKU with intervals", csv=True)
    question(predict)
    plot(predict, "the times, by operator with --by op; the roofline of gemm: kernels")
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
    report = command(commands, "report", "the ranking as one HTML page for people who decide")
    question(report)
    report.add_argument(
        "--out", type=text, required=True, metavar="FILE.html", help="the page, for any browser"
    )
