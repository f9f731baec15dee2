"""What a kernel's time is besides its law: discrepancy, build effect and noise of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.discrepancy import cell_scale, run_noise, tapered, unit_fields
from m2bayes.errors import UnknownNameError
from m2bayes.mechanism.laws import LAWS
from m2bayes.residuals import known


def error_of(
    posterior: xr.Dataset,
    unit: tuple[str, str],
    scales: dict[str, np.ndarray],
    draws: np.ndarray,
    *,
    backend: str,
    noise: int,
    seed: int,
) -> Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]:
    """Log error [1] of a unit's shapes, dims (shape, size), by their times, dims (draw, shape).

    And by what of these is steady [s], dims (1, shape), or None. It is made of discrepancy, build
    effect and, with `noise`, run noise; dims (draw, shape).

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Stored draws with attribute ``law``.
    unit : tuple of str
        Label of the SKU or unit, and of its architecture or family.
    scales : dict of ndarray, dims (draw, 1)
        ``cell``, ``run`` [1] and ``time`` [s]: spreads of the discrepancy and of a run.
    draws : ndarray, dims (draw,)
        Places of the draws that are asked for [1].
    backend : str
        Whose build it is, or ``any``.
    noise, seed : int
        Number of new runs, 0 for none; seed [1].
    """
    sku, family = unit
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    settings: dict[str, Any] = {"sku": sku, "draws": samples, "seed": seed}
    settings |= {"lengths": LAWS[str(posterior.attrs["law"])].lengths, "architecture": family}
    residuals = known(posterior, family, sku)
    build = _build_effect(posterior, sku, backend, max(noise, 1), seed)
    build = build[:, draws] if build.shape[1] > 1 else build

    def error(shapes: np.ndarray, time: np.ndarray, steady: np.ndarray | None) -> np.ndarray:
        unit, widening = unit_fields(shapes, residuals=residuals, chosen=draws, **settings)
        delta = tapered(cell_scale(scales["cell"], scales["time"], time, steady) * unit)
        if not noise:
            return delta + build[0]
        labels = ["x".join(f"{v:.0f}" for v in shape) for shape in shapes[:, :-1]]
        run = run_noise(labels, sku=sku, backend=backend, draws=samples, runs=noise, seed=seed)
        run = run[:, draws]
        return delta + np.median(build + scales["run"] * widening * run, axis=0)

    return error


def _build_effect(
    posterior: xr.Dataset, sku: str, backend: str, runs: int, seed: int
) -> np.ndarray:
    """Build effect of each run, dims (run, sample, 1): the named backend's own, or drawn."""
    if "build_effect" not in posterior:  # each unit is one build
        return np.zeros((1, 1, 1))
    known = posterior["build_effect"]
    if backend != "any" and backend not in known["backend"].values:
        raise UnknownNameError("backend", backend, ["any", *map(str, known["backend"].values)])
    if backend != "any" and sku in posterior.indexes["sku"]:
        own = known.sel(sku=sku, backend=backend).transpose("chain", "draw").values
        return np.broadcast_to(own.reshape(1, -1, 1), (runs, own.size, 1))
    spread = posterior["build_sd"].transpose("chain", "draw").values.reshape(1, -1)
    rng = labelled_rng(seed, "build", sku, backend)
    return (spread * rng.standard_normal((runs, spread.size)))[..., None]
