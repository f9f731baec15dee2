"""A fleet simulated step by step beside the queueing approximation."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import WorkloadError
from m2bayes.serving.mix import mean_length
from m2bayes.serving.plan import Demand, Option, steady
from m2bayes.serving.simulate import Server, poisson_requests, simulate

DRAWS = 40  # that are simulated of an option's, evenly spaced
REQUESTS = 1500  # of each
FLOOD = 1.5  # arrivals over the approximate capacity, to find the simulated one
STEPS = 3_000_000  # of the engine, about, of an option: half to find capacities, half at the rate
LEAST_DRAWS, LEAST_REQUESTS = 4, 100
IDLE = 1e-6  # utilisation below which requests do not meet, and a clock would lose its digits
WARM = 0.2  # share of them, the first, that are not looked at


def simulated(option: Option, demand: Demand, replicas: int, *, seed: int) -> dict[str, Any]:
    """Medians of TTFT and TPOT, and how often a replica is saturated, by discrete events.

    Parameters
    ----------
    option : Option
        One that can serve.
    demand : Demand
        What all replicas serve together, at a rate.
    replicas : int
        Of the fleet [1].
    seed : int
        Of arrivals and lengths.

    Returns
    -------
    dict
        ``draws``, ``requests`` [1], fewer than usual where ``cut`` is true, to bound the steps of
        the engine; ``ttft`` and ``tpot``: medians over draws of the requests' median and of
        their percentile asked for, ``simulated`` and ``approximated`` on the same draws [s];
        ``p_saturated`` of both on the same draws [1].

    Raises
    ------
    WorkloadError
        If even few requests would take too many steps.
    """
    rate = demand.load / replicas
    state = steady(option, demand, replicas)
    draws, number = affordable(option, demand, state.batch)
    at = np.unique(np.linspace(0, len(option.highest) - 1, draws).round().astype(int))
    state_rows, sim_rows, full = [], [], []
    levels = (0.5, demand.level)
    told = {n: np.stack([getattr(state, n)(q) for q in levels], -1) for n in ("ttft", "tpot")}
    for draw in at:
        if option.sequences[draw] < 1:
            full.append((True, True))
            continue
        server = Server(
            kv_tokens=int(option.kv_tokens[draw]),
            max_num_seqs=demand.max_num_seqs,
            token_budget=demand.token_budget,
        )
        times = option.surface.pick(int(draw))  # type: ignore[union-attr]
        prompt, answer = _lengths(demand.mix, seed, int(draw))
        highest = _throughput(prompt, answer, times, server, option.highest[draw])
        full.append((rate > highest, bool(state.utilisation[draw] > 1)))
        if full[-1][0] or full[-1][1]:
            continue
        lengths = {"prompt": prompt[:number], "output": answer[:number]}
        seen = max(rate, IDLE * option.highest[draw])
        requests = poisson_requests(seen, number, **lengths, seed=seed + draw)
        found = simulate(requests, times, server).isel(request=slice(int(WARM * number), None))
        sim_rows.append([_quantiles(found[n].values, levels) for n in ("ttft", "tpot")])
        state_rows.append([told[n][draw] for n in ("ttft", "tpot")])
    cut = draws < DRAWS or number < REQUESTS
    result: dict[str, Any] = {"draws": len(at), "requests": number, "cut": cut}
    for i, name in enumerate(("ttft", "tpot")):
        result[name] = {
            f"p{100 * level:g}": {
                "simulated": _middle(sim_rows, i, j),
                "approximated": _middle(state_rows, i, j),
            }
            for j, level in enumerate(levels)
        }
    both = np.array(full, dtype=float).mean(0)
    result["p_saturated"] = {"simulated": float(both[0]), "approximated": float(both[1])}
    return result


def affordable(option: Option, demand: Demand, batch: np.ndarray) -> tuple[int, int]:
    """Draws, and requests of each at the rate asked for, that `STEPS` are enough for [1].

    Parameters
    ----------
    option : Option
        One that can serve.
    demand : Demand
        What is to be served.
    batch : ndarray, dims (draw,)
        Sequences that decode at that rate, on average [1].

    Raises
    ------
    WorkloadError
        If a few are too many.
    """
    answer = mean_length(demand.mix, "output_tokens")
    limit = option.replica.limit  # type: ignore[union-attr]
    flood = REQUESTS * answer / max(float(limit[limit > 0].mean()), 1.0)
    draws = min(DRAWS, int(STEPS / 2 / flood))
    alone = answer / np.clip(np.nanmedian(batch), 1, None)
    number = min(REQUESTS, int(STEPS / 2 / max(draws, 1) / alone))
    if number < LEAST_REQUESTS:  # of fewer draws more
        draws, number = int(STEPS / 2 / alone / LEAST_REQUESTS), LEAST_REQUESTS
    if draws < LEAST_DRAWS:
        raise WorkloadError(
            f"--simulate: answers of {answer:,.0f} tokens take {option.label} over {STEPS:,} steps "
            "of the engine; lower --output-tokens, raise --rate, or leave --simulate out"
        )
    return draws, number


def _lengths(mix: xr.Dataset, seed: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of as many requests as are simulated [token]."""
    rng = labelled_rng(seed, "lengths", str(draw))
    kind = rng.choice(mix.sizes["request"], size=REQUESTS, p=mix["weight"].values)
    lengths = (mix[n].values[kind] for n in ("input_tokens", "output_tokens"))
    prompt, answer = (np.maximum(np.round(v), 1).astype(int) for v in lengths)
    return prompt, answer


def _throughput(
    prompt: np.ndarray, answer: np.ndarray, times: Any, server: Server, about: float
) -> float:
    """Rate at which a queue that never ends is served [1/s]: amid arrivals of more than that."""
    number = len(prompt)
    flood = poisson_requests(FLOOD * about, number, prompt=prompt, output=answer)
    finish = np.sort(simulate(flood, times, server)["finish"].values)
    first, last = len(finish) // 4, 3 * len(finish) // 4
    return float((last - first) / (finish[last] - finish[first]))


def _quantiles(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    held = values[np.isfinite(values)]
    return np.quantile(held, levels) if len(held) else np.full(len(levels), np.nan)


def _middle(rows: list[Any], i: int, j: int) -> float | None:
    """Median over draws of one figure [s]."""
    values = np.array([row[i][j] for row in rows], dtype=float)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else None
