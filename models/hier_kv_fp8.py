"""What an 8-bit KV cache costs or saves besides half the traffic, pooled over kernels."""

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
        Of the measured units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is a
        family of kernels, a ``sku`` one of them on one card.
    """
    frame = Frame(data, datasheets, law=LAWS["kv_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # unpacking costs a few instructions a number; 8-bit queries, another kernel can save some
        cost = frame.pooled(
            "log_kv_cost",
            (np.log(1.1), 0.2),
            architecture=0.25,
            sku=0.1,
            centred=("architecture", "sku"),
        )
        factor = {"kv_cost": pm.math.exp(cost)}
        frame.observe(frame.law.time(terms, frame.rows(factor)), run=0.02, absolute=None)
    return model
