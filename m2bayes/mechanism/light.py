"""Time of one light kernel: norm, RoPE, residual add, activation, KV write or embedding.

Such a kernel does next to no arithmetic: it starts, reads and writes each element a few times, and
is bound by its launch, by the memory or by the rate at which the SMs issue loads and stores.
`light_terms` computes all that has no parameter in it; `light_time` is the law of the factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import smooth_maximum
from m2bayes.errors import UnknownNameError
from m2bayes.mechanism.gemm import REGIMES
from m2bayes.mechanism.memory import CACHE_PORT, memory_time

PASSES = {  # reads and writes of each element that no implementation can save
    "norm": 2,
    "rope": 2,
    "add": 3,
    "activation": 3,  # gate and up in, one out, of the gated width
    "kv_write": 2,
    "embedding": 2,
    "quantise": 1.5,  # two bytes in, one out
}
COLD_PASSES = {"embedding": 1}  # rows of a table that nobody has just written
ITEM = 2.0  # bytes of a bf16 element
WIDTH = 4096.0  # elements that ``floor_width`` belongs to
CLOCK = 1.41e9  # boost clock that both floors belong to [Hz]
HBM_SHARE = 0.9  # of the peak bandwidth that a streaming kernel reaches
CACHE_SHARE = 0.18  # of the L2 port that comes on top for warm bytes: the GEMMs' prior centre
RECENT_EDGE = 3.0  # how the share that is still in L2 falls with the footprint


def light_terms(
    cells: xr.Dataset, sheets: xr.Dataset, *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the law of the light kernels that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``kernel``, one of `PASSES`; ``tokens`` [token]; ``width`` [element] of one token on one
        GPU: hidden size of norm, add and embedding, gated MLP width of activation, (query + KV
        heads) × head size of rope, 2 × KV heads × head size of kv_write; any dims.
    sheets : Dataset
        Datasheet numbers for one dtype, dims (sku,) or gathered to the dims of `cells`.
    regime : {"served", "benchmark"}
        The same here: the profiler runs the kernels of a block one after another, as a server
        does. What the previous kernel wrote is warm as far as it fits into L2.
    backend : str or array_like of str
        Without effect: a light kernel has no recipe of its own.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``cold_traffic``, ``warm_traffic`` [byte], ``relative_width`` over 4096 elements,
        ``clock_cost``, the root of 1.41 GHz over the boost clock [1], ``peak_bandwidth``,
        ``cache_port`` [byte/s], ``issue_rate``, SMs × boost clock [SM·clock/s].

    Raises
    ------
    ValueError
        For a regime other than the two.
    UnknownNameError
        For a kernel that is not in `PASSES`.
    """
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(REGIMES)}, not {regime!r}")
    for name in np.unique(cells["kernel"].values.astype(str)):
        if name not in PASSES:
            raise UnknownNameError("kernel", str(name), PASSES)
    tokens, width = cells["tokens"].astype(float), cells["width"].astype(float)
    one_pass = ITEM * tokens * width
    traffic = _by_kernel(cells["kernel"], PASSES) * one_pass
    recent = traffic - _by_kernel(cells["kernel"], COLD_PASSES) * one_pass
    warm = recent * recent_share(traffic, sheets["l2"])
    issue_rate = sheets["sm_count"] * sheets["boost_clock"]
    return xr.Dataset(
        {
            "cold_traffic": traffic - warm,
            "warm_traffic": warm,
            "relative_width": width / WIDTH,
            "clock_cost": (CLOCK / sheets["boost_clock"]) ** 0.5,
            "peak_bandwidth": sheets["peak_bandwidth"],
            "cache_port": issue_rate * CACHE_PORT,
            "issue_rate": issue_rate,
        }
    ).drop_vars("dtype", errors="ignore")


def recent_share(footprint: Any, l2: Any) -> Any:
    """Share of what the previous kernel wrote that L2 still holds [1], dims broadcast.

    The fall is gentler than that of `m2bayes.mechanism.memory.warm_share`: a buffer that streams
    through once is evicted in part, one that is replayed in a circle at once.

    Parameters
    ----------
    footprint : array_like
        All that the kernel reads and writes [byte].
    l2 : array_like, dims (sku,)
        Capacity of the level-2 cache [byte].

    Examples
    --------
    >>> recent_share(1e6, 50e6) > 0.999, recent_share(50e6, 50e6)
    (True, 0.5)
    """
    return 1 / (1 + (footprint / l2) ** RECENT_EDGE)


