"""What belongs to one SKU alone, in coordinates that are standard normal given the rest of a draw.

A draw holds what SKUs share: populations, architectures, spreads. Given those, a factor of a SKU
that nobody measured is its level plus a spread times a standard normal number, and so are the level
of an architecture that nobody measured and the effect of a build. `recipe` writes every variable
that the likelihood of the SKU's runs needs in that form, by the names of the stored variables;
`coordinates` fills in the draws. A measured SKU's variables are the draw's own, without a number
to choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import exp
from m2bayes.errors import RecordError

KINDS = ("sigma_cell", "sigma_time", "sigma_run")  # spreads that every model has
BUILD, LEVEL = "build ", "_architecture"  # before a backend's label; after a level's name
SAMPLE = ("chain", "draw")


@dataclass(frozen=True)
class Variable:
    """One variable as a stored variable and steps along coordinates.

    Parameters
    ----------
    name : str
        Of a factor or spread; ``build `` and a backend; or of the level of a new architecture.
    log : bool
        Whether it is on the log scale.
    base : tuple of str and mapping, or None
        Stored variable and the labels to take of it; None for 0.
    steps : mapping
        Coordinate: stored spread and what to multiply it with [1].
    """

    name: str
    log: bool
    base: tuple[str, Mapping[str, str]] | None
    steps: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Coordinates:
    """Variables of one SKU as ``centre + loading @ z`` in each draw.

    Parameters
    ----------
    variables : tuple of Variable, dims (variable,)
        What they are.
    centre : array, dims (sample, variable)
        Value at ``z = 0`` on the link scale.
    loading : array, dims (sample, variable, coordinate)
        Step of each variable for a step of 1 of each coordinate.
    labels : tuple of str
        Of the coordinates.
    """

    variables: tuple[Variable, ...]
    centre: np.ndarray
    loading: np.ndarray
    labels: tuple[str, ...]

    def values(self, z: np.ndarray, at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Variables on the link scale [1], dims (sample, variable), of the draws `at`."""
        return np.asarray(self.centre[at] + np.einsum("svk,sk->sv", self.loading[at], z))


def recipe(
    posterior: xr.Dataset,
    *,
    sku: str,
    family: str,
    spread: float = 1.0,
    backends: Sequence[str] = (),
) -> tuple[Variable, ...]:
    """How each variable of one SKU or unit follows from stored ones.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, sku, architecture)
        Draws with attribute ``factors``; of the values only the names are read.
    sku, family : str
        The SKU or unit, measured or not, and its architecture or family.
    spread : float
        How much more than usual units of the family differ [1].
    backends : sequence of str
        Builds whose effects belong to the SKU; none for a law without.
    """
    measured = sku in posterior.indexes["sku"]
    found, levels = [], []
    for name, held, log in stored_names(posterior):
        if measured and held in posterior and "sku" in posterior[held].dims:
            found.append(Variable(name, log, (held, {"sku": sku})))
            continue
        steps: dict[str, tuple[str, float]] = {}
        base: tuple[str, Mapping[str, str]] = (_shared(posterior, held), {})
        if f"{held}{LEVEL}" in posterior:
            base = (f"{held}_mean", {})
            if family in posterior.indexes["architecture"]:
                base = (f"{held}{LEVEL}", {"architecture": family})
            else:
                steps[f"{name} of {family}"] = (f"{held}{LEVEL}_sd", 1.0)
                levels.append(Variable(f"{held}{LEVEL}", False, base, dict(steps)))
        if f"{held}_sku_sd" in posterior:
            steps[name] = (f"{held}_sku_sd", spread)
        found.append(Variable(name, log, base, steps))
    known = _known_builds(posterior, sku) if measured and backends else set()
    return (*found, *_builds(sku, backends, known), *levels)


def _known_builds(posterior: xr.Dataset, sku: str) -> set[str]:
    """Builds whose effect on a measured SKU the draws hold; of others it is NaN."""
    effect = posterior["build_effect"].isel(chain=0, draw=0).sel(sku=sku)
    return {str(b) for b in effect["backend"].values[np.isfinite(effect.values)]}


