"""Log density of `models/hier_gemm.py` and its gradient, written by hand as loops.

What `gradient.py` measures the library against: reverse mode, logarithms of times where the law has
times, and all that has no parameter in it computed once before.
"""
# ruff: noqa: PLR0915, PLR0917  loops that are compiled take what they need by position

import math

import numba as nb
import numpy as np
from scipy.special import gammaln

from m2bayes.hierarchy import SPREAD, TAIL, Frame
from m2bayes.mechanism.clock import REFERENCE_POWER, REFERENCE_WIDTH
from m2bayes.mechanism.gemm import ROOF_SHARPNESS
from m2bayes.mechanism.memory import CACHE_PORT

# Centre and sd of the population, spread of architectures and of SKUs (0: none), SKUs centred.
POOLED = {
    "eta_memory": (np.log(0.87), 0.08, 0.05, 0.04, True),
    "memory_latency": (np.log(8300), 0.3, 0.1, 0.08, True),
    "eta_cache": (-1.7, 0.45, 0.43, 0, False),
    "launch_time": (np.log(1.4e-6), 0.4, 0.15, 0.2, True),
    "clock_burst": (0.07, 0.2, 0.1, 0.06, False),
    "droop": (np.log(0.25), 0.4, 0.28, 0.4, False),
    "eta_issue": (0.2, 0.2, 0.1, 0.05, False),
    "prologue": (np.log(250), 0.5, 0, 0, False),
    "knee": (np.log(0.6), 0.4, 0.3, 0, False),
    "sigma_cell": (np.log(0.06), 0.4, 0, 0.3, False),
    "sigma_time": (np.log(3e-7), 0.7, 0, 0.3, False),
    "sigma_run": (np.log(0.03), 0.4, 0, 0.3, False),
}
MEMORY, LATENCY, CACHE, LAUNCH, BURST, DROOP, ISSUE, PROLOGUE, KNEE, CELL, TIME, RUN = range(12)
SLOPES = {"power_slope": (0.6, 0.2), "width_slope": (0.1, 0.1), "blank_gain": (0.05, 0.05)}
LOG_SPREADS = {"build_sd": (np.log(0.03), 0.5), "clock_misfit": (np.log(0.05), 0.5)}
CAP_SLOPE = (1 / 3, 0.1)
W = ROOF_SHARPNESS
LOG_ROOT = 0.5 * math.log(2 * math.pi)
READING = math.lgamma((TAIL + 1) / 2) - math.lgamma(TAIL / 2) - 0.5 * math.log(TAIL * math.pi)


@nb.njit(inline="always")
def normal(x, mean, sd):
    """Log density of a normal, and its derivative by x."""
    z = (x - mean) / sd
    return -0.5 * z * z - math.log(sd) - LOG_ROOT, -z / sd


@nb.njit(inline="always")
def soft(d):
    """log(1 + exp(d)) and its derivative, of one exponential and one logarithm."""
    e = math.exp(-abs(d))
    share = 1.0 / (1.0 + e)
    return max(d, 0.0) + math.log1p(e), share if d > 0 else 1.0 - share


@nb.njit
def down(x, g, at, prior, family, values):
    """Values[factor, sku] of the pooled factors on the log scale; adds the offsets' priors."""
    total = 0.0
    for f in range(len(at)):
        mean, family_sd, families, sku_sd, skus, centred = at[f]
        part, by = normal(x[mean], prior[f, 0], prior[f, 1])
        total, g[mean] = total + part, g[mean] + by
        for sd, centre in ((family_sd, prior[f, 2]), (sku_sd, prior[f, 3])):
            if sd >= 0:
                part, by = normal(x[sd], math.log(centre), SPREAD)
                total, g[sd] = total + part, g[sd] + by
        if family_sd >= 0:
            for a in range(family.max() + 1):
                part, by = normal(x[families + a], 0.0, 1.0)
                total, g[families + a] = total + part, g[families + a] + by
        width, spread = math.exp(x[family_sd]), math.exp(x[sku_sd])
        for s in range(len(family)):
            level = x[mean]
            if family_sd >= 0:
                level += width * x[families + family[s]]
            if sku_sd >= 0 and centred:
                part, by = normal(x[skus + s], level, spread)
                total, g[skus + s] = total + part, g[skus + s] + by
                level = x[skus + s]
            elif sku_sd >= 0:
                part, by = normal(x[skus + s], 0.0, 1.0)
                total, g[skus + s] = total + part, g[skus + s] + by
                level += spread * x[skus + s]
            values[f, s] = level
    return total


