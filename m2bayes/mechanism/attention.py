"""Time of a prefill attention kernel, which schedules tiles of queries over the SMs.

The law belongs to a kernel, not to a card: its factors are those of one library on one generation
of tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import exp, log, sigmoid, smooth_maximum
from m2bayes.mechanism.clock import REFERENCE_POWER, REFERENCE_WIDTH

TILE = 128  # [token] side of a block of queries by keys
WIDE_TILE = 256  # [token] of queries where the tensor core takes two tiles at once
WIDE_TENSOR = 8192.0  # [FLOP/clock/SM] from which it does
EXPONENTIALS = 0.5  # share of the exponentials' time that the matrix products do not hide
PORT = 64.0  # [byte/clock/SM] an SM moves to and from L2
POWER_EXPONENT = 1 / 3  # of power per rate in the clock of busy SMs, see `clock.sustained_clock`
MOST_POWER = 1.3e-12  # [J/FLOP] more buys no clock: no measured card has more
LONE_EXPONENT = 0.5  # of tensor width in a lone tile, which also waits for latencies
LIST_SHARPNESS = 6.0  # of the longest tile against the work of all
WARM_SHARPNESS = 8.0  # of the edge where activations no longer fit into L2
REPLAYS = 16.0  # kernels in one benchmark run
BURST, SETTLING = 0.03, 0.7  # [s] after which a power-limited clock has settled, and its log width
ELEMENT = 2.0  # [byte] of bf16


def sizes_of(cells: Mapping[Any, Any], *names: str) -> list[Any]:
    """Columns of `cells` as floats, dims as there [as in `cells`]."""
    return [cells[name].astype(float) for name in names]


def prefill_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the prefill law that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``batch`` [sequence], ``length`` new and ``context`` cached tokens of each [token],
        ``heads``, ``kv_heads``, ``head_dim`` on one GPU [1], any dims.
    sheets : Dataset
        Datasheet numbers for one dtype, dims (sku,) or gathered to the dims of `cells`.
    regime : {"served", "benchmark"}
        Served: the clock has settled and no floor of a lone launch. Benchmark: a replayed CUDA
        graph of one kernel.
    backend : str
        Without effect: the kernel is in the factors.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``block_compute``, ``block_exponential`` [s] of one 128 × 128 block on one SM, ``pairs``
        and ``tiles`` [block/SM] of work, ``wave``, ``tile_keys``, ``tile_queries`` [block] of the
        longest tile, ``padding_work``, ``padding_tile`` [block/token], ``power``,
        ``lone_share``, ``cold``, ``launches`` [1], ``query_bytes``, ``key_bytes`` [byte],
        ``sm_rate``, ``peak_bandwidth`` [byte/s], ``settled`` [s].
    """
    batch, length, context = sizes_of(cells, "batch", "length", "context")
    heads, kv_heads, width = sizes_of(cells, "heads", "kv_heads", "head_dim")
    sms, boost = sheets["sm_count"], sheets["boost_clock"]
    queries = xr.where(sheets["tensor_flop_per_clock"] >= WIDE_TENSOR, WIDE_TILE, TILE)
    tiles = np.ceil(length / queries)
    block = TILE * TILE
    size = ELEMENT * width * batch
    footprint = 2 * size * (length * heads + (2 * length + context) * kv_heads)  # KV and its copy
    parallel = batch * heads / sms
    full = np.maximum(parallel * tiles, 1.0)
    served = regime == "served"
    cold = 1 - sigmoid(WARM_SHARPNESS * np.log(sheets["l2"] / footprint))
    power = np.minimum(sheets["power_limit"] / sheets["peak_flop_rate"], MOST_POWER)
    return xr.Dataset(
        {
            "block_compute": 4 * block * width / (sheets["peak_flop_rate"] / sms),
            "block_exponential": EXPONENTIALS * block / (sheets["exp_per_clock"] * boost),
            "pairs": parallel * length * (length / 2 + context) / block,
            "padding_work": parallel * length / 2 / block,
            "tiles": parallel * tiles * queries / TILE,
            "wave": np.log(np.ceil(full) / full),
            "tile_keys": np.minimum(length, queries) * (length + context) / block,
            "padding_tile": np.minimum(length, queries) / 2 / block,
            "tile_queries": queries / TILE + xr.zeros_like(length),
            "power": (power / REFERENCE_POWER) ** POWER_EXPONENT,
            "lone_share": (sheets["tensor_flop_per_clock"] / REFERENCE_WIDTH) ** LONE_EXPONENT,
            "query_bytes": 2 * size * length * heads,
            "key_bytes": 2 * size * (length + context) * kv_heads,
            "cold": cold,
            "sm_rate": PORT * sms * boost,
            "peak_bandwidth": sheets["peak_bandwidth"],
            "launches": xr.full_like(length, 0.0 if served else 1.0),
            "settled": xr.full_like(length, np.inf if served else 1.0),
        }
    ).drop_vars("dtype", errors="ignore")


