"""GEMM time from one compute ceiling an architecture and one share of bandwidth: the baseline."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.gemm import ceiling_time


def build(data, datasheets):
    """Model the log time of each run of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured kernel times [s] and shapes [1], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the measured SKUs, for one dtype.
    """
    frame = Frame(data, datasheets)
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # the source's single ceiling is 0.75 for compute and 0.75 for bandwidth
        ceiling = frame.pooled("log_ceiling", (np.log(0.7), 0.3), architecture=0.2)
        eta_memory = frame.pooled("log_eta_memory", (np.log(0.75), 0.3))
        factor = {"ceiling": pm.math.exp(ceiling), "eta_memory": pm.math.exp(eta_memory)}
        frame.observe(ceiling_time(terms, frame.rows(factor)))
    return model