def _by_kernel(kernel: xr.DataArray, table: Mapping[str, float]) -> xr.DataArray:
    """Look up each kernel in `table`, 0 where it does not stand there; dims of `kernel`."""
    names = kernel.values.astype(str)
    return xr.zeros_like(kernel, dtype=float) + sum(n * (names == k) for k, n in table.items())


def light_body(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of the traffic of a light kernel without its floor, dims broadcast."""
    return smooth_maximum(*_roofs(terms, factors), 1 + factors["roof_knee"])


def _roofs(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Memory and issue time [s] of the traffic of a light kernel, dims broadcast."""
    traffic = terms["cold_traffic"] + terms["warm_traffic"]
    memory = memory_time(
        terms["cold_traffic"],
        terms["warm_traffic"],
        hbm_rate=terms["peak_bandwidth"] * HBM_SHARE,
        cache_rate=terms["cache_port"] * CACHE_SHARE,
    )
    return memory, factors["issue_cost"] * traffic / terms["issue_rate"]


def light_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of a light kernel, dims broadcast."""
    memory, issue = _roofs(terms, factors)
    return {"compute": issue, "memory": memory, "launch": light_floor(terms, factors)}


def light_floor(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of a light kernel that moves next to nothing, dims broadcast."""
    wide = factors["floor"] + factors["floor_width"] * terms["relative_width"]
    return wide * terms["clock_cost"]


def light_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one light kernel from its factors, dims broadcast from `terms` and `factors`.

    .. math::
        t &= (f^q + b^q)^{1/q}, \quad q = 1 + \mathrm{floor\_knee} \\
        f &= (f_0 + f_1\, w / 4096) \sqrt{1.41\,\mathrm{GHz} / f_{boost}} \\
        b &= (t_m^p + t_s^p)^{1/p}, \quad p = 1 + \mathrm{roof\_knee} \\
        t_m &= \frac{B_{cold}}{0.9\,W} + \frac{B_{warm}}{0.9\,W + R_{l2}}, \quad
        t_s = \frac{c\,(B_{cold} + B_{warm})}{n_{SM}\,f_{boost}}

    A wide token takes longer even alone, since one block reads it. A short kernel is bound by
    latency, which follows the clock less than in proportion: hence the root.

    Parameters
    ----------
    terms : mapping
        From `light_terms`.
    factors : mapping
        ``floor`` :math:`f_0` [s]; ``floor_width`` :math:`f_1` [s] for 4096 elements;
        ``issue_cost`` :math:`c` [SM·clock/byte], the clocks that one SM needs for a byte;
        ``floor_knee``, ``roof_knee`` (sharpness above 1) [1]; scalars or dims (..., sku).

    Notes
    -----
    The form comes from bf16 profiles of Vidur [1]_: 1 to 32768 tokens, 512 to 28672 elements
    a token. A byte through one SM takes 0.06 to 0.5 clocks there, a floor 1.5 to 9 us.

    References
    ----------
    .. [1] Agrawal et al. (2024). *Vidur: A Large-Scale Simulation Framework for LLM Inference*.
       https://arxiv.org/abs/2405.05465

    Examples
    --------
    A floor of 4 us and a body of 3 us, the latter from the SMs alone, met with q = 2.

    >>> terms = {"cold_traffic": 30.0, "warm_traffic": 0.0, "relative_width": 1.0,
    ...          "clock_cost": 1.0, "peak_bandwidth": 1e20, "cache_port": 1e20,
    ...          "issue_rate": 1e6}
    >>> factors = {"floor": 3e-6, "floor_width": 1e-6, "issue_cost": 0.1, "floor_knee": 1.0,
    ...            "roof_knee": 1.0}
    >>> round(float(light_time(terms, factors)) * 1e6, 6)
    5.0
    """
    floor, body = light_floor(terms, factors), light_body(terms, factors)
    return smooth_maximum(floor, body, 1 + factors["floor_knee"])
