"""Rungs between one ceiling and the full GEMM model: the same model on inputs that hide a part.

Everything in the law that has no parameter in it is mutable data, so a part is switched off by
other inputs, and a rung is compiled with none of its own. The factors of a hidden part keep their
priors and touch no time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._draws import read_draws
from m2bayes.database import Database, write_draws
from m2bayes.diagnostics import diagnostics
from m2bayes.errors import RecordError
from m2bayes.hierarchy import Frame
from m2bayes.inputs import Inputs
from m2bayes.posterior import chains_of, compiled_model, kept, versions

CHAINS, DRAWS, TUNE, TARGET = 4, 1000, 1000, 0.9
RHAT = 1.02  # of a fit that is scored, not stored
FASTER = 1e-9  # of the power roof's time, where the clock is to count for nothing
RUNGS = {  # parts of the law that each hides
    "hierarchical": ("wave", "clock", "memory"),
    "+ wave": ("clock", "memory"),
    "+ clock": ("memory",),
    "full": (),
}
Arrays = dict[str, np.ndarray]


def without(data: Arrays, part: str) -> Arrays:
    """Inputs of ``hier_gemm`` that hide one part of its law.

    Parameters
    ----------
    data : dict of array, dims (cell, …)
        From `m2bayes.hierarchy.Frame.inputs`.
    part : {"wave", "clock", "memory"}
        Wave: tiles, partial waves and the K-prologue cost nothing. Clock: the power roof is out of
        reach and there is no telemetry, so that the issue rate is a constant ceiling. Memory: no
        latency of the K chain and no L2, so that the achieved bandwidth is a constant share.

    Returns
    -------
    dict of array, dims (cell, …)
        Of the same names.
    """
    if part == "wave":
        return data | {
            f"{head}{name}": np.full_like(data[f"{head}{name}"], value)
            for head in ("", "clock_")
            for name, value in (("grid_cost", 1.0), ("tile_cost", 1.0), ("passes", 0.0))
        }
    if part == "clock":
        telemetry = [k for k in data if k.startswith(("clock_", "reading", "cap_"))]
        return (
            data
            | {
                "ideal_compute": data["ideal_compute"] * FASTER,
                "peak_over_boost": data["peak_over_boost"] / FASTER,  # the issue time stays
                **{name: data[name][:0] for name in telemetry},
            }
        )
    return data | {
        "chain": np.zeros_like(data["chain"]),
        "warm_traffic": np.zeros_like(data["warm_traffic"]),
        "cold_traffic": data["cold_traffic"] + data["warm_traffic"],
    }


class Ladder:
    """Fits of one stored posterior's model and data with parts hidden or cells left out.

    Parameters
    ----------
    database : Database
        That holds it.
    name : str
        Of the stored posterior.
    seed : int
        Of the fits.
    tell : callable
        Told what is being fitted.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        seed: int = 1,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.record, self.seed, self.tell = database.posterior(name), seed, tell
        inputs = Inputs.recorded(database, self.record)
        self.model = inputs.build(database.builder(self.record.model))
        frame = Frame(inputs.cells(), inputs.datasheets, inputs.readings(), law=inputs.law)
        held = {v.name for v in self.model.data_vars}
        self.data = {k: v for k, v in frame.inputs().items() if k in held}
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.cache = Path(home) / "m2bayes" / "ladder"

    def inputs(self, hidden: tuple[str, ...], cells: tuple[int, ...] = ()) -> Arrays:
        """Inputs with parts hidden and `cells`, by position, not measured."""
        data = self.data
        for part in hidden:
            data = without(data, part)
        present = data["present"].copy()
        present[list(cells)] = 0.0
        return data | {"present": present}

    def fit(self, hidden: tuple[str, ...], cells: tuple[int, ...] = ()) -> xr.Dataset:
        """Draws of the fit without `hidden` parts and without `cells`, dims (chain, draw, …).

        Raises
        ------
        RecordError
            If it does not converge.
        """
        what = [self.record.fingerprint, self.record.data, hidden, cells, CHAINS, DRAWS, TUNE]
        content = json.dumps([what, TARGET, self.seed, versions()])
        file = self.cache / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.nc"
        if not file.is_file():
            parts = f"without {', '.join(hidden)}" if hidden else "of all parts"
            self.tell(f"fitting {self.record.model} {parts}, {len(cells)} cells left out")
            self.cache.mkdir(parents=True, exist_ok=True)
            write_draws(self._sample(self.inputs(hidden, cells)), file)
        return read_draws(file)

    def _sample(self, data: Arrays) -> xr.Dataset:
        if not hasattr(self, "compiled"):
            self.compiled: Any = compiled_model(self.model, jitter=False)
        used = {variable.name for variable in self.compiled.shared_var_keys}
        tree = chains_of(
            self.compiled.with_data(**{k: v for k, v in data.items() if k in used}),
            draws=DRAWS,
            tune=TUNE,
            chains=CHAINS,
            seed=self.seed,
            target_accept=TARGET,
        )
        checks = diagnostics(tree)
        if checks["rhat_max"] > RHAT or checks["divergences"] > DRAWS * CHAINS / 100:
            raise RecordError(f"a fit with parts hidden did not converge: {checks}")
        return kept(tree)
