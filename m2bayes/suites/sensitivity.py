"""Do priors decide the answers? Power scaling of priors and likelihood of each stored posterior.

Raising the prior or the likelihood to a power near 1 tilts the posterior, which importance weights
of the stored draws show without a refit [1]_. A figure is the change of a quantity's distribution
for each doubling of the power, as a Jensen-Shannon distance: above `TOLD` it counts, if it is also
above what the noise of the draws gives by chance.

References
----------
.. [1] Kallioinen, Paananen, Bürkner, Vehtari (2024). *Detecting and diagnosing prior and likelihood
   sensitivity with power-scaling*. https://doi.org/10.1007/s11222-023-10366-5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.inputs import Inputs
from m2bayes.step import PARTS, aligned, operator_times, spaced
from m2bayes.suites import _designs
from m2bayes.suites._density import log_likelihood, log_prior
from m2bayes.workload import Step

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16", "attention_prefill_bf16", "attention_decode_bf16", "allreduce_bf16")
JUDGED = ("assembly", "baseline")  # fields of the setting
TOLD = 0.05
POWERS = (0.8, 1.25)  # of the prior, at which p_best is told
LLM, SKUS = "llama-3.1-8b", ("a100", "h100", "h200", "l40s")
EVERY = "every part"
STEPS = (
    Step("decode", batch=32, context=1024),
    Step("prefill", tokens=1024),
    Step("prefill", tokens=8192),
)
OPEN = (0.01, 0.99)  # p_best that leaves something to decide
SHIFT = 50  # draws by which log densities are moved, besides to another chain, to see the noise
FEW = 50  # draws of each chain when there is little time


def run(setting: Setting) -> dict[str, Any]:
    """Tilt the prior and the likelihood of each part, and see what moves.

    Returns
    -------
    dict
        ``parameters``: by posterior, the sensitivity of each parameter above the labels to the
        ``prior`` of all of them and to the ``likelihood`` [1]; ``questions``: by workload and SKU
        that of the step time, and of whether the SKU is the best where that is open, by part;
        ``p_best`` [1] at the `POWERS` of all priors, how far it moves ``by chance``, and the Pareto
        k of the weights. Of a posterior whose rows are not included there is no likelihood.
    """
    database = setting.database
    parts = database.assembly(setting.assembly).parts
    names = {part: parts[part] for part in PARTS}
    names = {"gemm": names["gemm"]} if setting.quick else names | {"baseline": setting.baseline}
    draws = {part: database.draws(name) for part, name in names.items()}
    if setting.quick:
        draws = {part: spaced(held, FEW) for part, held in draws.items()}
    logs = {part: _logs(setting, name, draws[part]) for part, name in names.items()}
    out: dict[str, Any] = {"told_from": TOLD, "parameters": {}}
    for part, name in names.items():
        top = draws[part][[str(v) for v in logs[part]["prior"].data_vars]]
        found = senses(top, logs[part])
        out["parameters"][name] = {
            str(v): {group: float(one[v]) for group, one in found.items()} for v in top.data_vars
        }
    if not setting.quick:
        held = {
            part: draws[part].assign(
                {group: log.to_array().sum("variable") for group, log in of.items()}
            )
            for part, of in logs.items()
            if part != "baseline"
        }
        out |= _questions(setting, aligned(held))
    return out


def _logs(setting: Setting, name: str, draws: xr.Dataset) -> dict[str, xr.Dataset]:
    """Log densities of a posterior's priors and, where its rows are here, of its data.

    Dims (chain, draw), by variable [1].
    """
    database, record = setting.database, setting.database.posterior(name)
    setting.tell(f"{name}: log densities")
    here = all(database.included(source["name"]) for source in record.data)
    inputs = Inputs.recorded(database, record) if here else _designs.inputs(database, record.model)
    model = inputs.build(database.builder(record.model))
    labels = {d: draws[d] for d in ("chain", "draw") if d in draws.coords}
    out = {"prior": log_prior(model, draws).assign_coords(labels)}
    if here:
        seen = log_likelihood(model, draws).assign_coords(labels)
        out["likelihood"] = seen.sum([d for d in seen.dims if d not in ("chain", "draw")])
    return out


def senses(quantities: xr.Dataset, logs: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Sensitivity of quantities to each group of log densities [1].

    Parameters
    ----------
    quantities : Dataset, dims (chain, draw, …)
        Anything that the draws decide.
    logs : dict of Dataset, dims (chain, draw)
        ``prior``, ``likelihood``: log densities by variable [1].

    Returns
    -------
    dict of Dataset
        By group, and by ``<group> by chance``: the largest figure found when the log densities are
        those of other draws, so that it is the noise of the draws alone; the other dims of
        `quantities` kept.
    """
    found = _psense(quantities, logs)
    chance = [
        _psense(quantities, {g: held.roll(chain=turn, draw=SHIFT) for g, held in logs.items()})
        for turn in range(1, quantities.sizes["chain"])
    ]
    for group in logs:
        worst = xr.concat([one[group] for one in chance], dim="turn").max("turn")
        found[f"{group} by chance"] = worst
    return found


