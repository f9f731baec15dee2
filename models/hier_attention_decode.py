"""Decode attention time from pooled factors of a kernel: blocks, bandwidth, chains, cache."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.decode_attention import decode_time
from m2bayes.mechanism.laws import LAWS

# width of the prior of the spread of a family's cards: the cards tell it, 30 % would overrule them
VAGUE = 0.6
BOTH, KERNEL = ("architecture", "sku"), ("architecture", "loose")


def build(data, datasheets):
    """Model the log time of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured kernel times [s] and shapes [1], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the measured units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is a
        family of kernels, a ``sku`` one of them on one card.
    """
    frame = Frame(data, datasheets, law=LAWS["decode_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spreads below it.
        log_factor = {
            "launch_time": frame.pooled(
                "log_launch_time",
                (np.log(9e-6), 0.4),
                architecture=0.2,
                sku=(0.07, VAGUE),
                centred=BOTH,
            ),
            "block_cost": frame.pooled(
                "log_block_cost",
                (np.log(2000), 0.6),
                architecture=0.7,
                sku=(0.08, VAGUE),
                centred=("architecture",),
            ),
            "step_cost": frame.pooled(
                "log_step_cost",
                (np.log(1700), 0.6),
                architecture=0.9,
                sku=(0.08, VAGUE),
                centred=("architecture",),
            ),
            "eta_memory": frame.pooled(
                "log_eta_memory",
                (np.log(0.88), 0.05),
                architecture=0.04,
                sku=0.02,
                centred=("sku",),
            ),
            "combine_time": frame.pooled(
                "log_combine_time", (np.log(2.6e-6), 0.7), architecture=0.7, centred=KERNEL
            ),
            "most_splits": frame.pooled(
                "log_most_splits", (np.log(22), 0.5), architecture=0.4, centred=KERNEL
            ),
            "group_cost": frame.pooled(
                "log_group_cost", (np.log(0.08), 0.8), architecture=0.5, centred=KERNEL
            ),
            "knee": frame.pooled("log_knee", (np.log(1.1), 0.6), architecture=0.7, centred=KERNEL),
            "ramp_time": frame.pooled(
                "log_ramp_time", (np.log(2e-6), 0.7), architecture=0.5, centred=KERNEL
            ),
            # no table times a kernel inside a step: some 2 to 5 us from the first read to the last
            "kernel_latency": frame.pooled("log_kernel_latency", (np.log(3e-6), 0.4)),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        frame.observe(decode_time(terms, frame.rows(factor)), run=0.006, absolute=None)
    return model
