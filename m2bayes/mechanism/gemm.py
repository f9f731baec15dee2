"""Time of one dense GEMM kernel: what is known of it beforehand, and the law of its factors.

`gemm_terms` computes from the shape, the datasheet and the regime all that has no parameter in it,
once. `gemm_time` and `ceiling_time` are the laws: elementwise, the same lines for a PyMC model and
for posterior draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import exp, log, smooth_maximum
from m2bayes.mechanism.clock import power_load, power_roof
from m2bayes.mechanism.memory import CACHE_PORT, memory_time, replay_copies, warm_share
from m2bayes.mechanism.roofline import (
    activation_traffic,
    gemm_flops,
    roofline_time,
    weight_traffic,
)
from m2bayes.mechanism.wave import eta_wave, grid_share, tile_choice
from m2bayes.quantisation import format_of

REGIMES = ("served", "benchmark")
WAVE_SHARE = 0.78  # of the last partial wave's loss that remains
TILE_COST = 0.43  # issue cost of small tiles, per unit of 64 / edge
ROOF_SHARPNESS = 1.9  # how sharply the issue and power roofs meet
CHAIN_LENGTH = 2500.0  # K at which 63 % of the memory latency shows
KERNELS = 12.0  # timed and warm-up replays in one benchmark run


def gemm_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the GEMM law that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``M``, ``N``, ``K`` [1] with any dims.
    sheets : Dataset
        Datasheet numbers for one dtype, dims (sku,) or gathered to the dims of `cells`; their
        ``dtype`` says what a number takes, see `m2bayes.quantisation.FORMATS`.
    regime : {"served", "benchmark"}
        Served: cold weights, settled clock. Benchmark: weight copies replayed as the collector
        of the kernel tables does, a short burst, vLLM's weights left uninitialised.
    backend : str or array_like of str
        Whose recipe the benchmark regime replays: ``sglang``, ``vllm``, ``trtllm`` or ``any``
        (six copies, initialised weights). Without effect when served.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``ideal_compute`` [s], ``grid_cost``, ``tile_cost``, ``passes`` [1], ``cold_traffic``,
        ``warm_traffic`` [byte], ``peak_bandwidth``, ``cache_port`` [byte/s], ``chain`` [s],
        ``power_load``, ``blank_weights`` [1], ``power_per_rate`` [J/FLOP], ``tensor_width``
        [FLOP/clock], ``peak_over_boost``, the clock that the peak rate belongs to over boost [1].

    Raises
    ------
    ValueError
        For a regime other than the two.
    """
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(REGIMES)}, not {regime!r}")
    M, N, K = (cells[v].astype(float) for v in ("M", "N", "K"))
    rate, bandwidth = sheets["peak_flop_rate"], sheets["peak_bandwidth"]
    terms = _issue_terms(M, N, K, rate, sheets["sm_count"])
    form = format_of(sheets)
    weight = weight_traffic(N, K, form.weight)
    activation = activation_traffic(M, N, K, form.activation, form.output)
    backend = xr.DataArray(backend) if isinstance(backend, str) else backend
    if regime == "served":
        cold, warm = weight, activation * warm_share(activation, sheets["l2"])
        terms["cold_traffic"] = cold + activation - warm
        terms["power_load"] = xr.ones_like(rate)
        terms["blank_weights"] = xr.zeros_like(rate)
    else:
        copies = xr.where(
            backend == "trtllm",
            replay_copies(weight, sheets["l2"], fixed=False),
            replay_copies(weight, sheets["l2"], fixed=True),
        )
        share = warm_share(copies * weight + activation, sheets["l2"])
        warm = share * (weight + activation)
        terms["cold_traffic"] = (1 - share) * (weight + activation)
        slowest = np.maximum(terms["ideal_compute"], (weight + activation) / bandwidth)
        terms["power_load"] = power_load(KERNELS * copies * slowest)
        terms["blank_weights"] = (backend == "vllm").astype(float)
    return xr.Dataset(
        {
            **terms,
            "warm_traffic": warm,
            "peak_bandwidth": bandwidth,
            "cache_port": sheets["sm_count"] * sheets["boost_clock"] * CACHE_PORT,
            "chain": (1 - np.exp(-K / CHAIN_LENGTH)) / sheets["boost_clock"],
            "power_per_rate": sheets["power_limit"] / rate,
            "tensor_width": sheets["tensor_flop_per_clock"],
            "peak_over_boost": sheets["peak_clock"] / sheets["boost_clock"],
        },
    ).drop_vars("dtype", errors="ignore")


def _issue_terms(M: Any, N: Any, K: Any, rate: Any, sm_count: Any) -> dict[str, xr.DataArray]:
    """Ideal compute time and what tile, split-K and wave add to it."""
    tile_m, tile_n, split = xr.apply_ufunc(
        tile_choice, M, N, K, sm_count, output_core_dims=[[], [], []]
    )
    tile = {"tile_m": tile_m, "tile_n": tile_n, "sm_count": sm_count, "split": split}
    return {
        "ideal_compute": gemm_flops(M, N, K) / rate,
        "grid_cost": WAVE_SHARE / eta_wave(M, N, **tile)
        + (1 - WAVE_SHARE) / grid_share(M, N, **tile),
        "tile_cost": 1 + TILE_COST * (64 / tile_m + 64 / tile_n - 0.75),
        "passes": split / K,
    }


