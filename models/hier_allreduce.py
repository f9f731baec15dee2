"""All-reduce time from pooled factors of a library: start-up, link share, and their growth."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.collective import allreduce_time
from m2bayes.mechanism.laws import LAWS

BOTH = ("architecture", "sku")  # levels whose values the data of one library tell


def build(data, datasheets):
    """Model the log time of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured times [s], GPUs and bytes [1], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the measured units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is a
        library on one kind of link, a ``sku`` that library on one card.
    """
    frame = Frame(data, datasheets, law=LAWS["allreduce_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population, then the spreads below it
        start = frame.pooled(
            "log_start_time", (np.log(6e-6), 0.5), architecture=0.4, sku=0.3, centred=BOTH
        )
        share = frame.pooled(
            "log_eta_link", (np.log(0.6), 0.3), architecture=0.2, sku=0.15, centred=BOTH
        )
        factor = {
            "start_time": pm.math.exp(start),
            "eta_link": pm.math.exp(share),
            "start_growth": frame.pooled(
                "start_growth", (0.4, 0.3), architecture=0.3, sku=0.15, centred=BOTH
            ),
            "contention": frame.pooled(
                "contention", (0.3, 0.5), architecture=0.5, sku=0.25, centred=BOTH
            ),
        }
        frame.observe(allreduce_time(terms, frame.rows(factor)), run=0.02)
    return model
