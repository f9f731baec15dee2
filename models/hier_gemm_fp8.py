"""FP8 GEMM time from pooled factors of a backend's kernel: those of bf16, and quantising."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.laws import LAWS


def build(data, datasheets):
    """Model the log time of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured kernel times [s] and shapes [1], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the measured units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is one
        backend's kernels on an architecture, a ``sku`` those on one card.
    """
    frame = Frame(data, datasheets, law=LAWS["fp8_gemm_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spreads below it. The memory
        # system and the launch know nothing of a dtype: their populations are those that the bf16
        # posterior of hier_gemm found, twice as wide. No cell's time enters both posteriors.
        log_factor = {
            "eta_memory": frame.pooled(
                "log_eta_memory", (-0.164, 0.06), architecture=0.05, sku=0.04, centred=("sku",)
            ),
            "memory_latency": frame.pooled("log_memory_latency", (8.83, 0.2), architecture=0.3),
            "eta_cache": frame.pooled("log_eta_cache", (-2.8, 0.7), architecture=0.8),
            "launch_time": frame.pooled(
                "log_launch_time", (-13.05, 0.1), architecture=0.15, sku=0.1
            ),
            # power per 8-bit rate is half of what it is in 16 bit, at some 0.6 of the energy
            "clock_burst": frame.pooled("log_clock_burst", (0.3, 0.3), architecture=0.2, sku=0.06),
            "droop": frame.pooled("log_droop", (-1.4, 0.4), architecture=0.28, sku=0.4),
            # libraries differ more than cards: issue rate and prologue are their kernels'
            "eta_issue": frame.pooled("log_eta_issue", (0.15, 0.3), architecture=0.3),
            "prologue": frame.pooled("log_prologue", (np.log(250), 0.7), architecture=0.7),
            "knee": frame.pooled("log_knee", (0.64, 0.4), architecture=0.33),
            # the same package times quantising kernels alone: 1.3 to 2.5 us and one pass over what
            # they read and write; finding a scale takes 7 to 10 us and 2 to 3 passes of reading
            "quantise_time": frame.pooled(
                "log_quantise_time", (np.log(2e-6), 0.2), architecture=0.3
            ),
            "quantise_passes": frame.pooled(
                "log_quantise_passes", (np.log(1.1), 0.2), architecture=0.3
            ),
            "rescale_time": frame.pooled("log_rescale_time", (np.log(8e-6), 0.12)),
            "rescale_passes": frame.pooled("log_rescale_passes", (np.log(2.5), 0.3)),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        # as the bf16 posterior found them: card against card, whatever the dtype
        factor["power_slope"] = pm.Normal("power_slope", 0.7, 0.2)
        factor["width_slope"] = pm.Normal("width_slope", 0.12, 0.08)
        factor["blank_gain"] = pm.Normal("blank_gain", 0.069, 0.02)
        # fixed selectors suit some shapes badly: twice the discrepancy of 16 bits
        time = frame.law.time(terms, frame.rows(factor))
        frame.observe(time, run=0.03, absolute=None, relative=0.12)
    return model
