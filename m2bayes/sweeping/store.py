"""The store of a sweep: a Zarr group that xarray opens, filled chunk by chunk in place."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._files import reason, shown
from m2bayes.errors import DataError
from m2bayes.sweeping.cluster import INSTALL
from m2bayes.sweeping.grid import PLACES, QUANTILES, Chunk, Grid

FORMAT = 2  # of Zarr: its metadata can be consolidated, so that a store opens with one read
DIMS = {
    "quantiles": (*PLACES, "price", "workload", "sku", "level"),
    "mean": (*PLACES, "price", "workload", "sku"),
    "p_best": (*PLACES, "price", "workload", "sku"),
    "p_fits": (*PLACES, "price", "workload", "sku"),
}
TITLES = {
    "quantiles": "quantiles of the metric over the draws in which the step fits",
    "mean": "mean of the metric over the draws in which the step fits",
    "p_best": "probability that the SKU is the best for the workload",
    "p_fits": "probability that the step fits into the SKU's memory",
}
MARK = "finished"  # dims (llm, dtype, tp, block): written after the results of a chunk


def opened(out: str, grid: Grid, facts: Mapping[str, Any]) -> Any:
    """Store of this grid, made if it is not there: a Zarr group.

    Parameters
    ----------
    out : str
        Path of its folder.
    grid : Grid
        Whose axes are its dims.
    facts : mapping
        From `m2bayes.sweeping.points.checked`.

    Returns
    -------
    zarr.Group
        Variables as in `DIMS` [units of the metric, 1], NaN until they are written.

    Raises
    ------
    DataError
        If Zarr is missing, the path cannot be written, or holds something else than this grid.
    """
    zarr, path = _zarr(), Path(out)
    if path.exists():
        _same(zarr, path, str(facts["identity"]))
    else:
        _make(zarr, path, grid, facts)
    return zarr.open_group(str(path), mode="r+", zarr_format=FORMAT)


def finished(store: Any) -> np.ndarray:
    """Which chunks are there, dims (llm, dtype, tp, block) [1]."""
    return np.asarray(store[MARK][...], dtype=bool)


def write(store: Any, chunk: Chunk, values: Mapping[str, np.ndarray]) -> None:
    """Write the results of one chunk in place, then its mark: what has none is not looked at.

    Parameters
    ----------
    store : zarr.Group
        From `opened`.
    chunk : Chunk
        Which part of it.
    values : mapping of ndarray, dims (price, workload, sku, …)
        From `m2bayes.sweeping.points.evaluate` [units of the metric, 1].
    """
    i, j, k, block = chunk.at
    for name in DIMS:
        store[name][i, j, k, :, chunk.start : chunk.stop] = values[name]
    store[MARK][i, j, k, block] = True


def _zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise DataError(f"a sweep's store needs the package zarr: {INSTALL}") from None
    return zarr


def _same(zarr: Any, path: Path, identity: str) -> None:
    """Refuse what is no sweep's store, and the store of other results."""
    try:
        found = zarr.open_group(str(path), mode="r", zarr_format=FORMAT).attrs.get("identity")
    except (OSError, ValueError, KeyError):
        found = None
    if found is None:
        raise DataError(f"--out {shown(path)}: is there and is no sweep's store; name another")
    if found != identity:
        raise DataError(
            f"--out {shown(path)}: holds the results of another grid, database or version of "
            "m2bayes; name another store"
        )


def _make(zarr: Any, path: Path, grid: Grid, facts: Mapping[str, Any]) -> None:
    """Make an empty store under another name and move it: it is there whole or not at all."""
    part = path.with_name(f"{secrets.token_hex(8)}.part")
    try:
        part.mkdir()
        axes = _axes(grid, facts)
        axes.to_zarr(str(part), mode="w", zarr_format=FORMAT, consolidated=False)
        group = zarr.open_group(str(part), mode="r+", zarr_format=FORMAT)
        _variables(group, grid, axes, str(facts["units"]))
        zarr.consolidate_metadata(str(part))
        part.rename(path)
    except OSError as fault:
        raise DataError(f"--out {shown(path)}: cannot be written: {reason(fault)}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _axes(grid: Grid, facts: Mapping[str, Any]) -> xr.Dataset:
    """Coordinates of the store, and what its results are."""
    text = {
        "llm": grid.llm,
        "dtype": grid.dtype,
        "price": grid.scenarios,
        "workload": [step.label for step in grid.steps()],
        "sku": facts["sku"],
    }
    coords: dict[str, Any] = {name: np.array(held, dtype=object) for name, held in text.items()}
    coords |= {"tp": np.array(grid.tp), "level": np.array(QUANTILES)}
    attrs = {
        "metric": grid.metric,
        "draws": grid.draws,
        "seed": grid.seed,
        "backend": grid.backend,
        "posteriors": json.dumps(facts["posteriors"]),
        "grid": json.dumps(asdict(grid)),
        "identity": facts["identity"],
    }
    return xr.Dataset(coords=coords, attrs=attrs)


def _variables(group: Any, grid: Grid, axes: xr.Dataset, units: str) -> None:
    """Add empty variables, one Zarr chunk of each to a chunk of the sweep."""
    size = {str(name): len(axes[name]) for name in axes.dims}
    one = size | dict.fromkeys(PLACES, 1) | {"workload": min(grid.chunk, size["workload"])}
    for name, dims in DIMS.items():
        group.create_array(
            name,
            shape=[size[d] for d in dims],
            chunks=[one[d] for d in dims],
            dtype="f8",
            fill_value=float("nan"),
            attributes={
                "_ARRAY_DIMENSIONS": list(dims),
                "units": units if name in ("quantiles", "mean") else "1",
                "long_name": TITLES[name],
            },
        )
    blocks = -(-grid.workloads // grid.chunk)
    group.create_array(
        MARK,
        shape=[*(size[d] for d in PLACES), blocks],
        chunks=[1] * (len(PLACES) + 1),
        dtype="bool",
        fill_value=None,  # or xarray takes what is not finished for missing
        attributes={
            "_ARRAY_DIMENSIONS": [*PLACES, "block"],
            "units": "1",
            "long_name": f"whether a block of {grid.chunk} workloads is there",
        },
    )
