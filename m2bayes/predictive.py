"""Laws on posterior draws: the times of kernels on SKUs measured or not. Needs no PyMC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._jobs import in_threads
from m2bayes._random import labelled_rng
from m2bayes.blocks import HELD, gathered, law_times, part_of, shapes_at_once, slices
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.factors import column, factor_draws, families, of_sku, pooled
from m2bayes.kernels import unit_sheets
from m2bayes.mechanism.laws import LAWS, Law
from m2bayes.misfit import error_of
from m2bayes.quantisation import computes_in, of_dtype

SAMPLE = ("chain", "draw")
KINDS = ("cell", "time", "run")  # of spreads that every model has
LARGEST = 10.0  # log error beyond which a law is useless anyway, and exp would overflow


def predict(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    *,
    regime: str = "served",
    backend: str = "any",
    noise: int = 0,
    seed: int = 0,
    among: Sequence[str] = (),
    clock: xr.DataArray | None = None,
    cost: Callable[[str], xr.DataArray] | None = None,
) -> xr.DataArray:
    """Joint draws of the time of each kernel on each SKU.

    Time is the law of the factors, times the discrepancy of the shape, times the build effect.
    All SKUs share a draw's shared factors, so comparisons are joint. With `noise`, it is the
    median of that many new runs instead of the noise-free time.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Stored draws with attributes ``law`` and ``factors``.
    cells : Dataset
        The sizes of the law, such as ``M``, ``N``, ``K`` [1], dims such as (workload, op).
    datasheets : Dataset, dims (sku,) or (sku, dtype)
        Of the SKUs asked for, for one dtype, or all.
    regime : {"served", "benchmark"}
        Served: cold weights and KV cache, settled clock. Benchmark: as kernel tables are taken.
    backend : str
        One that the posterior knows, or ``any``: the build effect, or whose kernels run, is drawn.
    noise, seed : int
        Number of new runs, 0 for the noise-free time; seed of everything that is drawn here.
    among : sequence of str
        The backends that ``any`` stands for; by default all that the posterior knows.
    clock : DataArray, dims (chain, draw, sku), optional
        Share of its clock that a SKU keeps under a lowered power limit [1].
    cost : callable, optional
        What else a backend's kernels cost, a factor of their time [1].

    Returns
    -------
    DataArray, dims (chain, draw, sku) and those of `cells`
        Kernel time [s].

    Raises
    ------
    UnknownNameError
        For a backend or law that is unknown.
    WorkloadError
        If the datasheets are for another dtype than the posterior.
    """
    law = law_of(posterior)
    own = str(posterior.attrs.get("dtype"))
    datasheets = of_dtype(datasheets, own)
    dtype = str(datasheets["dtype"].item()) if "dtype" in datasheets.coords else own
    if computes_in(dtype) != own:
        raise WorkloadError(f"datasheets for {dtype}: the posterior knows {own}")
    settings: dict[str, Any] = {"regime": regime, "noise": noise, "seed": seed, "clock": clock}
    if law.variant is None:
        return predict_units(posterior, cells, datasheets, backend=backend, **settings)
    chosen = ["any"]
    if law.by_backend:
        known_ones = [*among] or backends(posterior)
        if backend not in ("any", *known_ones):
            raise UnknownNameError("backend", backend, ["any", *known_ones])
        chosen = known_ones if backend == "any" else [backend]
    samples = [posterior.sizes[d] for d in SAMPLE]
    pick = labelled_rng(seed, "backend").integers(len(chosen), size=samples)
    like, skus = cells[law.sizes[0]], datasheets["sku"].values
    times = np.empty((len(skus), pick.size, like.size))
    for i in np.unique(pick):
        mine = np.flatnonzero(pick == i)
        labels = law.variant(cells, chosen[i]).ravel()
        own_draws = settings | {"backend": chosen[i], "draws": mine}
        times[:, mine] = _by_kernel(posterior, cells, labels, datasheets, own_draws)
    found = _labelled(times, posterior, like, skus)
    if cost is None:
        return found
    costs = [cost(name).broadcast_like(found).transpose(*found.dims).values for name in chosen]
    factor = np.choose(pick.reshape(*samples, *[1] * (found.ndim - 2)), costs)
    return found.copy(data=found.values * factor)


def backends(posterior: xr.Dataset) -> list[str]:
    """Backends whose kernels a posterior knows, in alphabetical order, no dims."""
    return sorted({str(unit).split("/")[1] for unit in posterior["sku"].values})


def _by_kernel(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    labels: np.ndarray,
    datasheets: xr.Dataset,
    settings: dict[str, Any],
) -> np.ndarray:
    """Times [s] of some draws, each cell by the kernel of its label: dims (sku, draw, cell)."""
    law = law_of(posterior)
    columns, skus = _columns_of(law, cells), datasheets["sku"].values
    settings = settings | {"seed": own_seed(posterior, settings["seed"])}
    out = np.empty((len(skus), len(settings["draws"]), len(labels)))
    for label in np.unique(labels):
        at = np.flatnonzero(labels == label)
        units = unit_sheets(law, datasheets, [f"{sku}/{label}" for sku in skus])
        some = {name: values[at] for name, values in columns.items()}
        out[..., at] = _unit_times(posterior, some, units, **settings)
    return out


def _labelled(
    times: np.ndarray, posterior: xr.Dataset, like: xr.DataArray, skus: np.ndarray
) -> xr.DataArray:
    """Times [s] with dims (sku, sample, cell) as of `predict`; the cells are those of `like`."""
    samples = [posterior.sizes[d] for d in SAMPLE]
    whole = times.reshape(len(skus), *samples, *like.shape)
    coords: dict[str, Any] = {d: posterior[d] for d in SAMPLE} | {"sku": skus}
    coords |= {str(d): like[d] for d in like.dims if d in like.coords}
    dims = (*SAMPLE, "sku", *like.dims)
    return xr.DataArray(np.moveaxis(whole, 0, 2), coords=coords, dims=dims, attrs={"units": "s"})


def own_seed(posterior: xr.Dataset, seed: int) -> int:
    """Seed [1] of the law that a posterior (any dims) belongs to; only its attributes are read.

    Units of two laws bear one name: two kernels of a card shall not share their random numbers.
    """
    return int(labelled_rng(seed, "law", str(posterior.attrs["law"])).integers(2**31))


def law_of(posterior: xr.Dataset) -> Law:
    """Law that a posterior's factors belong to."""
    law = LAWS.get(str(posterior.attrs["law"]))
    if law is None:
        raise UnknownNameError("law", str(posterior.attrs["law"]), LAWS)
    return law


