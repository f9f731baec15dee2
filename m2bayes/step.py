"""Time of a whole engine step: joint draws of every operator, and of what the host adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes import narrow
from m2bayes._random import labelled_rng
from m2bayes._spec import Step
from m2bayes.errors import WorkloadError
from m2bayes.factors import with_skus
from m2bayes.kernels import unit_sheets
from m2bayes.llm import LLM
from m2bayes.mechanism import host
from m2bayes.mechanism.power import capped_clock
from m2bayes.operators import operators
from m2bayes.predictive import backends, law_of, predict

PARTS = ("gemm", "attention_prefill", "attention_decode", "light", "allreduce", "host")
# what a step of 8-bit numbers needs besides: the LM head's products, what an 8-bit cache costs
MORE_PARTS = ("head", "kv_fp8")
LIBRARY = "nccl"  # that every engine can fall back on
CAP_SPREAD = 0.45  # log spread of the cap's exponent between cards, see `capped_share`


def aligned(parts: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Parts thinned to the same number of draws: one index is one state of the world.

    The parts were fitted apart, so pairing their draws by index makes joint draws of independent
    posteriors.

    Parameters
    ----------
    parts : mapping of Dataset, dims (chain, draw, …)
        Posteriors by name.
    """
    draws, chains = (min(part.sizes[d] for part in parts.values()) for d in ("draw", "chain"))
    labels = {"chain": np.arange(chains), "draw": np.arange(draws)}
    return {
        name: spaced(part.isel(chain=slice(chains)), draws).assign_coords(labels)
        for name, part in parts.items()
    }


def spaced(posterior: xr.Dataset, draws: int) -> xr.Dataset:
    """Evenly spaced `draws` [1] of each chain, all of them if it has no more; other dims kept."""
    held = posterior.sizes["draw"]
    if held == draws:
        return posterior
    return posterior.isel(draw=np.linspace(0, held - 1, draws).round().astype(int))


def operator_times(
    parts: Mapping[str, xr.Dataset],
    llm: LLM,
    steps: Sequence[Step],
    datasheets: xr.Dataset,
    *,
    tp: int = 1,
    backend: str = "any",
    engine: str = "",
    graphs: bool = True,
    overlap: bool = False,
    dtype: str = "",
    kv_dtype: str | None = None,
    noise: int = 0,
    seed: int = 0,
) -> xr.DataArray:
    """Joint draws of each operator's time in each step, all its calls together.

    Parameters
    ----------
    parts : mapping of Dataset, dims (chain, draw, …)
        Posteriors of `PARTS`, aligned, and of `MORE_PARTS` where there are any.
    llm : LLM
        Shape of the LLM.
    steps : sequence of Step, dims (workload,)
        In the order asked.
    datasheets : Dataset, dims (sku,) or (sku, dtype)
        Of the SKUs asked for; with ``power_cap`` [1] where a card's limit is lowered.
    tp : int
        GPUs that share the LLM [1].
    backend : str
        Whose kernels run, or ``any``.
    engine : str
        Whose host code runs; by default the backend's.
    graphs : bool
        Whether the engine captures CUDA graphs.
    overlap : bool
        Whether its host works one step ahead, see `m2bayes.mechanism.host.step_time`.
    dtype, kv_dtype : str
        Of weights and activations, see `m2bayes.quantisation.FORMATS`, by default that of the
        projections' posterior; and of the KV cache, see `m2bayes.narrow.narrow_cache`.
    noise, seed : int
        See `m2bayes.predictive.predict`.

    Returns
    -------
    DataArray, dims (chain, draw, sku, workload, op)
        Time [s]; ``host`` is what the host adds, so that the sum is the time of the step:
        the launches that outlast the kernels, the work for each sequence, and sampling.
    """
    form = dtype or str(parts["gemm"].attrs["dtype"])
    cells = operators(llm, steps, tp=tp, graphs=graphs, dtype=form)
    settings: dict[str, Any] = {"noise": noise, "seed": seed}
    clock = capped_share(parts.get("head", parts["gemm"]), datasheets, seed=seed)
    times, often = [], []
    for part in PARTS[:-1]:
        calls = cells[part]["calls"]
        if not (calls > 0).any():
            continue
        if part == "allreduce":
            time = _allreduce(parts[part], cells[part], datasheets, backend, settings)
        elif part == "gemm":
            time = narrow.products(
                parts, cells[part], datasheets, form, backend=backend, clock=clock, **settings
            )
        elif part == "attention_decode":
            cache = narrow.narrow_cache(parts, form, kv_dtype, seed=seed)
            time = narrow.decode(parts, cells[part], datasheets, cache, backend=backend, **settings)
        else:
            known = backend if part != "light" else "any"
            time = predict(
                parts[part], cells[part], datasheets, backend=known, clock=clock, **settings
            )
            summed = (cells["host"]["mode"] == host.REPLAYED) & (tp > 1)
            time = narrow.unfused(time, engine or backend, summed, seed=seed)
        times.append(time.transpose("chain", "draw", "sku", "workload", "op"))
        often.append(calls.sel(op=time["op"]).transpose("workload", "op").values)
    ops = np.concatenate([*(time["op"].values for time in times), ["host"]])
    values, at = np.empty((*times[0].shape[:-1], len(ops))), 0
    for time, count in zip(times, often, strict=True):
        np.multiply(time.values, count, out=values[..., at : at + time.sizes["op"]])
        at += time.sizes["op"]
    blocks = times[0].isel(op=0, drop=True).copy(data=values[..., :-1].sum(axis=-1))
    launches, tail = host_times(parts["host"], cells["host"], datasheets, engine or backend, seed)
    added = host.step_time(blocks, launches, tail, overlap=overlap) - blocks
    values[..., -1] = added.transpose(*blocks.dims).values
    return xr.DataArray(
        values,
        coords=blocks.coords.assign(op=ops),
        dims=(*blocks.dims, "op"),
        attrs={"units": "s"},
    )


