"""Time of one light kernel: norm, RoPE, residual add, activation, KV write or embedding.

Such a kernel does next to no arithmetic: it starts, reads and writes each element a few times, and
is bound by its launch, by the memory or by the rate at which the SMs issue loads and stores.
`light_terms` computes all that has no parameter in it; `light_time` is the law of the factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
BLOCK = {"norm": 1024, "activation": 1024, "rope": 512, "kv_write": 512}  # threads for one token
STRIDE = 1024.0  # elements of a token that such a block takes at a time: rotation takes pairs
IN_TURN = ("rope",)  # query heads, then key heads: even narrow tokens leave lanes empty
ROOM, LESS_ROOM = 2048, 1536  # threads of an SM; of a chip with narrow tensor cores
NARROW = 2048  # FLOP/clock/SM of bf16 below which a chip is one of those: GA10x, Ada, GB20x
ITEM = 2.0  # bytes of a bf16 element
CLOCK = 1.41e9  # boost clock that the floor belongs to [Hz]
CACHE_SHARE = 0.18  # of the L2 port that comes on top for warm bytes: the GEMMs' prior centre
RECENT_ROOM = 0.8  # share of L2 that a footprint may fill until half of it is gone
RECENT_EDGE = 3.0  # how the share that is still in L2 falls with the footprint


def light_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
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
        ``cold_traffic``, ``warm_traffic`` [byte], ``empty_slots``, ``empty_lanes`` [1],
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
    threads = _by_kernel(cells["kernel"], BLOCK)
    room = xr.where(sheets["tensor_flop_per_clock"] < NARROW, LESS_ROOM, ROOM)
    return xr.Dataset(
        {
            "cold_traffic": traffic - warm,
            "warm_traffic": warm,
            "empty_slots": empty_slots(tokens, threads, sheets["sm_count"], room),
            "empty_lanes": empty_lanes(cells["kernel"], width),
            "clock_cost": (CLOCK / sheets["boost_clock"]) ** 0.5,
            "peak_bandwidth": sheets["peak_bandwidth"],
            "cache_port": issue_rate * CACHE_PORT,
            "issue_rate": issue_rate,
        }
    ).drop_vars("dtype", errors="ignore")


def empty_slots(tokens: Any, threads: Any, sm_count: Any, room: Any) -> Any:
    r"""Slots of a wave that hold no block, for each that holds one [1], dims broadcast.

    .. math:: \frac{1}{\sqrt{n}} \left(\frac{n\,S_0}{T} - 1\right), \quad
              n = \lceil T / S \rceil

    A token has a block, an SM room for a few of them at once: :math:`S` blocks make a wave, of
    :math:`S_0` slots if all SMs were roomy. Neither a last wave that is not full nor an SM that
    has less room is felt as much by a long kernel: its blocks no longer start in step, and
    engines make them smaller.

    Parameters
    ----------
    tokens : array_like
        As many as blocks [1].
    threads : array_like
        Of a block, 0 for a kernel whose blocks are small [1].
    sm_count : array_like, dims (sku,)
        Streaming multiprocessors [1].
    room : array_like, dims (sku,)
        Threads that an SM holds [1].

    Examples
    --------
    An A100 takes 216 blocks of 1024 threads at a time, an A40 84 where 168 would fit a roomy SM.

    >>> float(empty_slots(216.0, 1024, 108, 2048)), float(empty_slots(54.0, 1024, 108, 2048))
    (0.0, 3.0)
    >>> float(empty_slots(84.0, 1024, 84, 1536))
    1.0
    """
    blocks = np.maximum(threads, 1)
    waves = np.ceil(tokens / (sm_count * (room // blocks)))
    slots = waves * sm_count * (ROOM // blocks)
    return (threads > 0) * (slots / tokens - 1) / waves**0.5


def empty_lanes(kernel: xr.DataArray, width: xr.DataArray) -> xr.DataArray:
    """Threads without an element in the strides of one token, for each that has one [1].

    A block takes `STRIDE` elements at a time, and has fewer threads where the whole token has
    fewer elements; dims of `kernel`, one of `PASSES`, and of `width` [element].

    >>> kernel = xr.DataArray(["activation", "norm", "norm", "add"], dims="shape")
    >>> empty_lanes(kernel, xr.DataArray([1536.0, 4096.0, 640.0, 1536.0], dims="shape")).values
    array([0.33333333, 0.        , 0.        , 0.        ])
    """
    strides = np.ceil(width / STRIDE) * STRIDE / width - 1
    wide = (width > STRIDE) | _among(kernel, IN_TURN)
    return (wide & _among(kernel, [*BLOCK])) * strides


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
    >>> recent_share(1e6, 50e6) > 0.999, recent_share(40e6, 50e6)
    (True, 0.5)
    """
    return 1 / (1 + (footprint / (RECENT_ROOM * l2)) ** RECENT_EDGE)


def _among(kernel: xr.DataArray, names: Sequence[str]) -> xr.DataArray:
    """Whether each kernel is one of `names`; dims of `kernel`."""
    return kernel.copy(data=np.isin(kernel.values.astype(str), names))


