"""Host time of a step from factors pooled over engines: launches, sequences, sampling."""

import numpy as np
import pymc as pm

from m2bayes.hierarchy import Frame
from m2bayes.mechanism.host import host_time
from m2bayes.mechanism.laws import LAWS


def build(data, datasheets):
    """Model the log time of host-bound steps; every prior of a factor stands here.

    Parameters
    ----------
    data : Dataset, dims (cell, run)
        Times of steps that the host bounds [s], from `m2bayes.measurements.runs_by_cell`.
    datasheets : Dataset, dims (sku,)
        Of the units, from `m2bayes.kernels.unit_sheets`: an ``architecture`` is an engine, a
        ``sku`` that engine on the host of one card.
    """
    frame = Frame(data, datasheets, law=LAWS["host_time"])
    with pm.Model(coords=frame.coords) as model:
        terms = frame.terms()
        # (centre, sd) of the population on the log scale, then the spreads below it.
        log_factor = {
            # a kernel with the Python around it takes tens of microseconds to launch
            "eager_launch": frame.pooled(
                "log_eager_launch",
                (np.log(40e-6), 0.4),
                architecture=0.3,
                sku=0.2,
                centred=("sku",),
            ),
            # of a captured graph the host only hands over the whole
            "graph_launch": frame.pooled("log_graph_launch", (np.log(0.8e-6), 0.5), sku=0.2),
            "sequence_time": frame.pooled(
                "log_sequence_time", (np.log(20e-6), 0.8), architecture=0.5, sku=0.3
            ),
            "sampling_time": frame.pooled(
                "log_sampling_time", (np.log(400e-6), 0.7), architecture=0.4, sku=0.3
            ),
        }
        factor = {name: pm.math.exp(value) for name, value in log_factor.items()}
        frame.observe(host_time(terms, frame.rows(factor)))
    return model
