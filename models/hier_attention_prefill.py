"""Prefill attention time from pooled factors of a kernel: tensor rate, tiles, padding, ports."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.attention import prefill_time
from m2bayes.mechanism.laws import LAWS

KERNEL, BOTH = (
    ("architecture",),
    ("architecture", "sku"),
)  # levels whose values the data of one kernel tell


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
    frame = Frame(data, datasheets, law=LAWS["prefill_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spreads below it.
        log_factor = {
            "launch_time": frame.pooled(
                "log_launch_time", (np.log(9e-6), 0.4), architecture=0.2, sku=0.06, centred=BOTH
            ),
            "eta_tensor": frame.pooled(
                "log_eta_tensor", (np.log(0.8), 0.3), architecture=0.2, sku=0.06, centred=BOTH
            ),
            "tile_overhead": frame.pooled(
                "log_tile_overhead", (np.log(0.6), 0.8), architecture=1.0, sku=0.1, centred=BOTH
            ),
            "padding": frame.pooled(
                "log_padding", (np.log(126), 0.6), architecture=0.6, sku=0.15, centred=BOTH
            ),
            "lone_tile": frame.pooled(
                "log_lone_tile", (np.log(0.75), 0.3), architecture=0.27, sku=0.06, centred=BOTH
            ),
            "port_cost": frame.pooled(
                "log_port_cost", (np.log(3), 0.8), architecture=0.6, centred=KERNEL
            ),
            "tail": frame.pooled("log_tail", (np.log(0.6), 0.4), architecture=0.3, centred=KERNEL),
            "wave_share": frame.pooled(
                "log_wave_share", (np.log(0.3), 0.6), architecture=0.4, centred=KERNEL
            ),
            "key_cost": frame.pooled(
                "log_key_cost", (np.log(7), 0.8), architecture=0.6, centred=KERNEL
            ),
            "memory_cost": frame.pooled(
                "log_memory_cost", (np.log(0.35), 0.7), architecture=0.6, centred=KERNEL
            ),
            "droop": frame.pooled(
                "log_droop", (np.log(0.1), 0.6), architecture=0.4, centred=KERNEL
            ),
            # no table times a kernel inside a step: some 2 to 5 us from the first read to the last
            "kernel_latency": frame.pooled("log_kernel_latency", (np.log(3e-6), 0.4)),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        frame.observe(prefill_time(terms, frame.rows(factor)), run=0.006)
    return model
