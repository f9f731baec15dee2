"""Draws as netCDF-4: labels as text, variables compressed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

NO_LABELS = b"This is a netCDF dimension but not a netCDF variable"
SCALE, NUMBER = b"CLASS", b"_Netcdf4Dimid"  # attributes of a dimension, the second its number
NUMBERS = b"_Netcdf4Coordinates"  # attribute of a variable that holds those of its dimensions
CODE = np.dtype("int16")  # of such a number
LABELS = "labels"  # attribute of a variable that holds numbers of labels


def read_draws(file: Path) -> xr.Dataset:
    """Read a netCDF-4 file of draws through h5py: several times faster than xarray opens it."""
    import h5py

    with h5py.File(file) as stored:
        held = {name: h5py.h5d.open(stored.id, name.encode()) for name in stored}
        scales = {
            int(_attribute(d, NUMBER)): v for v, d in held.items() if h5py.h5a.exists(d, SCALE)
        }
        names = sorted(held.keys() - set(scales.values()))
        dims = {v: [scales[at] for at in _attribute(held[v], NUMBERS).tolist()] for v in names}
        # a dimension without labels is a dataset too, whose name says that it is no variable
        labels = [d for d in scales.values() if NO_LABELS not in bytes(stored[d].attrs["NAME"])]
        read = {v: _values(stored, v, held[v]) for v in (*names, *labels)}
        return xr.Dataset(
            {v: (dims[v], read[v]) for v in names}, coords={d: read[d] for d in labels}
        )


def _attribute(dataset: Any, name: bytes) -> np.ndarray:
    """Numbers of an attribute [1], dims (number,) or ()."""
    import h5py

    held = h5py.h5a.open(dataset, name)
    values = np.empty(held.shape, held.dtype)
    held.read(values)
    return values


def _values(stored: Any, name: str, dataset: Any) -> np.ndarray:
    """Values of a variable [own units], dims as stored; NumPy's own strings where it is text.

    Text may be stored as numbers of its labels.
    """
    import h5py

    if dataset.dtype.kind == "O":
        return np.asarray(stored[name].asstr()[()]).astype(str)
    values = np.empty(dataset.shape, dataset.dtype)
    if values.size:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    if values.dtype == CODE and LABELS in stored[name].attrs:
        return np.array(json.loads(str(stored[name].attrs[LABELS])))[values]
    return values


def netcdf(draws: xr.Dataset) -> bytes:
    """Content of the netCDF-4 file of draws, dims (chain, draw, …) [any unit].

    A column of text is stored as numbers of its labels.
    """
    for name, held in draws.data_vars.items():
        if held.dtype.kind in "UO":
            labels, at = np.unique(held.values.astype(str), return_inverse=True)
            codes = (held.dims, at.reshape(held.shape).astype(CODE))
            draws = draws.assign({name: (*codes, {LABELS: json.dumps(labels.tolist())})})
    packed = {
        v: {"zlib": True, "complevel": 4, "shuffle": True}
        for v in draws.data_vars
        if draws[v].dtype.kind in "fi"
    }
    with draws.to_netcdf(engine="h5netcdf", encoding=packed) as view:
        return bytes(view)