@nb.njit
def up(x, g, at, family, values, adjoint):
    """Adds to g what adjoint[factor, sku] says of the parameters above."""
    for f in range(len(at)):
        mean, family_sd, families, sku_sd, skus, centred = at[f]
        width, spread = math.exp(x[family_sd]), math.exp(x[sku_sd])
        for s in range(len(family)):
            by = adjoint[f, s]
            if sku_sd >= 0 and centred:
                level = x[mean] + (width * x[families + family[s]] if family_sd >= 0 else 0.0)
                z = (values[f, s] - level) / spread
                g[skus + s] += by
                g[sku_sd] += z * z - 1.0
                by = z / spread
            elif sku_sd >= 0:
                g[skus + s] += by * spread
                g[sku_sd] += by * spread * x[skus + s]
            g[mean] += by
            if family_sd >= 0:
                g[families + family[s]] += by * width
                g[family_sd] += by * width * x[families + family[s]]


@nb.njit(fastmath={"contract", "reassoc", "arcp"})
def cells(const, sku_at, cell, run, build_at, present, log_time, rates, values, slope, effect,
          adjoint, slope_by, effect_by):  # fmt: skip
    """Log density of the runs of all cells; adds its derivatives by what it is given."""
    total, runs = 0.0, present.shape[1]
    factor = np.exp(values)
    roof = np.empty(values.shape[1])
    for s in range(len(roof)):
        roof[s] = values[BURST, s] + slope[0] * rates[s, 2] + slope[1] * rates[s, 3]
    time, residual, memory, middle, by_issue, by_memory, by_soft = np.empty((7, runs))
    for i in range(len(sku_at)):
        s = sku_at[i]
        hbm, port = rates[s, 0] * factor[MEMORY, s], rates[s, 1] * factor[CACHE, s]
        both, launch, p = hbm + port, factor[LAUNCH, s], 1.0 + factor[KNEE, s]
        prologue = factor[PROLOGUE, s] * cell[i, 2]
        issue = cell[i, 0] + math.log1p(prologue) - values[ISSUE, s]
        latency = factor[LATENCY, s] * cell[i, 3]
        mean = first = second = 0.0
        for j in range(runs):
            power = cell[i, 1] - roof[s] + factor[DROOP, s] * run[i, j, 0] - slope[2] * run[i, j, 1]
            larger, by_issue[j] = soft(W * (issue - power))
            compute = power + larger / W
            memory[j] = run[i, j, 2] / hbm + run[i, j, 3] / both + latency
            gap = math.log(memory[j]) - compute
            larger, by_memory[j] = soft(p * gap)
            middle[j] = math.exp(compute + larger / p)
            by_soft[j] = (by_memory[j] * gap - larger / p) / p
            time[j] = launch + middle[j]
            mean += time[j]
            residual[j] = 0.0
            if present[i, j]:
                residual[j] = log_time[i, j] - math.log(time[j]) - effect[s, build_at[i, j]]
                first += residual[j]
                second += residual[j] * residual[j]
        mean /= runs
        n = const[i, 0]
        v, share = factor[RUN, s] ** 2, factor[CELL, s] ** 2
        fixed = (factor[TIME, s] / mean) ** 2
        c = share + fixed
        whole = v + n * c
        square = (second - c / whole * first * first) / v
        total += (
            const[i, 1]
            - 0.5 * ((n - 1) * 2 * values[RUN, s] + math.log(whole))
            - 0.5 * (TAIL + n) * math.log1p(square / TAIL)
        )
        by_square = -0.5 * (TAIL + n) / (TAIL + square)
        pull = (first / whole) ** 2
        by_c = -by_square * pull - 0.5 * n / whole
        by_v = by_square * (c * pull - square) / v - 0.5 * ((n - 1) / v + 1.0 / whole)
        adjoint[RUN, s] += 2 * v * by_v
        adjoint[CELL, s] += 2 * share * by_c
        adjoint[TIME, s] += 2 * fixed * by_c
        by_mean = -2 * fixed * by_c / mean / runs
        for j in range(runs):
            by = by_mean
            if present[i, j]:
                by_log = -by_square * 2 * (residual[j] - c / whole * first) / v
                effect_by[s, build_at[i, j]] += by_log
                by += by_log / time[j]
            adjoint[LAUNCH, s] += by * launch
            by *= middle[j]
            adjoint[KNEE, s] += by * by_soft[j] * (p - 1.0)
            by_time = by * by_memory[j] / memory[j]
            warm = run[i, j, 3] / both / both
            adjoint[MEMORY, s] -= by_time * hbm * (run[i, j, 2] / hbm / hbm + warm)
            adjoint[CACHE, s] -= by_time * port * warm
            adjoint[LATENCY, s] += by_time * latency
            by *= 1.0 - by_memory[j]
            adjoint[ISSUE, s] -= by * by_issue[j]
            adjoint[PROLOGUE, s] += by * by_issue[j] * prologue / (1.0 + prologue)
            by *= 1.0 - by_issue[j]
            adjoint[DROOP, s] += by * factor[DROOP, s] * run[i, j, 0]
            adjoint[BURST, s] -= by
            slope_by[2] -= by * run[i, j, 1]
    return total


