"""Log density of data and priors under stored draws, from the model built anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.errors import RecordError


def log_likelihood(
    model: Any,
    draws: xr.Dataset,
    data: Mapping[str, np.ndarray] | None = None,
    *,
    names: Collection[str] = (),
) -> xr.Dataset:
    """Log density of what was observed, under each draw.

    Parameters
    ----------
    model : pymc.Model
        That the draws are of, built on the same labels.
    draws : Dataset, dims (chain, draw, …)
        Offsets may be missing, values made of them not.
    data : mapping of array, optional
        Other inputs than those the model was built with, by name.
    names : collection of str
        Observed variables; by default all.

    Returns
    -------
    Dataset, dims (chain, draw, …)
        By observed variable, dims as observed; of times dims (chain, draw, cell): the runs of a
        cell are one observation [1].
    """
    import pymc as pm

    if data is not None:
        pm.set_data(dict(data), model=model)
    seen = [rv for rv in model.observed_RVs if not names or rv.name in names]
    found = _evaluated(model, draws, [pm.logp(rv, model.rvs_to_values[rv]) for rv in seen])
    out = {}
    for rv, values in zip(seen, found, strict=True):
        dims = ("cell",) if rv.name == "log_time" else (f"{rv.name}_entry",)
        out[str(rv.name)] = (("chain", "draw", *dims), values)
    return xr.Dataset(out)


def log_prior(model: Any, draws: xr.Dataset) -> xr.Dataset:
    """Log density of the priors of all parameters above the labels, under each draw.

    The effects of labels are left out: given the level above them, they are part of the model.

    Parameters
    ----------
    model : pymc.Model
        That the draws are of.
    draws : Dataset, dims (chain, draw, …)
        As of `log_likelihood`.

    Returns
    -------
    Dataset, dims (chain, draw)
        By parameter [1].
    """
    import pymc as pm

    top = [rv for rv in model.free_RVs if rv.ndim == 0]
    found = _evaluated(model, draws, [pm.logp(rv, rv) for rv in top])
    return xr.Dataset(
        {str(rv.name): (("chain", "draw"), v) for rv, v in zip(top, found, strict=True)}
    )


def _evaluated(model: Any, draws: xr.Dataset, graphs: list[Any]) -> list[np.ndarray]:
    """Graphs at each draw, dims (chain, draw, …); a variable that was stored is not made anew."""
    import pytensor
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.op import RandomVariable

    given = [model[name] for name in (str(v) for v in draws.data_vars) if name in model.named_vars]
    for node in ancestors(graphs, blockers=given):
        if (
            node.owner is not None
            and isinstance(node.owner.op, RandomVariable)
            and node not in given
        ):
            raise RecordError(f"{node.name} is neither stored nor made of what is; fit again")
    function = pytensor.function(given, graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    function.trust_input = True
    flat = [
        draws[variable.name].transpose("chain", "draw", ...).values.astype(float)
        for variable in given
    ]
    shape = flat[0].shape[:2]
    flat = [v.reshape(-1, *v.shape[2:]) for v in flat]
    rows = [function(*(np.asarray(v[i]) for v in flat)) for i in range(shape[0] * shape[1])]
    return [
        np.stack(column).reshape(*shape, *column[0].shape) for column in zip(*rows, strict=True)
    ]
