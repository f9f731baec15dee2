"""Options of check and evaluate."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import cards, command, plot, text, workers

GEMM_POSTERIOR = "gemm_bf16-hier_gemm"
SUITES = (
    "gemm-cells",
    "gemm-transfer",
    "few-shot",
    "refit",
    "clock",
    "eta",
    "ranking",
    "flips",
    "fresh",
    "knee",
    "attention",
    "attention-transfer",
    "light",
    "served",
    "served-e2e",
    "gemm-fp8",
    "distserve",
    "calibrate",
    "power",
    "next",
    "qlm",
    "vidur-home",
    "vidur-transfer",
    "sbc",
    "sensitivity",
    "loo",
    "prior",
)
REFITS = (
    *("gemm-transfer", "few-shot", "refit", "clock", "ranking", "flips"),
    *("attention-transfer", "next", "vidur-transfer", "sbc"),
)  # suites whose many fits need not be made one after the other


def add(commands: Any) -> None:
    """Add the commands that judge posteriors."""
    check = command(commands, "check", "diagnostics and calibration of a stored posterior")
    check.add_argument(
        "posterior", nargs="?", default=GEMM_POSTERIOR, help=f"default: {GEMM_POSTERIOR}"
    )
    check.add_argument(
        "--data",
        type=text,
        metavar="FILE.csv",
        help="new rows: do they agree with it? or those it was fitted to, where not included",
    )
    cards(check, "--data")
    check.add_argument(
        "--fingerprint", action="store_true", help="rebuild the model too and compare its density"
    )
    plot(check, "PIT, coverage and posterior predictive")
    names = ", ".join(SUITES)
    evaluate = command(
        commands,
        "evaluate",
        "score posteriors on cells they have not seen",
        more=f" A suite takes minutes. Suites: {names}.",
    )
    evaluate.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"one or more of {names}; with --quick all"
    )
    evaluate.add_argument("--out", type=text, metavar="DIR", help="write <suite>.json there")
    evaluate.add_argument(
        "--quick", action="store_true", help="small versions, to see that they run: no figures"
    )
    workers(evaluate, 0, "make the fits of suites that leave SKUs out, and of sbc, on")