@nb.njit
def readings(at, terms, rates, values, slope, misfit, adjoint, slope_by):
    """Log density of the clock telemetry and its derivative by the log of the misfit."""
    total = by_misfit = 0.0
    for i in range(len(at)):
        s = at[i]
        log_issue, log_ideal, passes, load, blank, error, seen = terms[i]
        prologue, droop = math.exp(values[PROLOGUE, s]) * passes, math.exp(values[DROOP, s]) * load
        issue = log_issue + math.log1p(prologue) - values[ISSUE, s]
        roof = values[BURST, s] + slope[0] * rates[s, 2] + slope[1] * rates[s, 3]
        larger, share = soft(W * (log_ideal - roof + droop - slope[2] * blank - issue))
        square = misfit**2 + error**2
        z = (seen + larger / W) / math.sqrt(square)
        total += READING - 0.5 * math.log(square) - 0.5 * (TAIL + 1) * math.log1p(z * z / TAIL)
        by_z = -(TAIL + 1) * z / (TAIL + z * z)
        by_misfit -= (1.0 + by_z * z) * misfit**2 / square
        by = by_z / math.sqrt(square) * share
        adjoint[ISSUE, s] += by
        adjoint[PROLOGUE, s] -= by * prologue / (1.0 + prologue)
        adjoint[DROOP, s] += by * droop
        adjoint[BURST, s] -= by
        slope_by[2] -= by * blank
    return total, by_misfit


@nb.njit
def density(x, at, prior, family, single, single_prior, offsets, rates, cell_tables, clock, cap):
    """Log density at an unconstrained point, and its gradient."""
    g = np.zeros(len(x))
    values, adjoint = np.empty((len(at), len(family))), np.zeros((len(at), len(family)))
    total = down(x, g, at, prior, family, values)
    for k in range(len(single)):
        part, by = normal(x[single[k]], single_prior[k, 0], single_prior[k, 1])
        total, g[single[k]] = total + part, by
    slope, slope_by = x[single[:3]], np.zeros(3)
    spread, misfit, cap_slope = math.exp(x[single[3]]), math.exp(x[single[4]]), x[single[5]]
    builds = (len(offsets)) // len(family)
    effect = np.empty((len(family), builds))
    effect_by = np.zeros((len(family), builds))
    for s in range(len(family)):
        own = x[offsets[s * builds : (s + 1) * builds]]
        effect[s] = spread * (own - own.mean())
    total += cells(*cell_tables, rates, values, slope, effect, adjoint, slope_by, effect_by)
    part, by_misfit = readings(*clock, rates, values, slope, misfit, adjoint, slope_by)
    total += part
    for power, seen in cap:
        part, by = normal(seen, cap_slope * power, misfit * power)
        total += part
        z = (seen - cap_slope * power) / (misfit * power)
        by_misfit += z * z - 1.0
        g[single[5]] -= by * power
    for s in range(len(family)):  # of the slopes, what acts on a SKU as its clock does
        slope_by[0] += adjoint[BURST, s] * rates[s, 2]
        slope_by[1] += adjoint[BURST, s] * rates[s, 3]
        for b in range(builds):
            k = offsets[s * builds + b]
            part, by = normal(x[k], 0.0, 1.0)
            total += part
            g[k] += by + spread * (effect_by[s, b] - effect_by[s].mean())
            g[single[3]] += effect_by[s, b] * effect[s, b]
    for k in range(3):
        g[single[k]] += slope_by[k]
    g[single[4]] += by_misfit
    up(x, g, at, family, values, adjoint)
    return total, g


