"""Figures of rankings, predictions, posteriors and their calibration.

Every function takes Datasets or answers, and returns a Matplotlib figure; `save` writes one.
Importing this package does not import Matplotlib; drawing does.
"""

from m2bayes.plot._canvas import inlined, save, suffix_of
from m2bayes.plot.calibration import coverage, evaluation, pit, reliability
from m2bayes.plot.clocks import clock_curves
from m2bayes.plot.forest import factor_forest
from m2bayes.plot.maps import flip_map, p_best_map
from m2bayes.plot.parts import breakdown
from m2bayes.plot.plans import cost_against_slo
from m2bayes.plot.predictive import check, posterior_predictive
from m2bayes.plot.ranks import ranking, times
from m2bayes.plot.regrets import regret
from m2bayes.plot.roofs import roofline
from m2bayes.plot.values import value_of_measurements

__all__ = [
    "breakdown",
    "check",
    "clock_curves",
    "cost_against_slo",
    "coverage",
    "evaluation",
    "factor_forest",
    "flip_map",
    "inlined",
    "p_best_map",
    "pit",
    "posterior_predictive",
    "ranking",
    "regret",
    "reliability",
    "roofline",
    "save",
    "suffix_of",
    "times",
    "value_of_measurements",
]