def predict_units(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    *,
    regime: str,
    backend: str,
    noise: int = 0,
    seed: int = 0,
    clock: xr.DataArray | None = None,
) -> xr.DataArray:
    """Joint draws of the time [s] of each cell on each unit, dims as of `predict`.

    As `predict`, but of units, from `m2bayes.kernels.unit_sheets`: each of them runs every cell.
    """
    law = law_of(posterior)
    own = _columns_of(law, cells)
    settings: dict[str, Any] = {"regime": regime, "backend": backend, "noise": noise, "seed": seed}
    times = _unit_times(posterior, own, datasheets, clock=clock, **settings)
    return _labelled(times, posterior, cells[law.sizes[0]], datasheets["sku"].values)


def _unit_times(
    posterior: xr.Dataset,
    cells: dict[str, np.ndarray],
    datasheets: xr.Dataset,
    *,
    regime: str,
    backend: str,
    noise: int,
    seed: int,
    clock: xr.DataArray | None,
    draws: np.ndarray | None = None,
) -> np.ndarray:
    """Times [s] of `predict_units`, dims (sku, draw, cell), of columns with dims (cell,).

    With `draws`, dims (draw,), only of some, by their places.
    """
    law = law_of(posterior)
    flat, where = _unique_shapes(law, cells)
    factors = factor_draws(posterior, datasheets, seed=seed)
    if clock is not None and law.clocked:
        values = factors[law.clocked][1]
        share = clock.transpose("sku", *SAMPLE).values
        factors[law.clocked] = ("sku", *SAMPLE), values * share
    spreads = {v: pooled(posterior, f"log_sigma_{v}", datasheets, seed) for v in KINDS}
    terms = law.terms(flat, datasheets.variables, regime=regime, backend=backend)
    draws = (
        np.arange(posterior.sizes["chain"] * posterior.sizes["draw"]) if draws is None else draws
    )
    samples = len(draws)
    units = list(zip(datasheets["sku"].values.tolist(), families(datasheets), strict=True))
    out = np.empty((len(units), samples, where.size))
    distinct = flat[law.sizes[0]].size

    def of_unit(at: int) -> None:
        rows = {k: np.atleast_2d(v) for k, v in of_sku(terms, at).items()}
        every = {name: column(held, at) for name, held in factors.items()}
        shapes = _field_points(law, flat, rows, every)
        columns = {name: held[draws] for name, held in every.items()}
        scales = {kind: np.exp(column(held, at)[draws]) for kind, held in spreads.items()}
        settings: dict[str, Any] = {"backend": backend, "noise": noise, "seed": seed}
        error_of_shapes = error_of(posterior, units[at], scales, draws, **settings)
        held = out[at] if distinct == where.size else np.empty((samples, distinct))
        for part in slices(distinct, shapes_at_once(samples)):
            some = part_of(rows, part)
            time = law_times(law.time, some, columns)
            error = error_of_shapes(shapes[part], time, law.steady(some)).astype(float)
            held[:, part] = time * np.exp(np.clip(error, -LARGEST, LARGEST))
        gathered(held, where, out[at])

    in_threads(of_unit, len(units), busy=samples * distinct >= HELD)
    return out


