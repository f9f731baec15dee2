"""GEMM time from pooled factors: clock, wave, issue, bandwidth, cache, latency, launch."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.gemm import gemm_time


def build(data, datasheets, clock=None):
    """Model the log time of each run of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured kernel times [s] and shapes [1], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the measured SKUs, for one dtype.
    clock : Dataset, dims (reading, sweep), optional
        Clock telemetry, from `m2bayes.measurements.clock_readings`: without it the clock and the
        issue rate are only known by their product.
    """
    frame = Frame(data, datasheets, clock)
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spreads below it.
        log_factor = {
            # the source's bandwidth ramp ends at 0.891; an HBM read takes some 8,000 clocks
            "eta_memory": frame.pooled(
                "log_eta_memory",
                (np.log(0.87), 0.08),
                architecture=0.05,
                sku=0.04,
                centred=("sku",),
            ),
            "memory_latency": frame.pooled(
                "log_memory_latency",
                (np.log(8300), 0.3),
                architecture=0.1,
                sku=0.08,
                centred=("sku",),
            ),
            "eta_cache": frame.pooled("log_eta_cache", (-1.7, 0.45), architecture=0.43),
            "launch_time": frame.pooled(
                "log_launch_time",
                (np.log(1.4e-6), 0.4),
                architecture=0.15,
                sku=0.2,
                centred=("sku",),
            ),
            # the source's clocks droop by 0.20 to 0.44; its large-M ceilings are 0.675 to 0.748
            "clock_burst": frame.pooled("log_clock_burst", (0.07, 0.2), architecture=0.1, sku=0.06),
            "droop": frame.pooled("log_droop", (np.log(0.25), 0.4), architecture=0.28, sku=0.4),
            "eta_issue": frame.pooled("log_eta_issue", (0.2, 0.2), architecture=0.1, sku=0.05),
            "prologue": frame.pooled("log_prologue", (np.log(250), 0.5)),
            "knee": frame.pooled("log_knee", (np.log(0.6), 0.4), architecture=0.3),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        factor["power_slope"] = pm.Normal("power_slope", 0.6, 0.2)
        factor["width_slope"] = pm.Normal("width_slope", 0.1, 0.1)
        factor["blank_gain"] = pm.Normal("blank_gain", 0.05, 0.05)
        frame.observe(gemm_time(terms, frame.rows(factor)))
        frame.observe_clock(factor)
    return model
