"""Time of a decode attention kernel, which reads the KV cache.

The law belongs to a kernel, not to a card: its factors are those of one library on one generation
of tensor cores. Each sequence and KV head is a block of threads; long contexts are split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import log, maximum, sigmoid, smooth_maximum
from m2bayes.mechanism.attention import ELEMENT, TILE, WIDE_TENSOR, floor_time, sizes_of

SPLIT_SHARPNESS = 3.0  # with which a context runs out of SMs to be split over
HALVED_L2 = 3e4  # [1/s] bandwidth over L2 size of cards with HBM, whose L2 has two partitions
CACHE_SHARE = (0.68, 1.02)  # of L2 that holds the KV cache of a replayed kernel: two parts, one
CACHE_SHARPNESS = (10.0, 40.0)  # of the edge where it no longer fits
COMBINE_LENGTH = 300.0  # [token] from which a context is split


def decode_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the decode law that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``batch`` [sequence], ``length`` tokens that each attends to [token], ``heads``,
        ``kv_heads``, ``head_dim`` on one GPU [1], ``kv_element`` of the cache [byte], any dims.
    sheets : Dataset
        Datasheet numbers for one dtype, dims (sku,) or gathered to the dims of `cells`.
    regime : {"served", "benchmark"}
        Served: the KV cache is cold and there is no floor of a lone launch. Benchmark: a replayed
        graph, whose KV cache L2 holds if it can.
    backend : str
        Without effect: the kernel is in the factors.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        Waves of ``blocks`` per SM, ``steps`` of 128 tokens, ``splits`` that the idle SMs offer,
        ``group`` queries per KV head, over 16, ``long``, ``sparse`` weights of the combining
        kernel [1], ``clock`` [Hz], ``hbm_time`` at the datasheet's bandwidth [s], ``cold``
        share of the cache that L2 does not hold, ``launches`` [1].
    """
    batch, length = sizes_of(cells, "batch", "length")
    heads, kv_heads, width = sizes_of(cells, "heads", "kv_heads", "head_dim")
    wide = sheets["tensor_flop_per_clock"] >= WIDE_TENSOR
    group = heads / kv_heads
    per_block = xr.where(wide, 32.0, 64.0)
    blocks = batch * kv_heads * np.ceil(group / per_block) / sheets["sm_count"]
    cache = 2 * cells.get("kv_element", ELEMENT) * width * batch * kv_heads * length
    traffic = cache + 2 * ELEMENT * width * batch * heads
    served = regime == "served"
    halved = sheets["peak_bandwidth"] / sheets["l2"] > HALVED_L2
    room = np.log(xr.where(halved, *CACHE_SHARE) * sheets["l2"] / cache)
    warm = sigmoid(xr.where(halved, *CACHE_SHARPNESS) * room) * (0.0 if served else 1.0)
    return xr.Dataset(
        {
            "blocks": xr.where(blocks > 1, np.ceil(blocks), blocks),  # the last wave as the others
            "steps": np.ceil(length / TILE) * width / TILE + 0.0 * blocks,
            "splits": np.minimum(np.maximum(1 / blocks, 1.0), np.ceil(length / TILE)),
            "group": group / 16 + 0.0 * blocks,
            "long": sigmoid(3 * np.log(length / COMBINE_LENGTH)) + 0.0 * blocks,
            "sparse": sigmoid(-3 * np.log(blocks)),
            "clock": sheets["boost_clock"],
            "hbm_time": traffic / sheets["peak_bandwidth"],
            "cold": 1 - warm + 0.0 * blocks,
            "launches": xr.full_like(length, 0.0 if served else 1.0),
        }
    ).drop_vars("dtype", errors="ignore")


def decode_branches(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> tuple[Any, Any, Any]:
    """SM, HBM and chain time [s] of a decode attention kernel, dims broadcast; `decode_time`."""
    issue = (
        terms["blocks"]
        * (factors["block_cost"] + factors["step_cost"] * terms["steps"])
        * (1 + factors["group_cost"] * terms["group"])
        / terms["clock"]
    )
    # inside a step a kernel's own latency holds the ramp
    ramp = terms["launches"] * factors["ramp_time"]
    memory = terms["cold"] * (terms["hbm_time"] / factors["eta_memory"] + ramp)
    # one block's share of the context: that of the SMs left to it, or of the most splits
    share = smooth_maximum(1 / terms["splits"], 1 / factors["most_splits"], SPLIT_SHARPNESS)
    chain = factors["step_cost"] * terms["steps"] * share / terms["clock"]
    return issue, memory, chain


def decode_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one decode attention kernel, dims broadcast.

    .. math::
        t &= t_0 + t_{comb} + (t_{sm}^p + t_{hbm}^p + t_{chain}^p)^{1/p} \\
        t_{sm} &= r\,(c_f + c_t n)(1 + g G/16)/f, \quad
        t_{hbm} = (1 - h)\,[B/(BW\,\eta) + t_r] \\
        t_{chain} &= c_t n\,\lVert 1/\min(1/r, n), 1/s_{max} \rVert_3 / f

    ``r`` blocks of threads an SM, one for each sequence and KV head, above one rounded up: the last
    wave takes as long as the others; ``n`` steps of 128 tokens; :math:`t_r` what reads from HBM
    take besides their bytes, part of :math:`t_0` in a served step; :math:`t_{chain}` the
    context-length term of a sequence that is split over at most :math:`s_{max}` SMs, and over fewer
    where the others are busy; ``G`` queries a KV head; ``h`` the share that L2 still holds, 0 in a
    served step.

    Parameters
    ----------
    terms : mapping
        From `decode_terms`.
    factors : mapping
        ``launch_time`` of a lone kernel in a graph, ``kernel_latency`` inside a step,
        ``combine_time``, ``ramp_time`` [s], ``block_cost``, ``step_cost`` [clock], ``group_cost``,
        ``eta_memory``, ``most_splits``, ``knee`` (sharpness above 1.8) [1].

    Notes
    -----
    Fitted for head_dim 128, contexts 2 to 131072, batch up to 2048.
    """
    issue, memory, chain = decode_branches(terms, factors)
    sharpness = 1.8 + factors["knee"]
    body = smooth_maximum(smooth_maximum(issue, memory + 1e-12, sharpness), chain, sharpness)
    combine = factors["combine_time"] * terms["long"] * terms["sparse"]
    return floor_time(terms, factors) + combine + body


def decode_steady(terms: Mapping[Any, Any]) -> Any:
    """Time [s] of decode attention that the datasheet's bandwidth decides, dims broadcast."""
    return terms["cold"] * terms["hbm_time"]


def decode_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of a decode attention kernel, dims broadcast.

    ``compute`` is the SMs' work or the chain of the longest split, whichever takes longer.
    """
    issue, memory, chain = decode_branches(terms, factors)
    combine = factors["combine_time"] * terms["long"] * terms["sparse"]
    launch = floor_time(terms, factors) + combine
    return {"compute": maximum(issue, chain), "memory": memory, "launch": launch}


def decode_gain(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Log factor by which L2 shortens a decode attention kernel [1], dims broadcast."""
    cold = {**terms, "cold": 1.0 + 0.0 * terms["cold"]}
    return log(decode_time(cold, factors) / decode_time(terms, factors))
