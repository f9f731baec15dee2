"""Time of an 8-bit GEMM and of quantising before it; what an 8-bit KV cache does to attention.

Kernel tables time quantising and GEMM together, as 16-bit activations come in. A served engine
quantises where it writes the activations, in a norm or an activation kernel, or in a light kernel
of its own: served, the law is that of the GEMM alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.mechanism.gemm import TILE_COST, gemm_bounds, gemm_terms, gemm_time
from m2bayes.mechanism.memory import memory_time
from m2bayes.mechanism.wave import eta_wave

READ, WRITTEN = 2.0, 1.0  # [byte] of one activation before and after
RESCALING = "trtllm"  # whose collector gives no scale: a first pass finds it
RIGID = ("sglang", "vllm")  # whose CUTLASS kernels choose the tile by M alone, without split-K
KV_TOKEN = 2 * 2 * 128.0  # [byte] of one token and KV head in 16 bits
HBM_SHARE, KNEE = 0.9, 3.0  # of the bandwidth that decode attention reaches; where it binds
NANOSECOND = 1e-9  # [s]
FEW, SHORT_TILE, TILE = 128, 64, 128  # tokens up to which a tile is short; sides of tiles


def fp8_gemm_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the 8-bit GEMM law that has no parameter in it.

    Parameters
    ----------
    cells, sheets, regime
        As `m2bayes.mechanism.gemm.gemm_terms`.
    backend : str or array_like of str
        Whose kernel it is: those of `RIGID` lose whole waves. The benchmark's recipe is its own
        too.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        As `gemm_terms`, and ``quantised``, ``rescaled`` [1], whether the row times those kernels,
        ``quantise_cold``, ``quantise_warm`` and ``rescale_traffic`` [byte].
    """
    terms = gemm_terms(cells, sheets, regime=regime, backend=backend)
    elements = cells["M"].astype(float) * cells["K"].astype(float)
    warm = terms["warm_traffic"] / (terms["cold_traffic"] + terms["warm_traffic"])
    timed = 0.0 if regime == "served" else 1.0
    moved = (READ + WRITTEN) * elements
    terms = terms.assign(_rigid_grid(terms, cells, sheets, _among(backend, RIGID)))
    return terms.assign(
        quantised=xr.full_like(elements, timed),
        rescaled=timed * _among(backend, (RESCALING,)),
        quantise_cold=moved * (1 - warm),
        quantise_warm=moved * warm,
        rescale_traffic=READ * elements,
    ).drop_vars("dtype", errors="ignore")


def _among(backend: Any, names: tuple[str, ...]) -> xr.DataArray:
    """Whether a backend is one of some [1], dims of `backend`."""
    found = np.isin(np.asarray(backend), names).astype(float)
    return xr.DataArray(found, dims=getattr(backend, "dims", ()))


def _rigid_grid(
    terms: xr.Dataset, cells: Mapping[Any, Any], sheets: Mapping[Any, Any], rigid: xr.DataArray
) -> dict[str, xr.DataArray]:
    """Issue costs of a kernel whose tile M alone decides, where `rigid`, dims broadcast [1]."""
    M, N, K = (cells[v].astype(float) for v in ("M", "N", "K"))
    tile = xr.where(M <= FEW, float(SHORT_TILE), float(TILE))
    own = {
        "grid_cost": 1 / eta_wave(M, N, tile_m=tile, tile_n=TILE, sm_count=sheets["sm_count"]),
        "tile_cost": 1 + TILE_COST * (64 / tile + 64 / TILE - 0.75),
        "passes": 1 / K,
    }
    return {name: xr.where(rigid > 0, value, terms[name]) for name, value in own.items()}


def quantise_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of the quantising kernels that a row times, dims broadcast; 0 when served."""
    hbm = terms["peak_bandwidth"] * factors["eta_memory"]
    moved = memory_time(
        terms["quantise_cold"],
        terms["quantise_warm"],
        hbm_rate=hbm,
        cache_rate=terms["cache_port"] * factors["eta_cache"],
    )
    own = factors["quantise_time"] + factors["quantise_passes"] * moved
    first = factors["rescale_time"] + factors["rescale_passes"] * terms["rescale_traffic"] / hbm
    return terms["quantised"] * own + terms["rescaled"] * first


def fp8_gemm_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one 8-bit GEMM, with its quantising kernels where a row times them.

    .. math:: t = t_{gemm} + q\,(t_q + n_q B_q / R) + r\,(t_r + n_r B_r / R_{hbm})

    with :math:`q` and :math:`r` 1 where the row times the kernel that quantises and those that
    find a scale first, else 0.

    Parameters
    ----------
    terms : mapping
        From `fp8_gemm_terms`.
    factors : mapping
        Those of `m2bayes.mechanism.gemm.gemm_time`, and ``quantise_time``, ``rescale_time`` [s],
        ``quantise_passes``, ``rescale_passes`` over the activations [1]; scalars or dims
        (..., sku).

    Notes
    -----
    Fitted on FP8 tables with N and K from 128 to 65536 and M up to 32768. Factors belong to a
    backend's kernel on a card: the backends' kernels are of different libraries.
    """
    return gemm_time(terms, factors) + quantise_time(terms, factors)


def fp8_gemm_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that each resource asks of an 8-bit GEMM, dims broadcast; quantising is launch."""
    bounds = gemm_bounds(terms, factors)
    return bounds | {"launch": bounds["launch"] + quantise_time(terms, factors)}


def kv_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    r"""Time of a decode attention kernel whose KV cache takes half the bytes, all else equal.

    .. math:: t_8 = t_{16}\,[1 - m^3 + (m/2)^3]^{1/3}, \quad m = \min(B_{16}/(0.9\,BW)/t_{16}, 1)

    Parameters
    ----------
    cells : Dataset
        ``batch``, ``length``, ``kv_heads`` [1], ``wide_time``, the time with 16 bits [ns].
    sheets : Dataset
        Datasheet numbers, dims (sku,) or gathered to the dims of `cells`.
    regime, backend : str
        Without effect.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``narrow_time`` [s].
    """
    cache = KV_TOKEN * cells["batch"] * cells["length"] * cells["kv_heads"].astype(float)
    wide = cells["wide_time"].astype(float) * NANOSECOND
    share = np.minimum(cache / (HBM_SHARE * sheets["peak_bandwidth"]) / wide, 1.0)
    narrow = wide * (1 - share**KNEE + (share / 2) ** KNEE) ** (1 / KNEE)
    return xr.Dataset({"narrow_time": narrow}).drop_vars("dtype", errors="ignore")


def kv_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of decode attention with an 8-bit cache: half the traffic's times a cost, dims kept.

    Parameters
    ----------
    terms : mapping
        ``narrow_time`` [s] from `kv_terms`.
    factors : mapping
        ``kv_cost`` [1]: what unpacking, or another kernel, costs or saves besides.
    """
    return terms["narrow_time"] * factors["kv_cost"]
