"""Is a fit good enough to be believed, and is it the fit that its name promises?"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import ConvergenceError

if TYPE_CHECKING:
    import pymc as pm

RHAT_MAX, ESS_MIN = 1.01, 400.0
UNIFORM = 0.01  # p from which a PIT passes as uniform


def diagnostics(tree: xr.DataTree) -> dict[str, float]:
    """Worst figures over every variable: R-hat, bulk and tail ESS, divergences, E-BFMI [1].

    Parameters
    ----------
    tree : DataTree
        Groups ``posterior`` and ``sample_stats``, dims (chain, draw, …).

    Raises
    ------
    ConvergenceError
        If a draw is not finite, or a variable never moves.
    """
    bad = [
        str(name)
        for name, held in tree["posterior"].to_dataset().data_vars.items()
        if not np.isfinite(held.values).all()
    ]
    if bad:
        raise ConvergenceError(f"draws of {', '.join(bad)} are not finite; fit again")
    stuck = [
        str(name)
        for name, held in tree["posterior"].to_dataset().data_vars.items()
        if (held == held.isel(chain=0, draw=0)).all()
    ]
    if stuck:
        raise ConvergenceError(
            f"draws of {', '.join(stuck)} never move; fit with more tuning or another seed"
        )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of elements that a model holds fixed
        return _figures(tree)


def _figures(tree: xr.DataTree) -> dict[str, float]:
    import arviz_stats as az

    posterior, stats = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
    return {
        "rhat_max": _worst(az.rhat(posterior), np.nanmax),
        "ess_bulk_min": _worst(az.ess(posterior, method="bulk"), np.nanmin),
        "ess_tail_min": _worst(az.ess(posterior, method="tail"), np.nanmin),
        "divergences": float(stats["diverging"].sum()),
        "bfmi_min": float(np.min(np.asarray(az.bfmi(tree).energy))),
    }


def _worst(figures: Any, worst: Any) -> float:
    figures = figures.to_dataset() if isinstance(figures, xr.DataTree) else figures
    return float(worst([worst(v.values) for v in figures.data_vars.values()]))


def check(checks: dict[str, float], *, name: str) -> None:
    """Refuse a fit whose chains do not agree; the thresholds stand here and nowhere else.

    Parameters
    ----------
    checks : dict
        From `diagnostics` [1].
    name : str
        Of the posterior, for the message.

    Raises
    ------
    ConvergenceError
        Names every figure beyond its bound; the figures are in its ``checks``.

    Examples
    --------
    >>> check({"rhat_max": 1.0, "ess_bulk_min": 900, "ess_tail_min": 800, "divergences": 0},
    ...       name="eight_schools")
    """
    bad = []
    if not checks.get("rhat_max", np.inf) <= RHAT_MAX:
        bad.append(f"R-hat {checks.get('rhat_max', np.nan):.4f} above {RHAT_MAX}")
    for kind in ("bulk", "tail"):
        if not checks.get(f"ess_{kind}_min", 0.0) >= ESS_MIN:
            found = checks.get(f"ess_{kind}_min", np.nan)
            bad.append(f"{kind} ESS {found:.0f} below {ESS_MIN:.0f}")
    if checks.get("divergences", np.inf) != 0:
        bad.append(f"{checks.get('divergences', np.nan):.0f} divergences")
    if bad:
        raise ConvergenceError(
            f"posterior {name} failed its diagnostics: {'; '.join(bad)}; fit with more draws, "
            "a higher target acceptance or another parametrisation",
            checks,
        )


def uniformity(values: xr.DataArray) -> float:
    """Probability [1] of a PIT this uneven if it were uniform, whose values may be dependent.

    The test is `arviz_stats`' ``pot_c``; from `UNIFORM` it is passed.

    Parameters
    ----------
    values : DataArray, dims (cell,)
        Probability integral transform of each measurement [1], from `m2bayes.score.pit`.
    """
    import arviz_stats as az  # noqa: F401  registers the accessor

    held: Any = xr.Dataset({"pit": ("cell", np.asarray(values.values, dtype=float))})
    found, *_ = held.azstats.uniformity_test(dim=["cell"], method="pot_c")
    return float(found["pit"])


def fingerprint(model: pm.Model, points: int = 3) -> list[float]:
    """Log density [1] of `model` at its initial point and at `points` - 1 seeded points near it.

    The same name must mean the same log density: this is stored beside the draws and compared.
    """
    density = model.compile_logp()
    start = model.initial_point()
    out = []
    for i in range(points):
        step = 0.1 * (i > 0)
        point = {
            k: np.asarray(v) + step * labelled_rng(i, k).standard_normal(np.shape(v))
            for k, v in sorted(start.items())
        }
        out.append(float(density(point)))
    return out
