"""Time of light kernels from pooled factors: floor, its growth with the width, SM issue, knees."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.laws import LAWS
from m2bayes.mechanism.light import light_time


def build(data, datasheets):
    """Model the log time of each cell; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Measured kernel times [s], ``kernel``, ``tokens`` [token] and ``width`` [element]. One run
        a cell: times rounded to a microsecond tie, and no noise explains exact ties. Half of the
        token counts are evenly spaced in the log, half linear: short kernels tell the floors,
        long ones the rates, and those between the knees.
    datasheets : Dataset, dims (sku,)
        Of the measured units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is a kind
        of kernel, a ``sku`` that kind on one card.
    """
    frame = Frame(data, datasheets, law=LAWS["light_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spread between kernel kinds
        # and that between cards. One card is fitted, so the latter is prior only: it is the spread
        # of launch time (at one clock), issue efficiency and knee over the cards of hier_gemm.
        log_factor = {
            "floor": frame.pooled(
                "log_floor", (np.log(3e-6), 0.5), architecture=0.5, sku=0.2, centred=("sku",)
            ),
            "floor_width": frame.pooled(
                "log_floor_width", (np.log(1e-6), 0.8), architecture=0.8, sku=0.2, centred=("sku",)
            ),
            # an SM loads and stores some 6 bytes a clock where it waits for memory
            "issue_cost": frame.pooled(
                "log_issue_cost", (np.log(0.17), 0.5), architecture=0.5, sku=0.1, centred=("sku",)
            ),
            "floor_knee": frame.pooled(
                "log_floor_knee", (np.log(1.0), 0.5), architecture=0.4, sku=0.3
            ),
            "roof_knee": frame.pooled(
                "log_roof_knee", (np.log(0.5), 0.4), architecture=0.6, sku=0.3
            ),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        frame.observe(light_time(terms, frame.rows(factor)), run=0.02)
    return model
