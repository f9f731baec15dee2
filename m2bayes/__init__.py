"""Which GPU is best for this LLM workload, and how sure are we?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m2bayes.database import Database
    from m2bayes.decision import choose, evpi, expected_regret, p_best, p_flip, rank, verdict
    from m2bayes.importing import read_measurements
    from m2bayes.information.voi import value_of_information
    from m2bayes.posterior import sample
    from m2bayes.predictive import predict
    from m2bayes.workload import gemm_cells, parse_workload

_HOMES = {
    "Database": "database",
    "choose": "decision",
    "evpi": "decision",
    "expected_regret": "decision",
    "gemm_cells": "workload",
    "p_best": "decision",
    "p_flip": "decision",
    "parse_workload": "workload",
    "predict": "predictive",
    "rank": "decision",
    "read_measurements": "importing",
    "sample": "posterior",
    "value_of_information": "information.voi",
    "verdict": "decision",
}

__all__ = [
    "Database",
    "choose",
    "evpi",
    "expected_regret",
    "gemm_cells",
    "p_best",
    "p_flip",
    "parse_workload",
    "predict",
    "rank",
    "read_measurements",
    "sample",
    "value_of_information",
    "verdict",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("m2bayes")
    if name not in _HOMES:
        raise AttributeError(f"module 'm2bayes' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"m2bayes.{_HOMES[name]}"), name)
