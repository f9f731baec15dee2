"""Kernels of a step whose weights, activations or KV cache are narrower than 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.factors import by_sku, with_skus
from m2bayes.kernels import unit_sheets
from m2bayes.memory import P_WIDE_CACHE
from m2bayes.operators import HEAD
from m2bayes.predictive import law_of, own_seed, predict
from m2bayes.quantisation import KV_BYTES, named, of_dtype, sheets_of

QUANTISE, NORM = "quantise", "norm"  # ops of a step


def products(
    parts: Mapping[str, xr.Dataset],
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    form: str,
    *,
    seed: int,
    **settings: Any,
) -> xr.DataArray:
    """Joint draws of the time of projections in one format, and of the LM head in 16 bits.

    Parameters
    ----------
    parts : mapping of Dataset, dims (chain, draw, …)
        ``gemm``, and ``head`` where the LM head's posterior is another.
    cells : Dataset, dims (workload, op)
        From `m2bayes.operators.operators`.
    datasheets : Dataset, dims (sku,) or (sku, dtype)
        Of the SKUs asked for.
    form : str
        Format of the projections, see `m2bayes.quantisation.FORMATS`.
    seed : int
        Of everything that is drawn here.
    **settings
        Of `m2bayes.predictive.predict`.

    Returns
    -------
    DataArray, dims (chain, draw, sku, workload, op)
        Time of one call [s].
    """
    settings = settings | {"seed": seed}
    if form == "bf16" and "head" not in parts:
        return predict(parts["gemm"], cells, datasheets, **settings)
    head = cells["op"].values == HEAD
    time = predict(parts["gemm"], cells.isel(op=~head), sheets_of(datasheets, form), **settings)
    time = time * _cost(form, time, seed=seed)
    last = predict(
        parts.get("head", parts["gemm"]),
        cells.isel(op=head),
        of_dtype(datasheets, "bf16"),
        **settings,
    )
    return xr.concat([time, last], dim="op", join="override", coords="minimal", compat="override")


def _cost(form: str, like: xr.DataArray, *, seed: int) -> xr.DataArray | float:
    """What kernels of a format that nobody measured cost besides, dims (chain, draw, sku) [1].

    Half of its variance is common to all SKUs.
    """
    median, spread = named(form).cost
    if not spread:
        return median
    shape = tuple(like.sizes[d] for d in ("chain", "draw"))
    common = labelled_rng(seed, "format", form).standard_normal(shape)
    columns = [
        (common + labelled_rng(seed, "format", form, str(sku)).standard_normal(shape)) / np.sqrt(2)
        for sku in like["sku"].values
    ]
    coords = {d: like[d] for d in ("chain", "draw", "sku")}
    normal = xr.DataArray(np.stack(columns, axis=-1), coords, ("chain", "draw", "sku"))
    return normal.copy(data=median * np.exp(spread * normal.values))


def narrow_cache(
    parts: Mapping[str, xr.Dataset], form: str, kv_dtype: str | None, *, seed: int
) -> xr.DataArray:
    """Whether the KV cache is in 8 bits [1], dims (chain, draw): all draws, none, or some.

    Parameters
    ----------
    parts : mapping of Dataset, dims (chain, draw, …)
        With ``attention_decode``; with ``kv_fp8`` if any cache is in 8 bits.
    form : str
        Format of weights and activations.
    kv_dtype : str or None
        ``bf16`` or ``fp8``. None: in 16 bits; of 8-bit activations in 8 bits with the probability
        and in the draws of `m2bayes.memory.memory_left`.
    seed : int
        Of the draws.

    Raises
    ------
    UnknownNameError, WorkloadError
        For a type that is unknown; for 8 bits without the posterior that they need.
    """
    if kv_dtype is not None and kv_dtype not in KV_BYTES:
        raise UnknownNameError("kv_dtype", kv_dtype, KV_BYTES)
    decode = parts["attention_decode"]
    sizes = [decode.sizes[d] for d in ("chain", "draw")]
    held = np.full(sizes, kv_dtype == "fp8")
    if kv_dtype is None and named(form).activation == KV_BYTES["fp8"]:
        held = labelled_rng(seed, "type of the cache").random(sizes) > P_WIDE_CACHE
    if held.any() and "kv_fp8" not in parts:
        raise WorkloadError("an 8-bit KV cache needs a posterior kv_fp8; use an assembly with one")
    return xr.DataArray(held, {d: decode[d] for d in ("chain", "draw")}, ("chain", "draw"))


def decode(
    parts: Mapping[str, xr.Dataset],
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    cache: xr.DataArray,
    **settings: Any,
) -> xr.DataArray:
    """Joint draws of the time of decode attention, with an 8-bit cache in the draws of `cache`.

    Parameters
    ----------
    parts : mapping of Dataset, dims (chain, draw, …)
        ``attention_decode``, and ``kv_fp8`` where any cache is in 8 bits.
    cells : Dataset, dims (workload, op)
        From `m2bayes.operators.operators`.
    datasheets : Dataset, dims (sku,) or (sku, dtype)
        Of the SKUs asked for.
    cache : DataArray of bool, dims (chain, draw)
        From `narrow_cache`.
    **settings
        Of `m2bayes.predictive.predict`.

    Returns
    -------
    DataArray, dims (chain, draw, sku, workload, op)
        Time of one call [s].
    """
    posterior = parts["attention_decode"]
    if cache.values.all():
        wide = None
    else:
        wide = predict(posterior, cells, datasheets, **settings)
        if not cache.values.any():
            return wide
    eight = cells.assign(kv_element=0 * cells["kv_element"] + KV_BYTES["fp8"])
    cost = kv_cost(parts["kv_fp8"], cells, of_dtype(datasheets, "bf16"), seed=settings["seed"])
    narrow = predict(posterior, eight, datasheets, cost=cost, **settings)
    return narrow if wide is None else wide.where(~cache, narrow).assign_attrs(units="s")


def kv_cost(
    posterior: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset, *, seed: int
) -> Callable[[str], xr.DataArray]:
    """What an 8-bit cache costs a backend's decode kernel besides half the traffic.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Of the law ``kv_time``.
    cells : Dataset, dims (workload, op)
        All of one kernel: multi-head or grouped.
    datasheets : Dataset, dims (sku,)
        For 16 bits.
    seed : int
        Of everything that is drawn here.

    Returns
    -------
    callable
        From a backend to factors [1], dims (chain, draw, sku, workload): the kernel's, and its
        scatter between shapes.
    """
    law, skus = law_of(posterior), datasheets["sku"].values
    seed = own_seed(posterior, seed)
    samples = [posterior.sizes[d] for d in ("chain", "draw")]

    def cost(backend: str) -> xr.DataArray:
        label = law.variant(cells, backend).ravel()[0]  # type: ignore[misc]
        units = unit_sheets(law, datasheets, [f"{sku}/{label}" for sku in skus])
        factor = with_skus(posterior, units, seed=seed)["kv_cost"].assign_coords(sku=skus)
        # the scatter between shapes is no more than usual where cards differ more than usual
        usual = units.drop_vars("spread")
        spread = by_sku(posterior, "log_sigma_cell", usual, seed).assign_coords(sku=skus)
        normal = [
            [
                labelled_rng(seed, "kv", str(unit), str(w)).standard_normal(samples)
                for w in cells["workload"].values
            ]
            for unit in units["sku"].values
        ]
        coords = {"sku": skus, "workload": cells["workload"].values}
        noise = xr.DataArray(np.array(normal), coords, ("sku", "workload", "chain", "draw"))
        return factor * np.exp(np.exp(spread) * noise)

    return cost


def unfused(time: xr.DataArray, engine: str, summed: xr.DataArray, *, seed: int) -> xr.DataArray:
    """Times with the share of light kernels that an engine does not fuse away, dims kept.

    Engines of 8-bit LLMs quantise in the norm or activation before, and where GPUs share the LLM
    and a step is small they add and norm in the all-reduce (TensorRT-LLM's all-reduce fusions,
    passes of vLLM's compiler); which of it, their settings say: of each engine any share is as
    likely, the same on all SKUs [1]. Times without quantising stay.

    Parameters
    ----------
    time : DataArray, dims (chain, draw, sku, workload, op)
        Of light kernels [s].
    engine : str
        Name of the engine.
    summed : DataArray of bool, dims (workload,)
        Whether a step is small and its layers end in an all-reduce.
    seed : int
        Of the shares.
    """
    ops = time["op"].values
    if QUANTISE not in ops:
        return time
    sizes = [time.sizes[d] for d in ("chain", "draw")]
    coords = {d: time[d] for d in ("chain", "draw")}
    share = {
        op: xr.DataArray(
            labelled_rng(seed, "unfused", op, engine).random(sizes), coords, ("chain", "draw")
        )
        for op in (QUANTISE, NORM)
    }
    at = {op: xr.DataArray(ops == op, {"op": time["op"]}, ("op",)) for op in share}
    time = time.where(~at[QUANTISE], time * share[QUANTISE])
    return time.where(~(at[NORM] & summed), time * share[NORM]).transpose(*time.dims)
