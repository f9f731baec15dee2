"""Simulation-based calibration of every stored model's inference, on small designs."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2bayes import sbc
from m2bayes._jobs import ONE, in_turn
from m2bayes._ranks import judged
from m2bayes.database import Database
from m2bayes.diagnostics import fingerprint
from m2bayes.errors import DataError
from m2bayes.posterior import compiled_model, versions
from m2bayes.suites import _designs

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("clock_sustained",)
JUDGED = ("assembly", "baseline", "narrow")  # fields of the setting
PLANNED = sbc.Effort().simulations
CONTROL = 100  # simulations of the control
SHIFT = 2.0  # of the control's prior, in its own standard deviations
QUICK = sbc.Effort(simulations=4, kept=7, tune=100, thin=4, ess=0.0, longer=(1,))
SMALLEST = "const_ceiling"  # what is run when there is little time


def run(setting: Setting) -> dict[str, Any]:
    """Calibrate each model, and show that a wrong prior is found out.

    Returns
    -------
    dict
        ``scales``: whether the spreads of the hierarchy are fixed or sampled; ``models``: as from
        `m2bayes._ranks.judged`, with ``effort``, ``labels``, ``cells`` and the ``control``: the
        same of simulations whose ``factor`` was drawn from a prior higher by ``shift`` sd. Where
        more than `PLANNED` simulations ran, ``first`` is the verdict of those alone. ``key`` tells
        density, effort, seed and versions: a verdict of the setting's former run with the same
        is taken over.
    """
    names = [SMALLEST] if setting.quick else list(_designs.DESIGNS)
    return {
        "scales": "sampled, each from its prior",
        "models": {name: _model(setting, name) for name in names},
    }


def _model(setting: Setting, name: str) -> dict[str, Any]:
    """Calibration of one model, and its control."""
    design = _designs.DESIGNS[name]
    effort = QUICK
    if not setting.quick:
        effort = sbc.Effort(design.simulations, tune=design.tune, thin=design.thin)
    inputs = _designs.inputs(setting.database, name)
    model = inputs.build(setting.database.builder(name))

    @cache
    def compiled() -> Any:
        setting.tell(f"{name}: compiling")
        return compiled_model(model, jitter=inputs.law.variant is None)

    factor, mark = design.factor, fingerprint(model)
    rounded = [float(f"{density:.9g}") for density in mark]  # BLAS kernels differ in the rest
    key = sbc.key(rounded, effort, setting.seed, SHIFT, versions())
    former = setting.former.get("models")
    verdict = former.get(name) if isinstance(former, dict) else None
    if isinstance(verdict, dict) and verdict.get("key") == key:
        setting.tell(f"{name}: as before")
        return verdict
    shared = (setting.database.place, name, tuple(mark))
    run = None if setting.each is in_turn else partial(setting.each, _ranked, shared)
    parts: dict[str, tuple[sbc.Effort, dict[str, Any]]] = {
        "": (effort, {}),
        "control": (
            replace(effort, simulations=min(CONTROL, effort.simulations)),
            {"wrong": factor, "shift": SHIFT},
        ),
    }
    out: dict[str, Any] = {}
    for part, (some, change) in parts.items():
        seed = setting.seed + 1000 * bool(part)
        simulated = sbc.simulate(model, some.simulations, seed=seed, **change)
        file = _cache() / f"{sbc.key(mark, some, seed, change, versions())}.json"
        title = f"{name} {part}".strip()

        def tell(text: str, title: str = title) -> None:
            setting.tell(f"{title}: {text}")

        found = sbc.ranks(compiled, simulated, some, file=file, tell=tell, run=run)
        out[part] = judged(found, some.kept)
        if len(found) > PLANNED:
            out[part]["first"] = judged(found[:PLANNED], some.kept)
    control = {"factor": factor, "shift": SHIFT, **out["control"]}
    own = {
        "key": key,
        "effort": asdict(effort) | {"longer": list(effort.longer)},
        "labels": inputs.skus,
        "cells": inputs.cells().sizes["cell"],
    }
    return {**own, **out[""], "control": control}


@cache
def _compiled(root: str | None, name: str, mark: tuple[float, ...]) -> Any:
    """What a worker keeps of one model: compiled, once it is known to be the same."""
    database = Database(root)
    inputs = _designs.inputs(database, name)
    model = inputs.build(database.builder(name))
    if tuple(fingerprint(model)) != mark:
        raise DataError("a worker has another model; install the same on every machine")
    return compiled_model(model, jitter=inputs.law.variant is None)


def _ranked(shared: tuple[str | None, str, tuple[float, ...]], job: sbc.Job) -> dict[str, Any]:
    with ONE:
        return sbc.ranked(_compiled(*shared), job)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "m2bayes" / "sbc"