def _builds(sku: str, backends: Sequence[str], known: set[str]) -> list[Variable]:
    """Effects of the builds of a SKU: a new SKU's sum to zero, a measured one's are the draw's."""
    if known:
        return [
            Variable(f"{BUILD}{b}", False, ("build_effect", {"sku": sku, "backend": b}))
            if b in known
            else Variable(f"{BUILD}{b}", False, None, {f"{BUILD}{b}": ("build_sd", 1.0)})
            for b in backends
        ]
    basis = contrasts(len(backends)) if backends else np.zeros((0, 0))
    return [
        Variable(
            f"{BUILD}{b}",
            False,
            None,
            {f"{BUILD}{j + 1}": ("build_sd", float(x)) for j, x in enumerate(row)},
        )
        for b, row in zip(backends, basis, strict=True)
    ]


def coordinates(posterior: xr.Dataset, variables: Sequence[Variable]) -> Coordinates:
    """Fill the draws of a posterior, dims (chain, draw, …), into a `recipe` [1]."""
    samples = posterior.sizes["chain"] * posterior.sizes["draw"]
    labels = list(dict.fromkeys(k for v in variables for k in v.steps))
    loading = np.zeros((samples, len(variables), len(labels)))
    centre = np.zeros((samples, len(variables)))
    for i, variable in enumerate(variables):
        if variable.base is not None:
            stored, at = variable.base
            centre[:, i] = flat(posterior[stored].sel(at))
        for label, (stored, by) in variable.steps.items():
            loading[:, i, labels.index(label)] = by * flat(posterior[stored])
    return Coordinates(tuple(variables), centre, loading, tuple(labels))


def natural(
    variables: Sequence[Variable], value: Callable[[int], Any], stack: Callable[..., Any]
) -> tuple[dict[str, Any], Any]:
    """Factors and spreads on their natural scale, and build effects or None.

    Parameters
    ----------
    variables : sequence of Variable
        From `recipe`.
    value : callable
        Of a position: the variable on the link scale, dims (sample, 1).
    stack : callable
        Joins the build effects to dims (sample, backend).
    """
    factors, effects = {}, []
    for i, variable in enumerate(variables):
        if variable.name.startswith(BUILD):
            effects.append(value(i))
        elif not variable.name.endswith(LEVEL):
            factors[variable.name] = exp(value(i)) if variable.log else value(i)
    return factors, stack(effects, axis=1) if effects else None


def stored_names(posterior: xr.Dataset) -> list[tuple[str, str, bool]]:
    """Name, stored name and whether on the log scale [1], of each factor and spread; no dims."""
    found = [(f["name"], f["link"] == "log") for f in json.loads(posterior.attrs["factors"])]
    found += [(kind, True) for kind in KINDS]
    return [(name, f"log_{name}" if log else name, log) for name, log in found]


def contrasts(n: int) -> np.ndarray:
    """Orthonormal columns that sum to zero, dims (n, n - 1) [1]: Helmert's, the same everywhere.

    A basis from an eigenvalue solver turns with the rounding of the machine, and so would updates.

    >>> contrasts(3).round(2).tolist()
    [[0.71, 0.41], [-0.71, 0.41], [0.0, -0.82]]
    """
    row, column = np.arange(n)[:, None], np.arange(1, n)
    steps = np.where(row < column, 1.0, np.where(row == column, -column, 0.0))
    return np.asarray(steps / np.sqrt(column * (column + 1)))


def flat(values: xr.DataArray) -> np.ndarray:
    """Draws of one variable, dims (sample,) [its own unit]."""
    return np.asarray(values.transpose(*SAMPLE).values.astype(float).ravel())


def _shared(posterior: xr.Dataset, held: str) -> str:
    """Stored name of a variable whose level all SKUs share."""
    for name in (f"{held}_mean", held):
        if name in posterior and "sku" not in posterior[name].dims:
            return name
    raise RecordError(
        f"posterior {posterior.attrs.get('name', 'without a name')} has no variable {held}; "
        "fit the model again"
    )