def _by_kernel(kernel: xr.DataArray, table: Mapping[str, float]) -> xr.DataArray:
    """Look up each kernel in `table`, 0 where it does not stand there; dims of `kernel`."""
    names = kernel.values.astype(str)
    return xr.zeros_like(kernel, dtype=float) + sum(n * (names == k) for k, n in table.items())


def light_body(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of the traffic of a light kernel without its floor, dims broadcast."""
    return smooth_maximum(*_roofs(terms, factors), 1 + factors["roof_knee"])


def _roofs(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Memory and issue time [s] of the traffic of a light kernel, dims broadcast."""
    cold, warm = terms["cold_traffic"], terms["warm_traffic"]
    memory = memory_time(
        cold,
        warm,
        hbm_rate=terms["peak_bandwidth"] * factors["eta_memory"],
        cache_rate=terms["cache_port"] * CACHE_SHARE,
    )
    waited = warm + (1 + factors["cold_wait"]) * cold
    idle = (1 + _share(factors["slot_odds"]) * terms["empty_slots"]) * (
        1 + _share(factors["lane_odds"]) * terms["empty_lanes"]
    )
    return memory, factors["issue_cost"] * waited * idle / terms["issue_rate"]


def _share(odds: Any) -> Any:
    """Share [1] of what a busy place costs that an empty one does, dims of `odds`."""
    return odds / (1 + odds)


def light_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of a light kernel, dims broadcast."""
    memory, issue = _roofs(terms, factors)
    return {"compute": issue, "memory": memory, "launch": light_floor(terms, factors)}


def light_floor(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of a light kernel that moves next to nothing, dims broadcast."""
    return factors["floor"] * terms["clock_cost"]


def light_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one light kernel from its factors, dims broadcast from `terms` and `factors`.

    .. math::
        t &= (f^q + b^q)^{1/q}, \quad q = 1 + \mathrm{floor\_knee}, \quad
        f = f_0 \sqrt{1.41\,\mathrm{GHz} / f_{boost}} \\
        b &= (t_m^p + t_s^p)^{1/p}, \quad p = 1 + \mathrm{roof\_knee} \\
        t_m &= \frac{B_{cold}}{\eta W} + \frac{B_{warm}}{\eta W + R_{l2}} \\
        t_s &= \frac{c}{n_{SM}\,f_{boost}}\,(B_{warm} + (1 + k) B_{cold})\,
               (1 + s\,E_{slot})\,(1 + l\,E_{lane}), \quad
        s = \frac{o_s}{1 + o_s}, \quad l = \frac{o_l}{1 + o_l}

    Norm, RoPE, activation and KV write give each token a block of up to 1024 threads. So an SM
    holds one or two, a wave of them that is not full takes nearly as long as a full one, and a
    token whose width is no multiple of the threads leaves some idle in its last stride:
    :math:`E_{slot}` and :math:`E_{lane}` of `light_terms`. An SM waits longer for bytes that are
    no longer in L2, the more so the less else it has to do. A short kernel is bound by latency,
    which follows the clock less than in proportion: hence the root.

    Parameters
    ----------
    terms : mapping
        From `light_terms`.
    factors : mapping
        ``floor`` :math:`f_0` [s]; ``issue_cost`` :math:`c` [SM·clock/byte], the clocks that one
        SM needs for a byte in L2; ``cold_wait`` :math:`k`, how much longer for one in memory;
        ``slot_odds`` :math:`o_s` and ``lane_odds`` :math:`o_l`, of what an empty slot or lane
        costs to what a busy one costs more; ``eta_memory`` :math:`\eta`, the achieved share of
        bandwidth; ``floor_knee``, ``roof_knee`` (sharpness above 1) [1]; scalars or dims
        (..., sku).

    Notes
    -----
    The form comes from bf16 profiles of Vidur [1]_: 1 to 32768 tokens, 512 to 28672 elements
    a token. Steps at every 216 tokens of an A100, two blocks on each of its SMs, are plain there.

    References
    ----------
    .. [1] Agrawal et al. (2024). *Vidur: A Large-Scale Simulation Framework for LLM Inference*.
       https://arxiv.org/abs/2405.05465

    Examples
    --------
    A floor of 4 us and a body of 3 us, the latter from the SMs alone, met with q = 2.

    >>> terms = {"cold_traffic": 0.0, "warm_traffic": 15.0, "empty_slots": 2.0,
    ...          "empty_lanes": 0.0, "clock_cost": 1.0, "peak_bandwidth": 1e20,
    ...          "cache_port": 1e20, "issue_rate": 1e6}
    >>> factors = {"floor": 4e-6, "issue_cost": 0.1, "cold_wait": 0.2, "slot_odds": 1.0,
    ...            "lane_odds": 1.0, "eta_memory": 0.9, "floor_knee": 1.0, "roof_knee": 1.0}
    >>> round(float(light_time(terms, factors)) * 1e6, 6)
    5.0
    """
    floor, body = light_floor(terms, factors), light_body(terms, factors)
    return smooth_maximum(floor, body, 1 + factors["floor_knee"])