def compute_roofs(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Issue and power time [s] of a GEMM, dims broadcast; see `gemm_time`."""
    issue = (
        terms["ideal_compute"]
        * terms["grid_cost"]
        * terms["tile_cost"]
        * (1 + factors["prologue"] * terms["passes"])
        * terms["peak_over_boost"]
        / factors["eta_issue"]
    )
    roof = power_roof(
        factors["clock_burst"],
        factors["droop"],
        terms["power_load"],
        power_slope=factors["power_slope"],
        width_slope=factors["width_slope"],
        power_per_rate=terms["power_per_rate"],
        tensor_width=terms["tensor_width"],
    ) * exp(factors["blank_gain"] * terms["blank_weights"])
    return issue, terms["ideal_compute"] / roof


def sustained_share(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Sustained over boost SM clock [1] in a compute-bound GEMM, dims broadcast.

    The clock that stretches the issue time at boost to the time that the power limit allows. Not
    for memory-bound kernels, which draw less power.
    """
    issue, power = compute_roofs(terms, factors)
    return issue / smooth_maximum(issue, power, ROOF_SHARPNESS)


def gemm_branches(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Compute and memory time [s] of a GEMM, dims broadcast; see `gemm_time`."""
    compute = smooth_maximum(*compute_roofs(terms, factors), ROOF_SHARPNESS)
    memory = (
        memory_time(
            terms["cold_traffic"],
            terms["warm_traffic"],
            hbm_rate=terms["peak_bandwidth"] * factors["eta_memory"],
            cache_rate=terms["cache_port"] * factors["eta_cache"],
        )
        + factors["memory_latency"] * terms["chain"]
    )
    return compute, memory


def gemm_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one GEMM kernel from its factors, dims broadcast from `terms` and `factors`.

    .. math::
        t &= t_0 + (t_c^p + t_m^p)^{1/p}, \quad p = 1 + \mathrm{knee} \\
        t_c &= (t_{issue}^w + t_{power}^w)^{1/w}, \quad w = 1.9 \\
        t_{issue} &= \frac{F}{P}\,\frac{1}{\eta_{cluster}\,\eta_{active}\,\eta_{duty}}, \quad
        t_{power} = \frac{F}{P\,c} \\
        t_m &= B_{cold}/R_{hbm} + B_{warm}/(R_{hbm} + R_{l2}) + \ell_m (1 - e^{-K/2500})

    :math:`\eta_{cluster}` is the wave and tile term ``grid_cost``; :math:`\eta_{active}` the
    K-prologue and small-tile cost; :math:`\eta_{duty}` is ``eta_issue``; the clock
    :math:`f_{clk}` is the power roof :math:`c`; :math:`\eta_{mem}` with its latency is the
    source's ramp with the weight size.

    Parameters
    ----------
    terms : mapping
        From `gemm_terms`.
    factors : mapping
        ``eta_issue``, ``clock_burst``, ``droop``, ``power_slope``, ``width_slope``,
        ``blank_gain``, ``eta_memory``, ``eta_cache``, ``knee`` (sharpness above 1) [1],
        ``prologue`` [elements of K], ``memory_latency`` [clock], ``launch_time`` [s]; scalars or
        dims (..., sku).

    Notes
    -----
    Fitted on bf16 tables with N and K from 128 to 65536 and M up to 32768.
    """
    compute, memory = gemm_branches(terms, factors)
    return factors["launch_time"] + smooth_maximum(compute, memory, 1 + factors["knee"])


def gemm_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of a GEMM, dims broadcast."""
    compute, memory = gemm_branches(terms, factors)
    return {"compute": compute, "memory": memory, "launch": factors["launch_time"]}


def ceiling_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] under one compute ceiling and one share of bandwidth, dims broadcast.

    The model that m2 replaces: ``max(F / (P·ceiling), B / (W·eta_memory))`` with ``ceiling`` and
    ``eta_memory`` [1] in `factors`, blind to waves, clock, latency and cache.
    """
    return roofline_time(
        terms["ideal_compute"],
        terms["cold_traffic"] + terms["warm_traffic"],
        peak_flop_rate=1.0,
        peak_bandwidth=terms["peak_bandwidth"],
        eta_compute=factors["ceiling"],
        eta_memory=factors["eta_memory"],
    )


def cache_gain(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Log factor by which L2 shortens the traffic of a kernel [1], dims broadcast.

    0 where nothing is warm or L2 is no faster than HBM; 0 too for a law without a cache.
    """
    total = terms["cold_traffic"] + terms["warm_traffic"]
    if "eta_cache" not in factors:
        return 0.0 * total
    rate = terms["peak_bandwidth"] * factors["eta_memory"]
    warm = memory_time(
        terms["cold_traffic"],
        terms["warm_traffic"],
        hbm_rate=rate,
        cache_rate=terms["cache_port"] * factors["eta_cache"],
    )
    return log(total / rate / warm)
