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
    """A name that nothing bears; the message lists the closest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(set(known))
        folded = {k.lower(): k for k in known}
        close = [folded[c] for c in difflib.get_close_matches(name.lower(), folded, n=3)]
        hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
