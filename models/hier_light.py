"""Time of light kernels from pooled factors: floor, SM issue, empty slots, memory, knees."""

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
        a cell: times rounded to a microsecond tie, and no noise explains exact ties; neighbouring
        token counts say that a median's is well below a hundredth. Half of the
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
        # and that between cards. One card is fitted, so the latter is prior only: the spread over
        # the cards of hier_gemm of launch time (at one clock), of issue efficiency and memory
        # latency, of which a light kernel's rate is made, of bandwidth and of the knee.
        log_factor = {
            "floor": frame.pooled(
                "log_floor", (np.log(3e-6), 0.5), architecture=0.5, sku=0.2, centred=("sku",)
            ),
            # an SM loads and stores some 6 bytes a clock where it waits for L2
            "issue_cost": frame.pooled(
                "log_issue_cost", (np.log(0.17), 0.5), architecture=0.5, sku=0.12, centred=("sku",)
            ),
            "cold_wait": frame.pooled(
                "log_cold_wait", (np.log(0.3), 0.7), architecture=0.6, sku=0.4
            ),
            # the more a block waits, the less a second one on its SM adds
            "slot_odds": frame.pooled(
                "log_slot_odds", (np.log(1.5), 0.7), architecture=0.5, sku=0.2
            ),
            "lane_odds": frame.pooled("log_lane_odds", (np.log(1.0), 0.7), architecture=0.5),
            "eta_memory": frame.pooled("log_eta_memory", (np.log(0.87), 0.05), sku=0.065),
            "floor_knee": frame.pooled(
                "log_floor_knee", (np.log(1.0), 0.5), architecture=0.4, sku=0.3
            ),
            "roof_knee": frame.pooled(
                "log_roof_knee", (np.log(1.0), 0.5), architecture=0.6, sku=0.3
            ),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        frame.observe(light_time(terms, frame.rows(factor)), run=0.006)
    return model