def tables(inputs, places):
    """What `density` takes beside the point: all that is measured or computed before.

    Parameters
    ----------
    inputs : m2bayes.inputs.Inputs
        Of the fit.
    places : dict of slice
        Of each parameter in an unconstrained point.
    """
    sheets = inputs.datasheets
    held = Frame(inputs.cells(), sheets, inputs.readings()).inputs()
    start = {name: part.start for name, part in places.items()}
    at = np.full((len(POOLED), 6), -1)
    for row, (name, (_, _, family, sku, centred)) in zip(at, POOLED.items(), strict=True):
        log = f"log_{name}"
        row[0], row[5] = start[f"{log}_mean"], centred
        if family:
            row[1:3] = start[f"{log}_architecture_sd_log__"], start[f"{log}_architecture_offset"]
        if sku:
            row[3:5] = start[f"{log}_sku_sd_log__"], start[log if centred else f"{log}_sku_offset"]
    single = [*SLOPES, *(f"{name}_log__" for name in LOG_SPREADS), "cap_slope"]
    single_prior = np.array([*SLOPES.values(), *LOG_SPREADS.values(), CAP_SLOPE])
    offsets = np.arange(places["build_offset"].start, places["build_offset"].stop)
    family = np.unique(sheets["architecture"].values, return_inverse=True)[1]
    prior = np.array([row[:4] for row in POOLED.values()], dtype=float)
    return (
        *(at, prior, family, np.array([start[name] for name in single]), single_prior, offsets),
        *(_rates(sheets), _cells(held), _readings(held)),
        np.stack([held["cap_log_power"], held["cap_log_clock"]], axis=1),
    )


def _rates(sheets):
    """Of each SKU: bandwidth, port of the cache, what its clock is a power of."""
    power = sheets["power_limit"] / sheets["peak_flop_rate"]
    columns = (
        sheets["peak_bandwidth"],
        sheets["sm_count"] * sheets["boost_clock"] * CACHE_PORT,
        np.log(power / REFERENCE_POWER),
        np.log2(sheets["tensor_flop_per_clock"] / REFERENCE_WIDTH),
    )
    return np.stack([np.asarray(column.values, dtype=float) for column in columns], axis=1)


def _issue(held, prefix=""):
    """Logarithms of issue and ideal time, and passes, of each row."""
    names = ("ideal_compute", "grid_cost", "tile_cost", "peak_over_boost")
    parts = [held[prefix + name] for name in names]
    return np.log(np.prod(parts, axis=0)), np.log(parts[0]), held[f"{prefix}passes"]


def _cells(held):
    n = held["present"].sum(axis=1)
    constant = gammaln((TAIL + n) / 2) - gammaln(TAIL / 2) - n / 2 * np.log(TAIL * np.pi)
    names = ("power_load", "blank_weights", "cold_traffic", "warm_traffic")
    run = [np.broadcast_to(held[name], held["present"].shape) for name in names]
    return (
        *(np.stack([n, constant], axis=1), held["sku_at"]),
        *(np.stack([*_issue(held), held["chain"]], axis=1), np.stack(run, axis=2)),
        *(held["build_at"], held["present"] > 0, held["log_op_time"]),
    )


def _readings(held):
    names = ("clock_power_load", "clock_blank_weights", "reading_error", "reading_log_share")
    columns = [*_issue(held, "clock_"), *(held[name] for name in names)]
    return held["reading_at"], np.stack(columns, axis=1)
