"""What can be wrong with an input, as exceptions that say what to do next.

Every class derives from ``ValueError`` or ``KeyError``, so ``except ValueError`` works, and from
`M2BayesError`, which the command line turns into one line and exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class M2BayesError(Exception):
    """Bad input: the message names the place and the remedy."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument; people want the sentence.
        return str(self.args[0]) if self.args else ""


class DatasheetError(M2BayesError, ValueError):
    """A datasheet lacks a number, holds an impossible one, or contradicts itself."""


class WorkloadError(M2BayesError, ValueError):
    """A workload, LLM configuration or parallelism that cannot be evaluated."""


class DataError(M2BayesError, ValueError):
    """A table of measurements that cannot be used."""


class MissingError(DataError):
    """Another project's data that is not shipped, and not where the user would keep it."""


class RecordError(M2BayesError, ValueError):
    """A stored model, data set or posterior that is damaged or inconsistent."""


class ConvergenceError(RecordError):
    """A fit whose diagnostics fail; `checks` carries the numbers."""

    def __init__(self, message: str, checks: dict[str, float] | None = None) -> None:
        super().__init__(message)
        self.checks = checks or {}


class InfeasibleError(M2BayesError, ValueError):
    """No SKU can serve any of the workloads."""


class UnknownNameError(M2BayesError, KeyError):
    """A name that nothing bears; the message lists the closest ones, or says what lists all."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; {_hint(kind, name, sorted(set(known)))}")


FEW = 12  # names that a message lists
LISTED = {  # what `m2bayes list` lists
    "SKU": "skus",
    "LLM": "llms",
    "model": "models",
    "data set": "data",
    "posterior": "posteriors",
    "name": "skus (or llms, models, data, posteriors)",
}


def _hint(kind: str, name: str, known: list[str]) -> str:
    """The closest names: alike, or alike but for hyphens and what comes after."""
    folded, bare = {k.lower(): k for k in known}, _bare(name)
    close = [folded[c] for c in difflib.get_close_matches(name.lower(), folded, n=3)]
    if len(bare) > 1:
        close = close or [k for k in known if _bare(k).startswith(bare)][:3]
    if close:
        return f"did you mean {', '.join(close)}?"
    if len(known) > FEW and kind in LISTED:
        return f"m2bayes list {LISTED[kind]} names them"
    return f"known: {', '.join(known)}"


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