def _columns_of(law: Law, cells: xr.Dataset) -> dict[str, np.ndarray]:
    """Sizes of the cells, sizes that tables leave out, and labels, dims (cell,) [as in `cells`]."""
    names = (v for v in (*law.sizes, *law.given, *law.labels) if v in cells)
    return {name: cells.variables[name].values.ravel() for name in names}


def _unique_shapes(
    law: Law, cells: dict[str, np.ndarray]
) -> tuple[dict[str, xr.Variable], np.ndarray]:
    """Distinct shapes along one dim ``shape``, and where each cell finds its own."""
    sizes = {name: values for name, values in cells.items() if name not in law.labels}
    table = np.stack([*sizes.values()], axis=1).astype(float)
    unique, where = np.unique(table, axis=0, return_inverse=True)
    given = {v: np.full(len(unique), float(x)) for v, x in law.given.items()}
    given |= {v: np.full(len(unique), cells[v][0]) for v in law.labels}  # one kernel is one label
    found = given | dict(zip(sizes, unique.T, strict=True))
    return {v: xr.Variable("shape", values) for v, values in found.items()}, where.ravel()


def _field_points(
    law: Law,
    flat: dict[str, xr.Variable],
    rows: dict[str, np.ndarray],
    columns: dict[str, np.ndarray],
) -> np.ndarray:
    """Sizes and mean cache gain of each shape [1], dims (shape, size + 1)."""
    gain = law.gain(rows, {name: column.mean() for name, column in columns.items()})
    sizes = [flat[v].values for v in law.sizes]
    return np.stack([*sizes, np.broadcast_to(gain[0], sizes[0].shape)], axis=1)


def summary(time: xr.DataArray, *, mass: float = 0.9) -> dict[str, Any]:
    """Median, mean and equal-tailed interval [units of `time`] over its draws, other dims kept."""
    flat = time.transpose("chain", "draw", ...).values.reshape(-1, *time.shape[2:])
    low, median, high = np.quantile(flat, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
    return {"median": median, "mean": flat.mean(axis=0), "low": low, "high": high}