def prefill_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one causal prefill attention kernel, dims broadcast.

    .. math::
        t &= t_0 + e^{d\,\sigma}\,[(u_1 L)^6 + (u W + \tau u_1 L)^6]^{1/6} + t_{lin} \\
        u &= u_{mma}/(e\,c) + u_{exp}, \quad u_1 = u_{mma}/e + u_{exp} \\
        W &= \frac{BH}{SM}\left[\frac{S(S + s_1)/2}{128^2} + o\,n_t\right], \quad
        L = \lambda\sqrt{w}\left[\frac{q(S + s_1/2)}{128^2} + o\right] \\
        t_{lin} &= \frac{m_q B_q + m_k B_k}{64\,SM f} + m_b (1 - h)\,\frac{B_q + B_k}{BW}

    ``W`` is the work per SM in blocks of 128 × 128 (query, key) pairs, ``L`` the longest tile:
    the larger of the two and their sum's share :math:`\tau` end the kernel. ``c`` is the clock of
    busy SMs under the power limit, the cube root of power per rate over 0.7 pJ/FLOP; a lone tile is
    spared, and waits for latencies as much as for the tensor cores, of width ``w`` over 4096. The
    source's :math:`c_{attn}` saturates the efficiency at small S; here the padding :math:`s_1` and
    the overhead :math:`o` of a tile do it, which also hold for other batches and heads.

    Parameters
    ----------
    terms : mapping
        From `prefill_terms`.
    factors : mapping
        ``launch_time`` of a lone kernel in a graph and ``kernel_latency`` inside a step [s],
        ``eta_tensor`` [1], ``tile_overhead`` [block], ``padding`` [token], ``tail``,
        ``lone_tile``, ``wave_share``, ``port_cost``, ``key_cost``, ``droop`` [1], ``memory_cost``
        [pass].

    Notes
    -----
    Fitted for head_dim 128, lengths 16 to 16384, no cached context.
    """
    return floor_time(terms, factors) + sum(prefill_parts(terms, factors))


def prefill_parts(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Time [s] of the tiles, and of moving activations, dims broadcast; see `prefill_time`."""
    products = terms["block_compute"] / factors["eta_tensor"]
    alone, busy = (products / clock + terms["block_exponential"] for clock in (1, terms["power"]))
    overhead = factors["tile_overhead"]
    work = (
        terms["pairs"] + factors["padding"] * terms["padding_work"] + overhead * terms["tiles"]
    ) * exp(factors["wave_share"] * terms["wave"])
    lone = alone * factors["lone_tile"] * terms["lone_share"]
    last = lone * (
        terms["tile_keys"]
        + factors["padding"] * terms["padding_tile"]
        + overhead * terms["tile_queries"]
    )
    tiles = smooth_maximum(last, busy * work + factors["tail"] * last, LIST_SHARPNESS)
    settled = exp(factors["droop"] * settling(terms["settled"] * REPLAYS * busy * work))
    port = factors["port_cost"] * terms["query_bytes"] + factors["key_cost"] * terms["key_bytes"]
    memory = terms["cold"] * (terms["query_bytes"] + terms["key_bytes"]) / terms["peak_bandwidth"]
    return settled * tiles, port / terms["sm_rate"] + factors["memory_cost"] * memory


def prefill_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of a prefill attention kernel, dims broadcast."""
    compute, memory = prefill_parts(terms, factors)
    return {"compute": compute, "memory": memory, "launch": floor_time(terms, factors)}


def settling(burst: Any) -> Any:
    """Share [1] of the clock's droop that shows after `burst` seconds of load, dims of `burst`.

    >>> float(settling(0.03)), float(settling(float("inf")))
    (0.5, 1.0)
    """
    return sigmoid(log(burst / BURST) / SETTLING)


def floor_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Launch of a lone graph [s], or in a step a kernel's own latency, dims broadcast."""
    lone = terms["launches"]
    return lone * factors["launch_time"] + (1 - lone) * factors["kernel_latency"]
