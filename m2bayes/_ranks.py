"""Are ranks even? Tests of each parameter's ranks, corrected for their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from m2bayes.errors import RecordError

LEVEL = 0.01  # of the tests, after Holm's correction
BINS = 16  # of the chi-square test


def uniformity(found: list[dict[str, Any]], kept: int) -> dict[str, dict[str, float]]:
    """Tests of even ranks, by parameter.

    Parameters
    ----------
    found : list of dict
        From `m2bayes.sbc.ranks`.
    kept : int
        Draws that the truth is ranked among [1].

    Returns
    -------
    dict
        By parameter ``chi_square`` over `BINS` bins, which sees any shape, and ``ks``, the
        Kolmogorov-Smirnov test of the ranks spread evenly over their width, which sees a shift
        best: p-values [1].

    Raises
    ------
    RecordError
        If no simulation is left.
    """
    from scipy import stats  # type: ignore[import-untyped]

    used = [one["rank"] for one in found if one["rank"] is not None]
    if not used:
        raise RecordError("no simulation is left to rank; see why each was discarded")
    values, rng, out = kept + 1, np.random.default_rng(0), {}
    for name in used[0]:
        rank = np.array([one[name] for one in used])
        bins = np.bincount(rank * min(BINS, values) // values, minlength=min(BINS, values))
        spread = (rank + rng.random(len(rank))) / values
        out[name] = {
            "chi_square": float(stats.chisquare(bins).pvalue),
            "ks": float(stats.kstest(spread, "uniform").pvalue),
        }
    return out


def holm(p: np.ndarray) -> np.ndarray:
    """P-values adjusted for all tests by Holm's step-down, dims of `p` [1].

    >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty(len(p))
    out[order] = np.minimum(stepped, 1.0)
    return out


def judged(found: list[dict[str, Any]], kept: int) -> dict[str, Any]:
    """Say whether ranks are even, and what became of each simulation.

    Parameters
    ----------
    found : list of dict
        From `m2bayes.sbc.ranks`.
    kept : int
        Draws that the truth is ranked among [1].

    Returns
    -------
    dict
        ``simulations``, ``ranked``, ``discarded`` by reason, ``longer`` chains, simulations with
        ``divergences``, ``ess_min``; ``p`` by parameter; ``holm_min`` and ``worst``, the smallest
        adjusted p-value and whose it is; ``even`` at `LEVEL`.
    """
    p = uniformity(found, kept)
    tests = [(name, test) for name, both in p.items() for test in both]
    adjusted = holm(np.array([p[name][test] for name, test in tests]))
    reasons = [one["discarded"] for one in found if one["rank"] is None]
    worst = int(np.argmin(adjusted))
    return {
        "simulations": len(found),
        "ranked": len(found) - len(reasons),
        "discarded": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
        "longer": sum(one["longer"] > 1 for one in found),
        "divergences": sum(one["divergences"] > 0 for one in found),
        "ess_min": min(one["ess"] for one in found if one["rank"] is not None),
        "p": p,
        "holm_min": float(adjusted[worst]),
        "worst": tests[worst][0],
        "even": bool(adjusted[worst] >= LEVEL),
    }
