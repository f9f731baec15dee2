"""Laws on posterior draws: the times of kernels on SKUs measured or not. Needs no PyMC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._jobs import in_threads
from m2bayes._random import labelled_rng
from m2bayes.blocks import gathered, law_times, part_of, shapes_at_once, slices
from m2bayes.discrepancy import cell_scale, run_noise, tapered, unit_fields
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.factors import by_sku, families, of_sku, with_skus
from m2bayes.kernels import unit_sheets
from m2bayes.mechanism.laws import LAWS, Law
from m2bayes.quantisation import computes_in, of_dtype
from m2bayes.residuals import known

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
    cost: Callable[[str], xr.DataArray | float] = lambda backend: 1.0,
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
    cost : callable
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
    if not law.by_backend:
        return _by_kernel(posterior, cells, datasheets, "any", settings)
    known_ones = [*among] or backends(posterior)
    if backend not in ("any", *known_ones):
        raise UnknownNameError("backend", backend, ["any", *known_ones])
    chosen = known_ones if backend == "any" else [backend]
    parts = ((_by_kernel(posterior, cells, datasheets, b, settings), b) for b in chosen)
    times = [(time * cost(b)).assign_attrs(units="s") for time, b in parts]
    if len(times) == 1:
        return times[0]
    shape = times[0].shape[:2]
    pick = labelled_rng(seed, "backend").integers(len(times), size=shape)
    stacked = np.stack([time.values for time in times])
    return times[0].copy(data=stacked[pick, np.arange(shape[0])[:, None], np.arange(shape[1])])


def backends(posterior: xr.Dataset) -> list[str]:
    """Backends whose kernels a posterior knows, in alphabetical order, no dims."""
    return sorted({str(unit).split("/")[1] for unit in posterior["sku"].values})


def _by_kernel(
    posterior: xr.Dataset,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    backend: str,
    settings: dict[str, Any],
) -> xr.DataArray:
    """Times with one backend, each cell by its own kernel, dims as of `predict`."""
    law = law_of(posterior)
    first = cells[law.sizes[0]]
    labels = law.variant(cells, backend).ravel()  # type: ignore[misc]
    sizes = {v: ("shape", cells[v].values.ravel()) for v in _columns_of(law, cells)}
    flat, skus = xr.Dataset(sizes), datasheets["sku"].values
    samples = (posterior.sizes["chain"], posterior.sizes["draw"])
    settings = settings | {"seed": own_seed(posterior, settings["seed"])}
    out = np.empty((*samples, len(skus), len(labels)))
    for label in np.unique(labels):
        at = np.flatnonzero(labels == label)
        units = unit_sheets(law, datasheets, [f"{sku}/{label}" for sku in skus])
        part = predict_units(posterior, flat.isel(shape=at), units, backend=backend, **settings)
        out[..., at] = part.values
    coords = {d: posterior[d] for d in ("chain", "draw")} | {"sku": skus}
    coords |= {str(d): cells[d] for d in first.dims if d in cells.coords}
    return xr.DataArray(
        out.reshape(*samples, len(skus), *first.shape),
        dims=("chain", "draw", "sku", *first.dims),
        coords=coords,
        attrs={"units": "s"},
    )


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
    dims, first = cells[law.sizes[0]].dims, cells[law.sizes[0]]
    flat, where = _unique_shapes(law, cells)
    factors = with_skus(posterior, datasheets, seed=seed)
    spreads = xr.Dataset(
        {kind: by_sku(posterior, f"log_sigma_{kind}", datasheets, seed).variable for kind in KINDS}
    )
    if clock is not None and law.clocked:
        share = clock.assign_coords(sku=datasheets["sku"].values)
        factors = factors.assign({law.clocked: factors[law.clocked] * share})
    terms = law.terms(flat, datasheets, regime=regime, backend=backend)
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    out = np.empty((datasheets.sizes["sku"], samples, where.size))
    distinct = flat.sizes["shape"]

    def of_unit(at: int) -> None:
        sheet = datasheets.isel(sku=[at])
        rows = {k: np.atleast_2d(v) for k, v in of_sku(terms, at).items()}
        columns = {k: v.reshape(-1, 1) for k, v in of_sku(factors, at, *SAMPLE).items()}
        shapes = _field_points(law, flat, rows, columns)
        scales = {
            kind: np.exp(v).reshape(-1, 1) for kind, v in of_sku(spreads, at, *SAMPLE).items()
        }
        error_of = _error_of(posterior, sheet, scales, backend=backend, noise=noise, seed=seed)
        held = out[at] if distinct == where.size else np.empty((samples, distinct))
        for part in slices(distinct, shapes_at_once(samples)):
            time = law_times(law.time, part_of(rows, part), columns)
            error = error_of(shapes[part], time).astype(float)
            held[:, part] = time * np.exp(np.clip(error, -LARGEST, LARGEST))
        gathered(held, where, out[at])

    in_threads(of_unit, datasheets.sizes["sku"])
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    times = np.moveaxis(out.reshape(len(out), chains, draws, *first.shape), 0, 2)
    coords = {d: posterior[d] for d in ("chain", "draw")} | {
        "sku": datasheets["sku"].values,
        **{d: cells[d] for d in dims if d in cells.coords},
    }
    return xr.DataArray(
        times, dims=("chain", "draw", "sku", *dims), coords=coords, attrs={"units": "s"}
    )


def _columns_of(law: Law, cells: xr.Dataset) -> list[str]:
    """Variables of a shape: sizes, sizes that tables leave out, labels."""
    return [v for v in (*law.sizes, *law.given, *law.labels) if v in cells]


def _unique_shapes(law: Law, cells: xr.Dataset) -> tuple[xr.Dataset, np.ndarray]:
    """Distinct shapes along one dim ``shape``, and where each cell finds its own."""
    numbers = [v for v in _columns_of(law, cells) if v not in law.labels]
    sizes = np.stack([cells[v].values.ravel() for v in numbers], axis=1)
    unique, where = np.unique(sizes.astype(float), axis=0, return_inverse=True)
    flat = {v: ("shape", unique[:, i]) for i, v in enumerate(numbers)}
    given = {v: ("shape", np.full(len(unique), float(x))) for v, x in law.given.items()}
    for label in law.labels:  # one kernel is one label
        given[label] = ("shape", np.full(len(unique), cells[label].values.ravel()[0]))
    return xr.Dataset(given | flat), where.ravel()


def _field_points(
    law: Law, flat: xr.Dataset, rows: dict[str, np.ndarray], columns: dict[str, np.ndarray]
) -> np.ndarray:
    """Sizes and mean cache gain of each shape [1], dims (shape, size + 1)."""
    gain = law.gain(rows, {name: column.mean() for name, column in columns.items()})
    sizes = [flat[v].values for v in law.sizes]
    return np.stack([*sizes, np.broadcast_to(gain[0], sizes[0].shape)], axis=1)


def _error_of(
    posterior: xr.Dataset,
    sheet: xr.Dataset,
    scales: dict[str, np.ndarray],
    *,
    backend: str,
    noise: int,
    seed: int,
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Log error of shapes, dims (shape, size), by their modelled times, dims (sample, shape).

    It is made of discrepancy, build effect and, with `noise`, run noise; dims (sample, shape).
    """
    sku, family = str(sheet["sku"].values[0]), families(sheet)[0]
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    settings: dict[str, Any] = {"sku": sku, "draws": samples, "seed": seed}
    settings |= {"lengths": law_of(posterior).lengths, "architecture": family}
    residuals = known(posterior, family, sku)
    build = _build_effect(posterior, sku, backend, max(noise, 1), seed)

    def error(shapes: np.ndarray, time: np.ndarray) -> np.ndarray:
        unit, widening = unit_fields(shapes, residuals=residuals, **settings)
        delta = tapered(cell_scale(scales["cell"], scales["time"], time) * unit)
        if not noise:
            return delta + build[0]
        labels = ["x".join(f"{v:.0f}" for v in shape) for shape in shapes[:, :-1]]
        run = run_noise(labels, sku=sku, backend=backend, draws=samples, runs=noise, seed=seed)
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


def summary(time: xr.DataArray, *, mass: float = 0.9) -> dict[str, Any]:
    """Median, mean and equal-tailed interval [units of `time`] over its draws, other dims kept."""
    flat = time.transpose("chain", "draw", ...).values.reshape(-1, *time.shape[2:])
    low, median, high = np.quantile(flat, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
    return {"median": median, "mean": flat.mean(axis=0), "low": low, "high": high}