def host_times(
    posterior: xr.Dataset, cells: xr.Dataset, datasheets: xr.Dataset, engine: str, seed: int
) -> tuple[xr.DataArray, xr.DataArray]:
    """Launches and tail of each step [s], dims (chain, draw, sku, workload).

    An engine that nobody measured, ``any`` among them, is drawn from the population of engines.
    """
    law, skus = law_of(posterior), datasheets["sku"].values
    units = unit_sheets(law, datasheets, [f"{sku}/{engine}" for sku in skus])
    factors = with_skus(posterior, units, seed=seed).drop_vars("sku", errors="ignore")
    terms = law.terms(cells.variables, datasheets.variables, regime="served")
    found = (host.launch_time(terms, factors), host.tail_time(terms, factors))
    launches, tail = (t.assign_coords(sku=skus, workload=cells["workload"]) for t in found)
    return launches, tail


def _allreduce(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    backend: str,
    settings: dict[str, Any],
) -> xr.DataArray:
    """An engine's own all-reduce, or the library's where that is faster, dims as of `predict`."""
    library = predict(posterior, cells, datasheets, backend=LIBRARY, **settings)
    engines = [b for b in backends(posterior) if b != LIBRARY]
    if backend != "any" and backend not in engines:
        return library
    own = predict(posterior, cells, datasheets, backend=backend, among=engines, **settings)
    return own.where(own < library, library)


def capped_share(
    posterior: xr.Dataset, datasheets: xr.Dataset, *, seed: int
) -> xr.DataArray | None:
    """Share of its clock that each SKU keeps under its lowered power limit [1].

    The exponent is the posterior's, of one card's sweep; other cards' exponents differ by a
    log-normal factor of width `CAP_SPREAD`: public sweeps and MLPerf results under caps have
    exponents from 0.3 to 0.68.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Of the GEMMs, with ``cap_slope``.
    datasheets : Dataset, dims (sku,)
        With ``power_cap``, lowered over own limit [1], if any limit is lowered.
    seed : int
        Of the cards' exponents.

    Returns
    -------
    DataArray, dims (chain, draw, sku), or None
        None if no limit is lowered.

    Raises
    ------
    WorkloadError
        If a limit is lowered and the posterior has no exponent.
    """
    if "power_cap" not in datasheets:
        return None
    if "cap_slope" not in posterior:
        raise WorkloadError(
            f"posterior {posterior.attrs['name']} was fitted without clock telemetry and knows no "
            "power limits; leave --power-limit out"
        )
    slope = posterior["cap_slope"].astype(float)
    columns = []
    for sku, cap in zip(datasheets["sku"].values, datasheets["power_cap"].values, strict=True):
        normal = labelled_rng(seed, "cap", str(sku)).standard_normal(slope.shape)
        columns.append(capped_clock(1.0, cap, 1.0, slope * np.exp(CAP_SPREAD * normal)))
    names = xr.DataArray(datasheets["sku"].values, dims="sku", name="sku")
    return xr.concat(columns, dim=names)