def _psense(quantities: xr.Dataset, logs: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    import arviz_stats as az

    groups = {"prior": "log_prior", "likelihood": "log_likelihood"}
    tree = xr.DataTree.from_dict(
        {"posterior": quantities.drop_attrs()} | {groups[g]: held for g, held in logs.items()}
    )
    return {group: az.psense(tree, group=group) for group in logs}


def _questions(setting: Setting, parts: dict[str, xr.Dataset]) -> dict[str, Any]:
    """What tilting does to the times of whole steps, and to who is best."""
    setting.tell("times of whole steps")
    llm, sheets = setting.database.llm(LLM), setting.database.datasheets(SKUS)
    times = operator_times(parts, llm, STEPS, sheets, seed=setting.seed).sum("op")
    best = (times == times.min("sku")).astype(float)
    groups = {part: [g for g in ("prior", "likelihood") if g in of] for part, of in parts.items()}
    logs = {part: {g: parts[part][[g]] for g in held} for part, held in groups.items()}
    logs[EVERY] = {
        g: xr.concat([of[g] for of in logs.values() if g in of], dim="part").sum("part")
        for g in ("prior", "likelihood")
    }
    setting.tell("tilting")
    p = best.mean(("chain", "draw"))
    asked = {
        (what, str(workload), str(sku)): held.sel(workload=workload, sku=sku, drop=True)
        for what, held in (("step_time", times), ("best", best))
        for workload in times["workload"].values
        for sku in times["sku"].values
        if what == "step_time" or OPEN[0] < float(p.sel(workload=workload, sku=sku)) < OPEN[1]
    }
    quantities = xr.Dataset({" ".join(name): held for name, held in asked.items()})
    found = {part: senses(quantities, of) for part, of in logs.items()}
    prior = logs[EVERY]["prior"]["prior"]
    tilts = {str(power): tilted(prior, power) for power in POWERS}
    turns = [prior.roll(chain=turn, draw=SHIFT) for turn in range(1, prior.sizes["chain"])]
    others = [tilted(turn, power)[0] for turn in turns for power in POWERS]
    out: dict[str, Any] = {"p_best": {"pareto_k": {k: held[1] for k, held in tilts.items()}}}
    out["questions"] = {}
    for workload in times["workload"].values:
        for sku in times["sku"].values:
            own = best.sel(workload=workload, sku=sku)
            flat, share = own.values.ravel(), float(own.mean())
            noise = max(abs(float((flat * weight).sum()) - share) for weight in others)
            row: dict[str, Any] = {"p_best": {"1": share}, "p_best by chance": noise}
            for power, (weight, _) in tilts.items():
                row["p_best"][power] = float((flat * weight).sum())
            for what in ("step_time", "best"):
                name = f"{what} {workload} {sku}"
                if name in quantities:
                    row[what] = {
                        part: {g: float(one[name]) for g, one in of.items()}
                        for part, of in found.items()
                    }
            out["questions"][f"{workload} {sku}"] = row
    return out


def tilted(log_density: xr.DataArray, power: float) -> tuple[np.ndarray, float]:
    """Weights of draws under a prior raised to `power`, dims (sample,), and their Pareto k [1].

    Parameters
    ----------
    log_density : DataArray, dims (chain, draw)
        Of that prior [1].
    power : float
        1 gives equal weights.
    """
    from arviz_stats.base import array_stats

    flat = (power - 1) * log_density.transpose("chain", "draw").values.ravel()
    log_weight, k = array_stats.psislw(-flat)  # it takes log-likelihoods left out
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum(), float(k)
